"""A model's weights as the CPU kernels want them.

Formats stay as they are, except that the floats of safetensors, which are not quantised yet,
become Q8_0, a half or a quarter of the bytes that every token reads; or what the operator wants.

Packing takes its time once; every later start maps the packed file, and processes that serve the
same model share its pages. Matrices are packed some rows at a time on their way into the file, so
that packing takes little memory beside the mapped weights.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import xxhash

from skerry_core.config import ConfigError, ModelConfig
from skerry_core.kernels.matmul.layout import (
    BLOCK,
    PackedLayout,
    WeightFormat,
    pack,
)
from skerry_core.kernels.simd.emitter import LANES
from skerry_core.models.stages import ModelStage
from skerry_core.models.tensor_names import expected_shapes
from skerry_core.models.weight_file import WeightFile, content_files
from skerry_core.runner import Progress
from skerry_core.runners.packing.packed_file import (
    ALIGNMENT,
    SUFFIX,
    VERSION,
    PackedFile,
    PackedHeader,
    PackedModel,
    find_packed,
    write_packed,
)
from skerry_core.weights.digests import FileDigests
from skerry_core.weights.quantizers import in_format
from skerry_core.weights.tensors import Bytes, FileTensor, WeightsError, dequantize

_PACKED_AT_ONCE = 1 << 20  # values: what is in between stays in a core's cache
_FLOATS = ("F32", "F16", "BF16", "FP8")
_LARGEST_GROUP = 16  # rows; where none is packed they are of no CPU
_KEPT_AS = {"BF16": "F32", "FP8": "F32", "Q5_0": "Q8_0"}  # exactly


def load_packed(
    weights: Path,
    *,
    group_rows: int,
    floats: str | None = None,
    stage: ModelStage | None = None,
    file: PackedFile | None = None,
    cache_dir: Path,
    progress: Progress,
) -> PackedModel:
    """Map the packed weights of a model, or of a stage alone; unless `file` has been found, pack
    them first as `find_or_pack` does, see there."""
    if file is None:
        file = find_or_pack(
            weights, group_rows=group_rows, floats=floats, cache_dir=cache_dir, progress=progress
        )
    layers = file.header.config.num_layers
    return file.map(ModelStage(0, layers, layers) if stage is None else stage)


def find_or_pack(
    weights: Path,
    *,
    group_rows: int,
    floats: str | None = None,
    cache_dir: Path,
    progress: Progress,
) -> PackedFile:
    """Find a model's packed weights in the cache, or pack them and write the cache; of processes
    that want the same at once, one packs.

    `floats` names the format that matrices of floats are kept in, or "keep". By default those of
    safetensors become Q8_0, and those of a GGUF file, whose maker chose them, stay.

    Raises WeightsError for a file that cannot be read, ConfigError for a model that the CPU kernels
    cannot run.
    """
    digests = FileDigests(cache_dir / "digests.json")
    key = _content_key(weights, group_rows, floats, digests)
    path = cache_dir / f"{weights.stem}-{key}{SUFFIX}"
    packed = find_packed(path, key, digests)
    if packed is None:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _locked(cache_dir):
            packed = find_packed(path, key, digests)
            if packed is None:
                _pack(weights, group_rows, progress, floats, path, key, digests)
                packed = find_packed(path, key, digests)
    if packed is None:
        raise WeightsError(f"{path}: what was written is not what is read: look after the disk")
    return packed


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # and with it the lock


def packed_bytes(weights: Path, *, floats: str | None = None) -> int:
    """Return what a model's weights take once they are packed, without packing them.

    Raises as `load_packed` does.
    """
    with WeightFile.open(weights) as source:
        layouts, vectors = _arranged(source, _LARGEST_GROUP, floats)
        matrices = sum(layout.num_bytes for layout in layouts.values())
        return matrices + sum(4 * prod(vector.shape) for vector in vectors.values())


def _content_key(weights: Path, group_rows: int, floats: str | None, digests: FileDigests) -> str:
    """Name content and layout: an edited source or another kind of CPU finds a file of its own."""
    parts = [f"{VERSION} {group_rows} {floats}"]
    parts += [digests.of(each) for each in content_files(weights)]
    return xxhash.xxh3_128_hexdigest(" ".join(parts).encode())


# Packing


def _pack(
    weights: Path,
    group_rows: int,
    progress: Progress,
    floats: str | None,
    path: Path,
    key: str,
    digests: FileDigests,
) -> None:
    """Write the packed file of a model's weights."""
    with WeightFile.open(weights) as source:
        config = source.config
        _check_supported(config)
        layouts, vectors = _arranged(source, group_rows, floats)
        vector_sizes = {name: prod(vector.shape) for name, vector in vectors.items()}
        sizes = {name: layout.num_bytes for name, layout in layouts.items()}
        offsets, total = _place(sizes | {name: 4 * size for name, size in vector_sizes.items()})
        header = PackedHeader(
            key=key,
            config=config,
            layouts=layouts,
            offsets=offsets,
            vector_sizes=vector_sizes,
            size=total,
        )

        def pieces() -> Iterator[Bytes]:
            for done, (name, layout) in enumerate(layouts.items()):
                progress("packing weights", done / len(layouts))
                yield from _matrix_pieces(source.tensors[name], layout)
                yield _padding(layout.num_bytes)
            for vector in vectors.values():
                values = dequantize(vector).reshape(-1).view(np.uint8)
                yield values
                yield _padding(values.nbytes)

        write_packed(path, header, pieces(), digests)


def _arranged(
    source: WeightFile, group_rows: int, floats: str | None
) -> tuple[dict[str, PackedLayout], dict[str, FileTensor]]:
    """Return how matrices are kept, and what is kept as floats, layer by layer, as a step reads
    them."""
    if floats is None:
        floats = "q8_0" if source.is_safetensors else "keep"
    layouts, vectors = dict[str, PackedLayout](), dict[str, FileTensor]()
    for name in expected_shapes(source.config):
        tensor = source.tensors[name]
        if len(tensor.shape) == 1 or name.endswith(".bias"):  # those of experts too
            vectors[name] = tensor
        else:
            layouts[name] = _layout(name, tensor, group_rows, floats)
    return layouts, vectors


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


def _matrix_pieces(tensor: FileTensor, layout: PackedLayout) -> Iterator[Bytes]:
    """Pack some rows at a time, so that what is in between stays small."""
    step = max(1, _PACKED_AT_ONCE // (layout.num_columns * layout.group_rows)) * layout.group_rows

    parts = tensor.parts()
    if prod(parts[0].shape[:-1]) % layout.group_rows:
        parts = (tensor,)  # a group has rows of two
    for part in parts:
        rows = part.rows
        for first in range(0, len(rows), step):
            some = rows[first : first + step]
            of_some = replace(layout, num_rows=len(some))
            yield pack(in_format(part, some, layout.format.name), of_some).reshape(-1)


def _padding(size: int) -> Bytes:
    return np.zeros(-size % ALIGNMENT, np.uint8)


def _place(sizes: dict[str, int]) -> tuple[dict[str, int], int]:
    """Return offsets of arrays laid end to end, aligned, and the size of it all; bytes."""
    offsets, end = {}, 0
    for name, size in sizes.items():
        offsets[name] = end
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets, end
