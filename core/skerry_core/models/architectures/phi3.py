"""Phi-3 and Phi-4 (Abdin et al., 2024): a Llama with fused projections, rotary embeddings of a part
of each head, and LongRoPE."""

from __future__ import annotations

from skerry_core.config import ModelConfig
from skerry_core.models.architecture import Architecture, renamed
from skerry_core.models.architectures import llama
from skerry_core.models.metadata import CheckpointMetadata
from skerry_core.models.tensor_names import Fused

_QKV = Fused(("blk.*.attn_q", "blk.*.attn_k", "blk.*.attn_v"))
_GATE_UP = Fused(("blk.*.ffn_gate", "blk.*.ffn_up"))


def read(metadata: CheckpointMetadata) -> ModelConfig:
    """Return the configuration. Raises WeightsError or ConfigError."""
    if metadata.integer("window", 0, least=0) == 0:  # GGUF's word for none
        metadata = metadata.without("window")
    config = llama.read(metadata, takes_partial_rotary=True)
    if not metadata.has("sliding_window"):
        return config
    window = metadata.integer("sliding_window")
    return llama.with_windows(config, [window] * config.num_layers)


ARCHITECTURE = Architecture(
    read=read,
    tensors=renamed(
        {
            "model.layers.*.self_attn.qkv_proj": _QKV,
            "model.layers.*.mlp.gate_up_proj": _GATE_UP,
        }
    ),
    gguf_tensors={"blk.*.attn_qkv": _QKV, "blk.*.ffn_up": _GATE_UP},
)
