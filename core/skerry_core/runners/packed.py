"""A model's weights as the CPU kernels want them, and the file that keeps them so between starts.

Formats stay as they are, except that the floats of safetensors, which are not quantised yet,
become Q8_0, a half or a quarter of the bytes that every token reads; or what the operator wants.

Packing takes a second or two, mapping the packed file a twentieth of one; processes that serve the
same model share its pages. The file is only a cache: one that is stale, truncated or corrupt is
made again. It is replaced, never written to, so what was checked stays so.

    bytes 0-7    magic
    bytes 8-15   length of the header, u64 little-endian
    header       JSON: key of what was packed, configuration, layouts, xxh3-128 of the data
    data         from the next multiple of 64 on: matrices and vectors, each at a multiple of 64
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass, replace
from io import BufferedReader
from math import prod
from pathlib import Path

import msgspec
import numpy as np
import xxhash
from msgspec import Struct
from numpy.typing import NDArray

from skerry_core.config import ConfigError, ModelConfig
from skerry_core.kernels.matmul.layout import (
    BLOCK,
    LAYOUT_VERSION,
    PackedLayout,
    WeightFormat,
    pack,
)
from skerry_core.kernels.simd.emitter import LANES
from skerry_core.kernels.simd.memory import aligned_zeros
from skerry_core.models.tensor_names import expected_shapes
from skerry_core.models.weight_file import WeightFile, content_files
from skerry_core.runner import Progress
from skerry_core.weights.tensors import FileTensor, Float32, dequantize, in_format

_MAGIC = b"SKERRYPK"
_READER_VERSION = 4  # of what weight files are taken to say: a change makes packed files stale
_ALIGNMENT = 64
_MAX_HEADER = 16 * 1024 * 1024  # bytes; the header of the largest model is far below
_CHUNK = 1 << 20  # bytes
_PACKED_AT_ONCE = 4 << 20  # values
_FLOATS = ("F32", "F16", "BF16", "FP8")
_KEPT_AS = {"BF16": "F32", "FP8": "F32", "Q5_0": "Q8_0"}  # exactly


@dataclass(frozen=True, slots=True)
class PackedModel:
    """Configuration and tensors of a model; `data` holds them all."""

    config: ModelConfig
    layouts: dict[str, PackedLayout]  # of each matrix
    offsets: dict[str, int]  # of each matrix and vector in `data`, bytes
    vector_sizes: dict[str, int]  # elements of each vector, f32
    data: NDArray[np.uint8]

    def vector(self, name: str) -> NDArray[np.float32]:
        start = self.offsets[name]
        return self.data[start : start + 4 * self.vector_sizes[name]].view(np.float32)

    @property
    def formats(self) -> list[str]:
        """Names of the weight formats in use, sorted."""
        return sorted({layout.format.name for layout in self.layouts.values()})


def load_packed(
    weights: Path,
    *,
    group_rows: int,
    floats: str | None = None,
    cache_dir: Path,
    progress: Progress,
) -> PackedModel:
    """Read a model's packed weights from the cache, or pack them and write the cache.

    `floats` names the format that matrices of floats are kept in, or "keep". By default those of
    safetensors become Q8_0, and those of a GGUF file, whose maker chose them, stay.

    Raises WeightsError for a file that cannot be read, ConfigError for a model that the CPU kernels
    cannot run.
    """
    key = _content_key(weights, group_rows, floats)
    path = cache_dir / f"{weights.stem}-{key}.packed"
    packed = _read(path, key)
    if packed is None:
        packed = _pack(weights, group_rows, progress, floats)
        _write(path, key, packed)
        packed = _read(path, key) or packed  # mapped, as in every later start
    return packed


def packed_bytes(weights: Path, *, group_rows: int = 16, floats: str | None = None) -> int:
    """Return what a model's weights take once they are packed, without packing them.

    Raises as `load_packed` does.
    """
    with WeightFile.open(weights) as source:
        if floats is None:
            floats = "q8_0" if source.is_safetensors else "keep"
        total = 0
        for name in expected_shapes(source.config):
            tensor = source.tensors[name]
            if _is_vector(name, tensor):
                total += 4 * prod(tensor.shape)
            else:
                total += _layout(name, tensor, group_rows, floats).num_bytes
        return total


def _content_key(weights: Path, group_rows: int, floats: str | None) -> str:
    """Name content and layout: an edited source or another kind of CPU finds a file of its own."""
    about = f"{_READER_VERSION} {LAYOUT_VERSION} {group_rows} {floats}"
    digest = xxhash.xxh3_128(about.encode())
    for each in content_files(weights):
        with each.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


# Packing


def _pack(weights: Path, group_rows: int, progress: Progress, floats: str | None) -> PackedModel:
    with WeightFile.open(weights) as source:
        config = source.config
        if floats is None:
            floats = "q8_0" if source.is_safetensors else "keep"
        _check_supported(config)
        layouts, vectors = dict[str, PackedLayout](), dict[str, Float32]()
        for name in expected_shapes(config):  # layer by layer, as a step reads them
            tensor = source.tensors[name]
            if _is_vector(name, tensor):
                vectors[name] = dequantize(tensor)
            else:
                layouts[name] = _layout(name, tensor, group_rows, floats)
        sizes = {name: layout.num_bytes for name, layout in layouts.items()}
        sizes |= {name: vector.nbytes for name, vector in vectors.items()}
        offsets, total = _place(sizes)
        data = aligned_zeros((total,), np.uint8)
        for done, (name, layout) in enumerate(layouts.items()):
            progress("packing weights", done / len(layouts))
            packed = data[offsets[name] : offsets[name] + layout.num_bytes]
            _pack_matrix(source.tensors[name], layout, packed)
        for name, vector in vectors.items():
            data[offsets[name] : offsets[name] + vector.nbytes] = vector.reshape(-1).view(np.uint8)
    vector_sizes = {name: vector.size for name, vector in vectors.items()}
    return PackedModel(config, layouts, offsets, vector_sizes, data)


def _check_supported(config: ModelConfig) -> None:
    """Raise ConfigError, naming field and value, for a model that the CPU kernels cannot run."""
    config.check_features("numba")
    sizes = {
        "head_dim": (config.head_dim, LANES),
        "hidden_size": (config.hidden_size, BLOCK),
        "intermediate_size": (config.intermediate_size, BLOCK),
        "experts.width": (0 if config.experts is None else config.experts.width, BLOCK),
        "num_heads * head_dim": (config.num_heads * config.head_dim, BLOCK),
    }
    for name, (size, unit) in sizes.items():
        if size % unit:
            raise ConfigError(f"{name} must be a multiple of {unit} on the CPU, got {size}")


def _is_vector(name: str, tensor: FileTensor) -> bool:
    """Return whether a tensor is kept as floats, as biases of experts are too."""
    return len(tensor.shape) == 1 or name.endswith(".bias")


def _layout(name: str, tensor: FileTensor, group_rows: int, floats: str) -> PackedLayout:
    """Return how a matrix is kept, experts' below one another; floats in the format of that name,
    unless it is "keep".

    A router is kept in F32: rounded, it chooses other experts for some of the tokens.
    """
    rows, columns = prod(tensor.shape[:-1]), tensor.shape[-1]
    format_ = _KEPT_AS.get(tensor.format, tensor.format)
    if floats != "keep" and tensor.format in _FLOATS:
        format_ = floats.upper()
    if name.endswith("ffn_gate_inp.weight"):
        format_ = "F32"
    return PackedLayout(WeightFormat[format_], rows, columns, group_rows)


def _pack_matrix(tensor: FileTensor, layout: PackedLayout, out: NDArray[np.uint8]) -> None:
    """Pack some rows at a time, so that what is in between stays small."""
    rows = tensor.rows
    groups = out.reshape(layout.num_groups, layout.group_bytes)
    step = max(1, _PACKED_AT_ONCE // (layout.num_columns * layout.group_rows))
    for first in range(0, layout.num_groups, step):
        part = rows[first * layout.group_rows : (first + step) * layout.group_rows]
        of_part = replace(layout, num_rows=len(part))
        groups[first : first + step] = pack(in_format(tensor, part, layout.format.name), of_part)


def _place(sizes: dict[str, int]) -> tuple[dict[str, int], int]:
    """Return offsets of arrays laid end to end, aligned, and the size of it all; bytes."""
    offsets, end = {}, 0
    for name, size in sizes.items():
        offsets[name] = end
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


# The file


class _Header(Struct, frozen=True, kw_only=True):
    key: str
    config: ModelConfig
    layouts: dict[str, PackedLayout]
    offsets: dict[str, int]
    vector_sizes: dict[str, int]
    size: int  # bytes of data
    digest: str  # xxh3-128 of them


def _write(path: Path, key: str, packed: PackedModel) -> None:
    """Write beside the final name, then rename: readers see a whole file or none."""
    header = msgspec.json.encode(
        _Header(
            key=key,
            config=packed.config,
            layouts=packed.layouts,
            offsets=packed.offsets,
            vector_sizes=packed.vector_sizes,
            size=packed.data.nbytes,
            digest=xxhash.xxh3_128_hexdigest(packed.data.data),
        )
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(_MAGIC + len(header).to_bytes(8, "little") + header)
            file.seek(_data_start(len(header)))
            file.write(packed.data.data)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _data_start(header_size: int) -> int:
    return -(-(16 + header_size) // _ALIGNMENT) * _ALIGNMENT


def _read(path: Path, key: str) -> PackedModel | None:
    """Read the packed model of a file; None when there is none that is whole and of this key."""
    try:
        with path.open("rb") as file:
            return _parse(file, key)
    except FileNotFoundError:
        return None
    except ValueError:  # not what we wrote: a torn or foreign file
        return None


def _parse(file: BufferedReader, key: str) -> PackedModel | None:
    start = file.read(16)
    size = int.from_bytes(start[8:], "little")
    if start[:8] != _MAGIC or size > _MAX_HEADER:
        return None
    header = msgspec.json.decode(file.read(size), type=_Header)
    if header.key != key:
        return None
    data = _map(file)[_data_start(size) :]
    if data.nbytes != header.size:
        return None
    if xxhash.xxh3_128_hexdigest(data.data) != header.digest:
        return None
    return PackedModel(header.config, header.layouts, header.offsets, header.vector_sizes, data)


def _map(file: BufferedReader) -> NDArray[np.uint8]:
    """Map a file's bytes, all in place where the system does that; as long as they are used."""
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    mapped = mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ)
    return np.frombuffer(mapped, np.uint8)
