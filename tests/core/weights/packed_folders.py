"""Folders of small models that are packed."""

from __future__ import annotations

from pathlib import Path

from skerry_core.config import LayerConfig, ModelConfig, RopeConfig
from skerry_core.runners.packing.packed import load_packed
from skerry_core.runners.packing.packed_file import PackedModel

CONFIG = ModelConfig(
    architecture="llama",
    layers=(LayerConfig(rope=RopeConfig(theta=50_000.0)),),
    hidden_size=128,
    intermediate_size=128,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=80,
    max_context=512,
)


def load(folder: Path) -> tuple[PackedModel, bool]:
    """A model's packed weights, and whether they had to be packed."""
    told: list[str] = []
    packed = load_packed(
        folder,
        group_rows=8,
        cache_dir=folder.parent,
        progress=lambda what, share: told.append(what),
    )
    return packed, bool(told)
