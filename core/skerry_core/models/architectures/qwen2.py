"""Qwen2 (Yang et al., 2024): a Llama with biases on q, k and v, and windows in some layers."""

from __future__ import annotations

from dataclasses import replace

from skerry_core.config import ModelConfig
from skerry_core.models.architecture import Architecture
from skerry_core.models.architectures import llama
from skerry_core.models.metadata import CheckpointMetadata


def read(metadata: CheckpointMetadata) -> ModelConfig:
    """Return the configuration. Raises WeightsError or ConfigError."""
    return replace(with_windows(llama.read(metadata), metadata), attention_bias=True)


def with_windows(config: ModelConfig, metadata: CheckpointMetadata) -> ModelConfig:
    """Return a configuration with the windows that config.json gives to layers, if any."""
    if not metadata.flag("use_sliding_window", False) or not metadata.has("sliding_window"):
        return config
    window = metadata.integer("sliding_window")
    first = metadata.integer("max_window_layers", 28, least=0)  # layers below it see everything
    slides = llama.layer_kinds(metadata, config.num_layers, lambda index: index >= first)
    return llama.with_windows(config, [window if each else None for each in slides])


ARCHITECTURE = Architecture(read=read)
