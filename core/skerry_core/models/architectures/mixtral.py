"""Mixtral (Jiang et al., 2024): a Mistral whose feed-forward networks are experts.

In GGUF it is a Llama with experts.
"""

from __future__ import annotations

from dataclasses import replace

from skerry_core.config import ExpertsConfig, ModelConfig
from skerry_core.models.architecture import Architecture, renamed
from skerry_core.models.architectures import mistral
from skerry_core.models.metadata import CheckpointMetadata


def read(metadata: CheckpointMetadata) -> ModelConfig:
    """Return the configuration. Raises WeightsError or ConfigError."""
    config = mistral.read(metadata)
    experts = ExpertsConfig(
        count=metadata.integer("num_local_experts"),
        used=metadata.integer("num_experts_per_tok", 2),
        width=config.intermediate_size,
    )
    layers = tuple(replace(layer, has_experts=True) for layer in config.layers)
    return replace(config, layers=layers, experts=experts)


_EXPERT = "model.layers.*.block_sparse_moe.experts.#"
ARCHITECTURE = Architecture(
    read=read,
    tensors=renamed(
        {
            "model.layers.*.block_sparse_moe.gate": "blk.*.ffn_gate_inp",
            f"{_EXPERT}.w1": "blk.*.ffn_gate_exps",
            f"{_EXPERT}.w3": "blk.*.ffn_up_exps",
            f"{_EXPERT}.w2": "blk.*.ffn_down_exps",
        }
    ),
)
