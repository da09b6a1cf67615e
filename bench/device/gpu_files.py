"""A model's file to be loaded by `bench.gpu`, and how fast a disk can give it."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path

from skerry_core.config import ModelConfig
from skerry_core.models.tensor_names import LLAMA_TENSORS, expected_shapes

_NAMES = {ours: theirs for theirs, ours in LLAMA_TENSORS.items()}
_PIECE = 16 << 20  # bytes
_THREADS = 4


def write_model(folder: Path, config: ModelConfig) -> Path:
    """A safetensors file of a model in bfloat16 that says nothing, and its config.json."""
    header, end = dict[str, object](), 0
    for name, shape in expected_shapes(config).items():
        start, end = end, end + 2 * prod(shape)
        header[_their_name(name)] = {
            "dtype": "BF16", "shape": shape, "data_offsets": [start, end],
        }  # fmt: skip
    raw = json.dumps(header).encode()
    path = folder / "model.safetensors"
    piece = os.urandom(_PIECE)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for start in range(0, end, _PIECE):
            file.write(piece[: end - start])
        file.flush()
        os.fsync(file.fileno())
    rope = config.layers[0].rope
    fields = {
        "model_type": config.architecture, "hidden_act": "silu",
        "hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads, "head_dim": config.head_dim,
        "vocab_size": config.vocab_size, "max_position_embeddings": config.max_context,
        "rope_theta": rope.theta if rope else None, "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(fields))
    return path


def forget(path: Path) -> None:
    """Have the page cache let go of a file that is on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def read(path: Path) -> None:
    """Read a file as fast as it comes: large pieces, several at a time."""
    file = os.open(path, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            starts = range(0, os.fstat(file).st_size, _PIECE)
            list(pool.map(lambda start: len(os.pread(file, _PIECE, start)), starts))
    finally:
        os.close(file)


def _their_name(name: str) -> str:
    module, kind = name.rsplit(".", 1)
    layer = module.split(".")[1] if module.startswith("blk.") else ""
    pattern = module.replace(f"blk.{layer}.", "blk.*.")
    return _NAMES[pattern].replace("*", layer) + "." + kind
