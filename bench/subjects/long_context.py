"""A model of random weights with 131,072 positions, and the vocabulary of the default model.

What it says means nothing. Its layers are wide and its heads few, so that most of a token's work is
its own and not that of its context, as it is in models with windows or linear attention.
"""

from __future__ import annotations

import os
from pathlib import Path

from bench.subjects.models import default_model
from bench.subjects.shaped_files import write_shaped
from skerry_core.config import LayerConfig, ModelConfig, RopeConfig

LONG_CONTEXT = "@cf/bench/long-context"
POSITIONS = 131_072
LAYERS, HEADS, HEAD_DIM = 2, 2, 64
PAIR_PRODUCTS = LAYERS * HEADS * 2 * HEAD_DIM  # of a token with one that it attends to


def long_context_file(folder: Path) -> Path:
    """Return its file in `folder`, written on first use: 130 MB."""
    path = folder / "long-context.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _, files = default_model()
        partial = path.with_suffix(".partial")
        write_shaped(partial, _config(files.vocab_size), lambda *_: "Q8_0", files.weights)
        os.replace(partial, path)
    return path


def _config(vocab_size: int) -> ModelConfig:
    rope = RopeConfig(theta=1e6)
    return ModelConfig(
        architecture="llama",
        layers=(LayerConfig(rope=rope),) * LAYERS,
        hidden_size=1024,
        intermediate_size=12_288,
        num_heads=HEADS,
        num_kv_heads=1,
        head_dim=HEAD_DIM,
        vocab_size=vocab_size,
        max_context=POSITIONS,
    )
