"""Checks that a model's files are those of the catalog: their size always, their SHA-256 once.

`verified.json` beside a model says over which state of a file its SHA-256 was computed; a file that
has not changed since, nor been replaced or copied, is not read again.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from skerry_regions.models.catalog import ModelFile, ModelSpec
from skerry_regions.models.problems import ModelCorrupt, ModelGone, ModelTruncated
from skerry_regions.models.sources import Progress

HASH_CHUNK: Final = 4 << 20  # bytes


class Stamp(Struct, frozen=True):
    """The state of a file when its SHA-256 was computed."""

    size: int
    modified_ns: int
    inode: int
    sha256: str


def check_files(
    spec: ModelSpec, weights_folder: Path, folder: Path, progress: Progress | None, *, force: bool
) -> None:
    """Compare every file with the catalog; hash those without a valid stamp in `folder`, or all
    with `force`. Raises `ModelCorrupt`."""
    stamps = {} if force else _read_stamps(folder)
    fresh: dict[str, Stamp] = {}
    for file in spec.files:
        path = weights_folder / file.name
        status = _status(spec, path)
        if status.st_size != file.size:
            found = f"{status.st_size:,} of {file.size:,} bytes"
            if status.st_size < file.size:
                raise ModelTruncated(f"{spec.id}: {path} is truncated: {found}")
            raise ModelCorrupt(f"{spec.id}: {path} is too long: {found}")
        stamp = Stamp(status.st_size, status.st_mtime_ns, status.st_ino, file.sha256)
        if stamps.get(file.name) != stamp:
            _check_hash(spec, path, file, progress)
        fresh[file.name] = stamp
    if fresh != stamps:
        _write_atomically(folder / "verified.json", msgspec.json.encode(fresh))


def hash_file(path: Path, progress: Progress | None = None) -> str:
    """Return a file's SHA-256, hex. Raises `OSError`."""
    sha256, done, size = hashlib.sha256(), 0, max(path.stat().st_size, 1)
    with path.open("rb") as file:
        while chunk := file.read(HASH_CHUNK):
            sha256.update(chunk)
            done += len(chunk)
            if progress:
                progress(f"checking {path.name}", min(done / size, 1.0))
    return sha256.hexdigest()


def _status(spec: ModelSpec, path: Path) -> os.stat_result:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ModelGone(f"{spec.id}: {path} is missing") from None


def _check_hash(spec: ModelSpec, path: Path, file: ModelFile, progress: Progress | None) -> None:
    sha256 = hash_file(path, progress)
    if sha256 != file.sha256:
        raise ModelCorrupt(
            f"{spec.id}: {path} is corrupt: SHA-256 {sha256[:16]}… "
            f"where the catalog says {file.sha256[:16]}…"
        )


def _read_stamps(folder: Path) -> dict[str, Stamp]:
    """Return stamps of earlier checks; none when there are none, or when they cannot be read, as
    those of earlier versions, without inodes."""
    try:
        data = (folder / "verified.json").read_bytes()
        return msgspec.json.decode(data, type=dict[str, Stamp])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def _write_atomically(path: Path, data: bytes) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.write_bytes(data)
    os.replace(draft, path)
