"""Llama (Touvron et al., 2023; Llama 3: Grattafiori et al., 2024), which other families vary.

In GGUF Mistral and Mixtral are Llamas too, so a window or experts may be stated there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from skerry_core.config import ExpertsConfig, LayerConfig, ModelConfig
from skerry_core.models.architecture import Architecture
from skerry_core.models.metadata import MAX_LAYERS, CheckpointMetadata
from skerry_core.models.rope_scaling import read_rope, scaled_context

FULL, SLIDING = "full_attention", "sliding_attention"
_ACTIVATIONS = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}


def read(
    metadata: CheckpointMetadata,
    *,
    activation: Literal["silu", "gelu_tanh"] = "silu",
    takes_partial_rotary: bool = False,
) -> ModelConfig:
    """Return what families have in common with Llama. Raises WeightsError or ConfigError."""
    for key in ("hidden_act", "hidden_activation"):
        metadata.refuse(key, unless=_ACTIVATIONS[activation])
    hidden_size = metadata.integer("hidden_size")
    num_heads = metadata.integer("num_attention_heads")
    head_dim = metadata.integer("head_dim", hidden_size // num_heads)
    metadata.refuse("v_head_dim", unless=head_dim)
    rotary_dim = _rotary_dim(metadata, head_dim, takes_partial_rotary=takes_partial_rotary)
    window = metadata.integer("window") if metadata.has("window") else None
    layer = LayerConfig(rope=read_rope(metadata, rotary_dim), window=window)
    return ModelConfig(
        architecture="llama",
        layers=(layer,) * metadata.integer("num_hidden_layers", limit=MAX_LAYERS),
        hidden_size=hidden_size,
        intermediate_size=metadata.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=metadata.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        vocab_size=metadata.integer("vocab_size"),
        max_context=scaled_context(metadata),
        rms_norm_eps=metadata.number("rms_norm_eps", 1e-6),
        tied_embeddings=metadata.flag("tie_word_embeddings", False),
        attention_bias=metadata.flag("qkv_bias", False),
        activation=activation,
        rotary_dim=None if rotary_dim == head_dim else rotary_dim,
    )


def layer_kinds(
    metadata: CheckpointMetadata, num_layers: int, slides: Callable[[int], bool]
) -> list[bool]:
    """Return which layers have the sliding window: as config.json lists them, or as `slides` says
    of a layer's number."""
    if not metadata.has("layer_types"):
        return [slides(index) for index in range(num_layers)]
    kinds = metadata.sequence("layer_types")
    if len(kinds) != num_layers or any(kind not in (FULL, SLIDING) for kind in kinds):
        raise metadata.bad("layer_types")
    return [kind == SLIDING for kind in kinds]


def with_windows(config: ModelConfig, windows: Sequence[int | None]) -> ModelConfig:
    """Return a configuration whose layers have these windows."""
    layers = zip(config.layers, windows, strict=True)
    return replace(config, layers=tuple(replace(layer, window=each) for layer, each in layers))


def refuse_biases(metadata: CheckpointMetadata) -> None:
    """Raise WeightsError where config.json wants biases of all four projections, or of the
    feed-forward network's three."""
    for key in ("attention_bias", "mlp_bias"):
        metadata.refuse(key)


def _rotary_dim(metadata: CheckpointMetadata, head_dim: int, *, takes_partial_rotary: bool) -> int:
    if not takes_partial_rotary:
        metadata.refuse("rotary_dim", unless=head_dim)
    section = metadata.section("rope_parameters", "rope_scaling")
    for each in (metadata, section):
        if not takes_partial_rotary:
            each.refuse("partial_rotary_factor", unless=1.0)
    factor = section.number("partial_rotary_factor", metadata.number("partial_rotary_factor", 1.0))
    return metadata.integer("rotary_dim", int(head_dim * factor))


def _read_llama(metadata: CheckpointMetadata) -> ModelConfig:
    refuse_biases(metadata)
    config = read(metadata)
    if not metadata.is_gguf or not metadata.has("num_experts"):
        return config
    experts = ExpertsConfig(  # Mixtral
        count=metadata.integer("num_experts"),
        used=metadata.integer("num_experts_per_tok"),
        width=config.intermediate_size,
    )
    layers = tuple(replace(layer, has_experts=True) for layer in config.layers)
    return replace(config, layers=layers, experts=experts)


ARCHITECTURE = Architecture(read=_read_llama, interleaves_pairs=True)
