"""Random weights of a model, made on a device: for measuring speed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from skerry_core.config import ModelConfig
from skerry_core.kernels.torch.decoder import DecoderWeights, LayerWeights


@dataclass(frozen=True, slots=True)
class _Maker:
    device: torch.device
    dtype: torch.dtype
    generator: torch.Generator

    def matrix(self, rows: int, columns: int) -> Tensor:
        """Make normal values that bfloat16 has, so that products keep the size of what goes in."""
        values = torch.empty(rows, columns, device=self.device, dtype=self.dtype)
        values.normal_(std=columns**-0.5, generator=self.generator)
        return values.bfloat16().to(self.dtype)

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
        tokens=range(config.vocab_size),
    )
