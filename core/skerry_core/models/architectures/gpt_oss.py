"""gpt-oss (OpenAI, 2025): experts with a clamped activation, biases everywhere, attention sinks,
and a window in every other layer.

GGUF states neither the windows' pattern nor that YaRN's limits are not rounded.
"""

from __future__ import annotations

from dataclasses import replace

from skerry_core.config import ExpertsConfig, LayerConfig, ModelConfig
from skerry_core.models.architecture import Architecture, renamed
from skerry_core.models.architectures import llama
from skerry_core.models.metadata import CheckpointMetadata
from skerry_core.models.rope_scaling import read_rope
from skerry_core.models.tensor_names import Fused

_BOTH = Fused(
    ("blk.*.ffn_gate_exps.weight", "blk.*.ffn_up_exps.weight"), in_turn=True, transposed=True
)
_BIASES = Fused(("blk.*.ffn_gate_exps.bias", "blk.*.ffn_up_exps.bias"), in_turn=True)


def read(metadata: CheckpointMetadata) -> ModelConfig:
    """Return the configuration. Raises WeightsError or ConfigError."""
    metadata.refuse("swiglu_limit", unless=7.0)
    if not metadata.is_gguf and not metadata.flag("attention_bias", True):
        raise metadata.bad("attention_bias")
    config = llama.read(metadata)
    rope = read_rope(metadata, config.head_dim, truncates=False)
    window = metadata.integer("sliding_window", metadata.integer("window", 128))
    slides = llama.layer_kinds(metadata, config.num_layers, lambda index: index % 2 == 0)
    layers = tuple(
        LayerConfig(rope=rope, window=window if each else None, has_experts=True) for each in slides
    )
    experts = ExpertsConfig(
        count=metadata.integer("num_local_experts", metadata.integer("num_experts", 128)),
        used=metadata.integer("num_experts_per_tok", 4),
        width=metadata.integer("moe_intermediate_size", config.intermediate_size),
        has_biases=True,
    )
    return replace(
        config,
        layers=layers,
        experts=experts,
        activation="clamped",
        attention_bias=True,
        output_bias=True,
        attention_sinks=True,
    )


_EXPERTS = "model.layers.*.mlp.experts"
ARCHITECTURE = Architecture(
    read=read,
    tensors=renamed(
        {
            "model.layers.*.self_attn.sinks": "blk.*.attn_sinks.weight",
            "model.layers.*.mlp.router": "blk.*.ffn_gate_inp",
            f"{_EXPERTS}.gate_up_proj": _BOTH,
            f"{_EXPERTS}.gate_up_proj_bias": _BIASES,
            f"{_EXPERTS}.gate_up_proj.weight": replace(_BOTH, transposed=False),  # of MXFP4
            f"{_EXPERTS}.down_proj.weight": "blk.*.ffn_down_exps.weight",
            f"{_EXPERTS}.down_proj": Fused(("blk.*.ffn_down_exps.weight",), transposed=True),
            f"{_EXPERTS}.down_proj_bias": "blk.*.ffn_down_exps.bias",
        }
    ),
    gguf_tensors={"blk.*.post_attention_norm": "blk.*.ffn_norm"},
)
