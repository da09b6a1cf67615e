"""What a decoder does besides attention, in plain Torch: the meaning of the fused kernels.

`Ops` is the set that a decoder is given; `torch_invariant`, `triton_ops` and `triton_matmul` have
others under the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from skerry_core.kernels.torch.quantized import Matrix, QuantizedMatrix


@dataclass(frozen=True, slots=True)
class Ops:
    """Operations over T tokens. Activations have the weights' dtype; sums are kept in fp32."""

    linear: Callable[[Tensor, Matrix, Tensor | None], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    swiglu: Callable[[Tensor], Tensor]


def linear(x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
    """[T, in] by [out, in], plus [out]: [T, out]."""
    if isinstance(weight, QuantizedMatrix):
        weight = weight.dequantized(x.dtype)
    return functional.linear(x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm (Zhang and Sennrich, 2019) over the last axis, in x's dtype."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def add_rms_norm(x: Tensor, branch: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of `x + branch`, and that sum: both [T, hidden]."""
    total = x + branch
    return rms_norm(total, weight, eps), total


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of `x` [T, heads, D] by `cos`, `sin` f32[T, D / 2], halves rotated."""
    half = x.shape[-1] // 2
    first, second = x[..., :half].float(), x[..., half:].float()
    cos, sin = cos[:, None], sin[:, None]
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return rotated.to(x.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """SwiGLU (Shazeer, 2020) of [T, 2 * intermediate], gates first: [T, intermediate]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


TORCH_OPS = Ops(linear, rms_norm, add_rms_norm, rotate, swiglu)
