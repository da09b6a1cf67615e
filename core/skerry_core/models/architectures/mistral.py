"""Mistral (Jiang et al., 2023): a Llama whose layers may all have a window of attention."""

from __future__ import annotations

from skerry_core.config import ModelConfig
from skerry_core.models.architecture import Architecture
from skerry_core.models.architectures import llama
from skerry_core.models.metadata import CheckpointMetadata


def read(metadata: CheckpointMetadata) -> ModelConfig:
    """Return the configuration. Raises WeightsError or ConfigError."""
    config = llama.read(metadata)
    window = metadata.integer("sliding_window") if metadata.has("sliding_window") else None
    return llama.with_windows(config, [window] * config.num_layers)


ARCHITECTURE = Architecture(read=read)
