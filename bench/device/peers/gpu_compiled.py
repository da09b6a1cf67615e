"""A decoder as gpt-fast writes it: plain Torch over a static cache, compiled by Inductor.

One layer is compiled, and serves all of them; a graph captures the whole step, which feeds itself.
All rows have one position. See github.com/meta-pytorch/gpt-fast, and PyTorch's FlexAttention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from bench.device.gpu_subject import captured
from skerry_core.config import ModelConfig
from skerry_core.kernels.torch.decoder import DecoderWeights, LayerWeights, rope_table

Attention = Literal["FlexAttention", "SDPA"]
LayerStep = Callable[..., Tensor]


class CompiledDecoder:
    """Decodes so many rows, greedily, on a cache of so many tokens."""

    def __init__(
        self, config: ModelConfig, weights: DecoderWeights, rows: int, size: int,
        attention: Attention, *, is_compiled: bool,
    ) -> None:  # fmt: skip
        self._config = config
        self._weights = weights
        self._attention = attention
        device, dtype = weights.embedding.device, weights.embedding.dtype
        shape = config.num_layers, 2, rows, config.num_kv_heads, size, config.head_dim
        self.kv = torch.randn(shape, dtype=dtype, device=device)
        self.ids = torch.zeros(rows, dtype=torch.long, device=device)
        self.position = torch.full((1,), size - 1, device=device)
        self.logits = torch.empty(0)
        self._positions = torch.arange(size, device=device)
        rope = config.layers[0].rope
        assert rope is not None
        self._rope = rope_table(rope, config.head_dim, size, device)
        self._mask: Any = None  # of one query, whose position is read when it attends
        if attention == "FlexAttention":
            self._mask = create_block_mask(
                _seen_from(self.position), None, None, 1, size, device=str(device)
            )
        self._layer: LayerStep = self._layer_step
        if is_compiled:
            options = {"coordinate_descent_tuning": True}
            compile_: Any = torch.compile
            self._layer = compile_(self._layer, fullgraph=True, dynamic=False, options=options)

    def run(self, position: int, count: int) -> None:
        """Decode `count` tokens, the first one at a position."""
        self.position.fill_(position)
        for _ in range(count):
            self.step()

    def capture(self, position: int) -> None:
        """Record a step, which is replayed from then on."""
        self.position.fill_(position)
        self.step = captured(self.step, self.ids.device)  # type: ignore[method-assign]

    def step(self) -> None:
        """Decode a token, and have it and its position ready for the next step."""
        w = self._weights
        x = w.embedding[self.ids]
        cos, sin = (part[self.position] for part in self._rope)
        for kv, layer in zip(self.kv, w.layers, strict=True):
            x = self._layer(x, kv[0], kv[1], cos, sin, self.position, self._matrices(layer))
        normed = self._norm(x, w.final_norm)
        self.logits = functional.linear(normed, cast(Tensor, w.head)).float()
        self.ids.copy_(self.logits.argmax(-1))
        self.position += 1

    def _layer_step(
        self, x: Tensor, keys: Tensor, values: Tensor, cos: Tensor, sin: Tensor,
        position: Tensor, matrices: tuple[Tensor, ...],
    ) -> Tensor:  # fmt: skip
        """Return the hidden states [B, hidden] after a layer, whose KV is [B, Hk, S, D] twice."""
        c = self._config
        attention_norm, qkv, output, ffn_norm, gate_up, down = matrices
        heads = functional.linear(self._norm(x, attention_norm), qkv)
        heads = heads.view(len(x), -1, 1, c.head_dim)
        q, k, v = heads.split([c.num_heads, c.num_kv_heads, c.num_kv_heads], dim=1)
        keys.index_copy_(2, position, _rotated(k, cos, sin))
        values.index_copy_(2, position, v)
        mixed = self._attend(_rotated(q, cos, sin), keys, values, position)
        x = x + functional.linear(mixed.reshape(len(x), -1), output)
        gate, up = functional.linear(self._norm(x, ffn_norm), gate_up).chunk(2, dim=-1)
        return x + functional.linear(functional.silu(gate) * up, down)

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> Tensor:
        if self._attention == "FlexAttention":
            mixed = flex_attention(q, keys, values, block_mask=self._mask, enable_gqa=True)
            return cast(Tensor, mixed)
        seen = (self._positions <= position)[None, None, None]
        return functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=seen, enable_gqa=True
        )

    def _norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self._config.rms_norm_eps)

    @staticmethod
    def _matrices(layer: LayerWeights) -> tuple[Tensor, ...]:
        names = "attention_norm", "qkv", "output", "ffn_norm", "gate_up", "down"
        return tuple(getattr(layer, name) for name in names)


def _seen_from(position: Tensor) -> Callable[..., Tensor]:
    """Return what says of each key whether it is at a position or before it."""
    return lambda row, head, query, key: key <= position[0]


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads [B, H, 1, D] by f32[1, D / 2], halves against each other."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
