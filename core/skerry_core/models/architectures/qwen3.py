"""Qwen3 (Yang et al., 2025), dense: a Llama with norms on the heads of q and k, and windows."""

from __future__ import annotations

from dataclasses import replace

from skerry_core.config import ModelConfig
from skerry_core.models.architecture import Architecture
from skerry_core.models.architectures import llama, qwen2
from skerry_core.models.metadata import CheckpointMetadata


def read(metadata: CheckpointMetadata) -> ModelConfig:
    """Return the configuration. Raises WeightsError or ConfigError."""
    metadata.refuse("attention_bias")
    return replace(qwen2.with_windows(llama.read(metadata), metadata), qk_norm="head")


ARCHITECTURE = Architecture(read=read)
