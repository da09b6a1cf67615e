"""The file of packed weights: written piece by piece, mapped, and checked.

It is only a cache: one that is stale, truncated or corrupt is made again. It is replaced, never
written to, so what was checked stays so: its data are read through when it is made, when its state
is not the one that was checked (`FileDigests`), and by `skerry models verify`.

    bytes 0-7    magic
    bytes 8-15   length of the header, u64 little-endian
    header       JSON: key of what was packed, configuration, layouts, xxh3-128 of the data
    data         from the next multiple of 64 on: matrices and vectors, each at a multiple of 64
"""

from __future__ import annotations

import contextlib
import glob
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import xxhash
from msgspec import Struct
from numpy.typing import NDArray

from skerry_core.config import ModelConfig
from skerry_core.kernels.matmul.layout import LAYOUT_VERSION, PackedLayout
from skerry_core.models.stages import ModelStage
from skerry_core.weights.digests import FileDigests, FileState, digest_of

_MAGIC = b"SKERRYPK"
_READER_VERSION = 4  # of what weight files are taken to say: a change makes packed files stale
VERSION = f"{_READER_VERSION}.{LAYOUT_VERSION}"
ALIGNMENT = 64
_MAX_HEADER = 16 * 1024 * 1024  # bytes; the header of the largest model is far below
_NO_DIGEST = "0" * 32
_CHUNK = 1 << 20  # bytes
_READ_AT_ONCE = 32 << 20
_POPULATE_READ = 22  # madvise(2)'s MADV_POPULATE_READ, which Python's mmap does not name
SUFFIX = ".packed"


@dataclass(frozen=True, slots=True)
class PackedModel:
    """Configuration and tensors of a model, or of a stage of one: its layers count from 0."""

    config: ModelConfig
    stage: ModelStage
    layouts: dict[str, PackedLayout]  # of each matrix
    tensors: dict[str, NDArray[np.uint8]]  # bytes of each matrix and vector, aligned
    mapped: tuple[NDArray[np.uint8], ...]  # runs of the file that they lie in
    all_formats: tuple[str, ...]
    """Names of the weight formats in use, sorted; of the whole model, also for a stage."""

    def vector(self, name: str) -> NDArray[np.float32]:
        return self.tensors[name].view(np.float32)


class PackedHeader(Struct, frozen=True, kw_only=True):
    """What is said of the data."""

    version: str = VERSION
    key: str
    config: ModelConfig
    layouts: dict[str, PackedLayout]
    offsets: dict[str, int]
    vector_sizes: dict[str, int]
    size: int  # bytes of data
    digest: str = _NO_DIGEST  # xxh3-128 of them


def write_packed(
    path: Path, header: PackedHeader, pieces: Iterable[NDArray[np.uint8]], digests: FileDigests
) -> None:
    """Write beside the final name, then rename: readers see a whole file or none.

    `pieces` are the data in their order, so that they need not be in memory at once. Raises
    OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _open_unnamed(path.parent) as file:
        start = _data_start(len(msgspec.json.encode(header)))
        file.seek(start)
        digest = xxhash.xxh3_128()
        for piece in pieces:
            digest.update(piece.data)
            file.write(piece.data)
        if (size := file.tell() - start) != header.size:
            raise ValueError(f"{size} bytes were packed, not {header.size}")
        header = msgspec.structs.replace(header, digest=digest.hexdigest())
        encoded = msgspec.json.encode(header)
        file.seek(0)
        file.write(_MAGIC + len(encoded).to_bytes(8, "little") + encoded)
        file.flush()
        _name(file, path)
    digests.keep(path, FileState.of(path.stat()), header.digest)
    _remove_stale(path.parent)


def _open_unnamed(folder: Path) -> BinaryIO:
    """Open a new file without a name, which is gone with a process that is killed."""
    try:
        return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600), "w+b")
    except (AttributeError, OSError):  # not of this system, or of this file system
        return tempfile.TemporaryFile(dir=folder)


def _name(file: BinaryIO, path: Path) -> None:
    """Give a file without a name one, in place of what has it; where the system cannot, a copy."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    folder = os.open(path.parent, os.O_RDONLY)
    try:  # linkat follows the link to the open file, as plain link does not
        os.link(f"/proc/self/fd/{file.fileno()}", draft, src_dir_fd=folder)
    except OSError:
        file.seek(0)
        with draft.open("wb") as copy:
            shutil.copyfileobj(file, copy, _CHUNK)
    finally:
        os.close(folder)
    os.replace(draft, path)


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A packed model's file that is whole: its header, and where its data begin."""

    path: Path
    header: PackedHeader
    start: int

    def map(self, stage: ModelStage) -> PackedModel:
        """Map a stage's tensors, and no others. Raises OSError, and ValueError where the file is
        another by now."""
        header, model = self.header, self.header.config
        names = stage.tensors(model, header.offsets)
        sizes = {name: layout.num_bytes for name, layout in header.layouts.items()}
        sizes |= {name: 4 * size for name, size in header.vector_sizes.items()}
        tensors, runs = dict[str, NDArray[np.uint8]](), list[NDArray[np.uint8]]()
        with self.path.open("rb") as file:
            if _header(file) != header:
                raise ValueError(f"{self.path}: the file has changed")
            for run in _runs({name: header.offsets[name] for name in names.values()}, sizes):
                first, end = header.offsets[run[0]], header.offsets[run[-1]] + sizes[run[-1]]
                runs.append(_map(file, self.start + first, end - first))
                for name in run:
                    at = header.offsets[name] - first
                    tensors[name] = runs[-1][at : at + sizes[name]]
        return PackedModel(
            config=stage.config(model),
            stage=stage,
            layouts={own: header.layouts[n] for own, n in names.items() if n in header.layouts},
            tensors={own: tensors[name] for own, name in names.items()},
            mapped=tuple(runs),
            all_formats=tuple(sorted({each.format.name for each in header.layouts.values()})),
        )


