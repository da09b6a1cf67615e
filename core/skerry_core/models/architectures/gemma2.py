"""Gemma 2 (Gemma Team, 2024): norms around each branch, capped scores and logits, and a window in
every other layer.

Norms in safetensors have their weights less one. GGUF states neither the windows' pattern nor the
scale of attention.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from skerry_core.config import ModelConfig
from skerry_core.models.architecture import Architecture, renamed
from skerry_core.models.architectures import llama
from skerry_core.models.metadata import CheckpointMetadata

GEMMA_TENSORS = renamed(
    {
        "model.layers.*.post_attention_layernorm": "blk.*.post_attention_norm",
        "model.layers.*.pre_feedforward_layernorm": "blk.*.ffn_norm",
        "model.layers.*.post_feedforward_layernorm": "blk.*.post_ffw_norm",
    }
)
_LAYERS_OF_27B = 46  # whose scale is that of hidden_size / num_heads, not of head_dim


def read(metadata: CheckpointMetadata) -> ModelConfig:
    """Return the configuration. Raises WeightsError or ConfigError."""
    config = read_gemma(metadata, layers_of_27b=_LAYERS_OF_27B)
    window = metadata.integer("sliding_window", metadata.integer("window", 4096))
    slides = llama.layer_kinds(metadata, config.num_layers, lambda index: index % 2 == 0)
    config = llama.with_windows(config, [window if each else None for each in slides])
    return replace(
        config,
        score_cap=_cap(metadata, "attn_logit_softcapping", 50.0),
        logit_cap=_cap(metadata, "final_logit_softcapping", 30.0),
    )


def read_gemma(metadata: CheckpointMetadata, *, layers_of_27b: int) -> ModelConfig:
    """Return what Gemma 2 and 3 have in common, windows apart."""
    llama.refuse_biases(metadata)
    config = llama.read(metadata, activation="gelu_tanh")
    is_27b = config.num_layers == layers_of_27b
    heads_of = config.hidden_size // config.num_heads if is_27b else config.head_dim
    return replace(
        config,
        norms_after=True,
        embedding_scale=sqrt(config.hidden_size),
        attention_scale=metadata.number("query_pre_attn_scalar", heads_of) ** -0.5,
        tied_embeddings=metadata.flag("tie_word_embeddings", True),
    )


def _cap(metadata: CheckpointMetadata, key: str, default: float) -> float | None:
    """Return a cap; None where config.json says null."""
    return None if metadata.says_none(key) else metadata.number(key, default)


ARCHITECTURE = Architecture(read=read, tensors=GEMMA_TENSORS, norms_plus_one=True)
