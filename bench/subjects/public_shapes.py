"""Shapes of published models, and random weights of them made on a device: for measuring speed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from skerry_core.config import LayerConfig, ModelConfig, RopeConfig
from skerry_core.kernels.torch.decoder import DecoderWeights, LayerWeights
from skerry_core.models.metadata import CheckpointMetadata
from skerry_core.models.rope_scaling import read_rope

_LLAMA_3 = {
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip


def _llama_3(layers: int, head_dim: int) -> tuple[LayerConfig, ...]:
    rope = read_rope(CheckpointMetadata(_LLAMA_3, "config.json"), head_dim)
    return (LayerConfig(rope=rope),) * layers


_QWEN_2 = LayerConfig(rope=RopeConfig(theta=1_000_000.0))

PUBLIC_SHAPES = {
    "llama-3.1-8b": ModelConfig(
        architecture="llama", layers=_llama_3(32, head_dim=128), hidden_size=4096,
        intermediate_size=14_336,
        num_heads=32, num_kv_heads=8, head_dim=128, vocab_size=128_256, max_context=131_072,
        tied_embeddings=False,
    ),
    "llama-3.2-1b": ModelConfig(
        architecture="llama", layers=_llama_3(16, head_dim=64), hidden_size=2048,
        intermediate_size=8192,
        num_heads=32, num_kv_heads=8, head_dim=64, vocab_size=128_256, max_context=131_072,
    ),
    "qwen2.5-7b": ModelConfig(
        architecture="qwen2", layers=(_QWEN_2,) * 28, hidden_size=3584, intermediate_size=18_944,
        num_heads=28, num_kv_heads=4, head_dim=128, vocab_size=152_064, max_context=32_768,
        rms_norm_eps=1e-6, tied_embeddings=False, attention_bias=True,
    ),
}  # fmt: skip
"""From the models' own config.json files."""


@dataclass(frozen=True, slots=True)
class _Maker:
    device: torch.device
    dtype: torch.dtype
    generator: torch.Generator

    def matrix(self, rows: int, columns: int) -> Tensor:
        """Normal, scaled so that products keep the size of what goes in."""
        values = torch.empty(rows, columns, device=self.device, dtype=self.dtype)
        return values.normal_(std=columns**-0.5, generator=self.generator)

    def ones(self, size: int) -> Tensor:
        return torch.ones(size, device=self.device, dtype=self.dtype)

    def layer(self, c: ModelConfig) -> LayerWeights:
        outputs = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
        return LayerWeights(
            attention_norm=self.ones(c.hidden_size),
            qkv=self.matrix(outputs, c.hidden_size),
            qkv_bias=self.ones(outputs) if c.attention_bias else None,
            q_norm=self.ones(c.head_dim) if c.qk_norm else None,
            k_norm=self.ones(c.head_dim) if c.qk_norm else None,
            output=self.matrix(c.hidden_size, c.num_heads * c.head_dim),
            ffn_norm=self.ones(c.hidden_size),
            gate_up=self.matrix(2 * c.intermediate_size, c.hidden_size),
            down=self.matrix(c.hidden_size, c.intermediate_size),
        )


def random_weights(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> DecoderWeights:
    """Weights of a model that says nothing, made where they are used."""
    make = _Maker(device, dtype, torch.Generator(device).manual_seed(seed))
    embedding = make.matrix(config.vocab_size, config.hidden_size)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(make.layer(config) for _ in range(config.num_layers)),
        final_norm=make.ones(config.hidden_size),
        head=embedding
        if config.tied_embeddings
        else make.matrix(config.vocab_size, config.hidden_size),
    )