def find_packed(path: Path, key: str, digests: FileDigests) -> PackedFile | None:
    """Return the packed model of a file; None when there is none that is whole and of this key."""
    try:
        with path.open("rb") as file:
            header = _header(file)
            if header.key != key:
                return None
            start = file.tell()
            state = FileState.of(os.fstat(file.fileno()))
            if digests.known(path, state) != header.digest:
                if digest_of(file) != header.digest:
                    return None
                digests.keep(path, state, header.digest)
    except (FileNotFoundError, ValueError):  # none, or not what we wrote: torn or foreign
        return None
    return PackedFile(path, header, start)


def _runs(offsets: dict[str, int], sizes: dict[str, int]) -> list[list[str]]:
    """Return names in the file's order, together where nothing of others lies between."""
    runs: list[list[str]] = []
    end = -1
    for name in sorted(offsets, key=offsets.__getitem__):
        if offsets[name] == end:
            runs[-1].append(name)
        else:
            runs.append([name])
        end = offsets[name] + -(-sizes[name] // ALIGNMENT) * ALIGNMENT
    return runs


def damaged_packed(weights: Path, cache_dir: Path) -> list[Path]:
    """Read through what was packed of a model's weights; remove and return files that are not as
    they were written. Raises OSError."""
    _remove_stale(cache_dir)
    damaged = []
    for path in sorted(cache_dir.glob(f"{glob.escape(weights.stem)}-*{SUFFIX}")):
        try:
            with path.open("rb") as file:
                header = _header(file)
                is_whole = digest_of(file) == header.digest
        except ValueError:
            is_whole = False
        if not is_whole:
            path.unlink()
            damaged.append(path)
    return damaged


class _Stated(Struct):
    version: str = ""


def _remove_stale(folder: Path) -> None:
    """Remove what other versions of Skerry have packed: a copy of all weights is much to keep."""
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            with path.open("rb") as file:
                stated = msgspec.json.decode(_header_bytes(file), type=_Stated)
        except (FileNotFoundError, ValueError):
            continue
        if stated.version != VERSION:
            path.unlink(missing_ok=True)


def _data_start(header_size: int) -> int:
    return -(-(16 + header_size) // ALIGNMENT) * ALIGNMENT


def _header(file: BufferedReader) -> PackedHeader:
    """Return a file's header, and stand where its data begin. Raises ValueError for a file that is
    not ours, or cut."""
    raw = _header_bytes(file)
    header = msgspec.json.decode(raw, type=PackedHeader)
    start = file.seek(_data_start(len(raw)))
    if (size := os.fstat(file.fileno()).st_size - start) != header.size:
        raise ValueError(f"{size} bytes of data, not {header.size}")
    return header


def _header_bytes(file: BufferedReader) -> bytes:
    """Read a file's header. Raises ValueError for one that is not ours."""
    start = file.read(16)
    size = int.from_bytes(start[8:], "little")
    if start[:8] != _MAGIC or size > _MAX_HEADER:
        raise ValueError("not a file of packed weights")
    return file.read(size)


def _map(file: BufferedReader, start: int, size: int) -> NDArray[np.uint8]:
    """Map bytes of a file, as long as they are used, and have the system read them.

    Python's other threads wait for a call on a mapping, however long the disk takes.
    """
    before = start % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(
        file.fileno(), before + size, mmap.MAP_SHARED, mmap.PROT_READ, offset=start - before
    )
    with contextlib.suppress(OSError):  # another system, or Linux before 5.14: read when used
        for at in range(0, before + size, _READ_AT_ONCE):
            mapped.madvise(_POPULATE_READ, at, min(_READ_AT_ONCE, before + size - at))
    return np.frombuffer(mapped, np.uint8)[before:]
