"""Programs that tests compare with and that no Python package carries: from PATH, or from Debian.

Where a program is not installed, its Debian package and what that depends on are unpacked below
`.cache/tools`, without root and outside the system (`apt-get` with a state of its own, `dpkg -x`).
Where that is impossible too, the test that asked is skipped by name. With `SKERRY_TOOLS=required`,
as in CI, it fails instead: there nothing is left out unseen.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

CACHE = (Path(__file__).resolve().parent.parent / ".cache" / "tools").resolve()
DOWNLOAD_SECONDS = 240
FOLDERS = (
    *(
        "usr/lib/chromium",
        "usr/bin",
        "usr/sbin",
        "bin",
        "sbin",
    ),  # not Debian's script
    "usr/lib/postgresql/*/bin",
)
LIBRARIES = (
    *("usr/lib/*-linux-gnu", "lib/*-linux-gnu", "usr/lib", "usr/lib/*-linux-gnu/systemd"),
    "usr/lib/*-linux-gnu/pulseaudio",
)


class Absent(Exception):
    """There is no such program, and why none can be had."""


def program(name: str, package: str, *, alone: bool = False) -> str:
    """Return the path of a program, of Debian's `package` where it is not installed.

    `alone` leaves out what the package depends on: enough for a program that is linked statically.
    Skips the test that asks where there is none; fails it under `SKERRY_TOOLS=required`.
    """
    try:
        return found(name, package, alone=alone)
    except Absent as error:
        if os.environ.get("SKERRY_TOOLS") == "required":
            pytest.fail(str(error))
        pytest.skip(str(error))


def put_on_path(monkeypatch: pytest.MonkeyPatch, packages: Mapping[str, str]) -> None:
    """Make programs, by name with Debian's package of each, those that PATH leads to."""
    for name, package in packages.items():
        folder = str(Path(program(name, package)).parent)
        if folder not in os.environ["PATH"].split(os.pathsep):
            monkeypatch.setenv("PATH", folder, prepend=os.pathsep)


def found(name: str, package: str, *, alone: bool = False) -> str:
    """Return the path, as `program` does. Raises Absent."""
    if (installed := shutil.which(name)) is not None:
        return installed
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise Absent(f"{name} is not installed (Debian's package is {package})")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers may want it at the same time
        root = CACHE / package
        if not (root / "complete").exists():
            _unpack(package, root, alone=alone)
    return str(_wrapped(name, root))


def _unpack(package: str, root: Path, *, alone: bool) -> None:
    """Raises Absent."""
    shutil.rmtree(root, ignore_errors=True)
    (root / "debs").mkdir(parents=True)
    try:
        _apt("update", root)
        names = list[str]()
        if not alone:
            plan = _apt("install", root, "--simulate", "--no-install-recommends", package)
            names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
        _apt("download", root, *(names or [package]))
        for file in sorted((root / "debs").glob("*.deb")):
            subprocess.run(["dpkg", "-x", file, root], check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise Absent(f"Debian's package {package} cannot be had: {said.strip()[-300:]}") from None
    shutil.rmtree(root / "debs")
    (root / "complete").touch()


def _apt(action: str, root: Path, *arguments: str) -> str:
    """Run apt-get on lists of its own and the system's list of packages; return what it prints."""
    state, cache = CACHE / "state", CACHE / "apt"
    for folder in (state / "lists" / "partial", cache / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "Dir::State": state,
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": cache,
        "APT::Sandbox::User": getpass.getuser(),
        "Debug::NoLocking": "true",
    }
    options = [each for key, value in settings.items() for each in ("-o", f"{key}={value}")]
    return subprocess.run(
        ["apt-get", *options, "-qq", action, *arguments],
        cwd=root / "debs",
        env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
        check=True,
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_SECONDS,
    ).stdout


def _wrapped(name: str, root: Path) -> Path:
    """Write a script that runs an unpacked program with the libraries beside it. Raises Absent."""
    places = [path for folder in FOLDERS for path in root.glob(f"{folder}/{name}")]
    if not places:
        raise Absent(f"Debian's package {root.name} has no program {name}")
    command = [str(places[0])]
    with places[0].open("rb") as file:
        if file.read(2) == b"#!":  # its interpreter may be unpacked, too
            words = file.readline().decode().split()
            inside = root / words[0].lstrip("/")
            command = [str(inside) if inside.exists() else words[0], *words[1:], *command]
    libraries = [str(path) for folder in LIBRARIES for path in root.glob(folder)]
    modules = root / "usr/lib/python3/dist-packages"
    script = root / "wrapped" / name
    text = (
        "#!/bin/sh\n"
        f"export LD_LIBRARY_PATH={shlex.quote(':'.join(libraries))}\n"
        + (f"export PYTHONPATH={shlex.quote(str(modules))}\n" if modules.exists() else "")
        + f'exec {shlex.join(command)} "$@"\n'
    )
    if not script.exists() or script.read_text() != text:  # the folder may have been moved
        script.parent.mkdir(exist_ok=True)
        draft = script.with_suffix(f".{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(script)
    return script
