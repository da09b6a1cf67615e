"""Qwen3's mixtures of experts (Yang et al., 2025), some of whose layers may be dense.

GGUF does not state whether the chosen experts' shares sum to one: those of all released ones do.
"""

from __future__ import annotations

from dataclasses import replace

from skerry_core.config import ExpertsConfig, ModelConfig
from skerry_core.models.architecture import Architecture, renamed
from skerry_core.models.architectures import qwen3
from skerry_core.models.metadata import CheckpointMetadata


def read(metadata: CheckpointMetadata) -> ModelConfig:
    """Return the configuration. Raises WeightsError or ConfigError."""
    metadata.refuse("shared_expert_intermediate_size")
    config = qwen3.read(metadata)
    experts = ExpertsConfig(
        count=metadata.integer("num_experts", metadata.integer("num_local_experts", 128)),
        used=metadata.integer("num_experts_per_tok", 8),
        width=metadata.integer("moe_intermediate_size", 768),
        weighs_chosen=metadata.flag("norm_topk_prob", metadata.is_gguf),
    )
    dense = metadata.sequence("mlp_only_layers") if metadata.has("mlp_only_layers") else []
    step = metadata.integer("decoder_sparse_step", 1)
    layers = tuple(
        replace(layer, has_experts=index not in dense and (index + 1) % step == 0)
        for index, layer in enumerate(config.layers)
    )
    return replace(config, layers=layers, experts=experts)


_EXPERT = "model.layers.*.mlp.experts.#"
ARCHITECTURE = Architecture(
    read=read,
    tensors=renamed(
        {
            "model.layers.*.mlp.gate": "blk.*.ffn_gate_inp",
            f"{_EXPERT}.gate_proj": "blk.*.ffn_gate_exps",
            f"{_EXPERT}.up_proj": "blk.*.ffn_up_exps",
            f"{_EXPERT}.down_proj": "blk.*.ffn_down_exps",
        }
    ),
)
