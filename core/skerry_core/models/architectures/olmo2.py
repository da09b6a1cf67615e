"""OLMo 2 (OLMo Team, 2025): norms of what each branch adds, in place of those before it, and of q
and k across their heads."""

from __future__ import annotations

from dataclasses import replace

from skerry_core.config import ModelConfig
from skerry_core.models.architecture import Architecture, renamed
from skerry_core.models.architectures import llama
from skerry_core.models.metadata import CheckpointMetadata


def read(metadata: CheckpointMetadata) -> ModelConfig:
    """Return the configuration. Raises WeightsError or ConfigError."""
    llama.refuse_biases(metadata)
    config = llama.read(metadata)
    return replace(config, norms_before=False, norms_after=True, qk_norm="whole")


ARCHITECTURE = Architecture(
    read=read,
    tensors=renamed(
        {
            "model.layers.*.post_attention_layernorm": "blk.*.post_attention_norm",
            "model.layers.*.post_feedforward_layernorm": "blk.*.post_ffw_norm",
        }
    ),
)
