"""Granite 3 and its dense successors (IBM, 2024): a Llama with four scales of its own."""

from __future__ import annotations

from dataclasses import replace

from skerry_core.config import ModelConfig
from skerry_core.models.architecture import Architecture
from skerry_core.models.architectures import llama
from skerry_core.models.metadata import CheckpointMetadata


def read(metadata: CheckpointMetadata) -> ModelConfig:
    """Return the configuration. Raises WeightsError or ConfigError."""
    llama.refuse_biases(metadata)
    return replace(
        llama.read(metadata),
        attention_scale=metadata.number("attention_multiplier", 1.0),
        embedding_scale=metadata.number("embedding_multiplier", 1.0),
        residual_scale=metadata.number("residual_multiplier", 1.0),
        logit_scale=1 / metadata.number("logits_scaling", 1.0),
    )


ARCHITECTURE = Architecture(read=read, interleaves_pairs=True)
