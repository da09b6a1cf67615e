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

from skerry_core.config import Activation
from skerry_core.kernels.activations import CLAMP, CLAMPED_SLOPE
from skerry_core.kernels.torch.quantized import Matrix
from skerry_core.kernels.torch.torch_math import tanh_f32


def of_one_rank(x: Tensor) -> Tensor:
    """Return what is whole already."""
    return x


@dataclass(frozen=True, slots=True)
class Ops:
    """Operations over T tokens. Activations have the weights' dtype; sums are kept in fp32.

    The last two are those of a rank that has a part of each layer: all call them at once.
    """

    linear: Callable[[Tensor, Matrix, Tensor | None], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    gated: Callable[[Tensor, Activation], Tensor]
    fixes_shapes: bool = False  # a product always has so many rows, needed or not
    reduce: Callable[[Tensor], Tensor] = of_one_rank  # sum over the ranks; x may be overwritten
    gather: Callable[[Tensor], Tensor] = of_one_rank  # [S, n] of each, side by side


def linear(x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
    """Multiply [T, in] by [out, in] and add [out]: [T, out]."""
    if not isinstance(weight, Tensor):
        weight = weight.dequantized(x.dtype)
    return functional.linear(x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm by root mean square (Zhang and Sennrich, 2019) over the last axis, in x's dtype."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def add_rms_norm(x: Tensor, branch: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the norm of `x + branch`, and that sum: both [T, hidden]."""
    total = x + branch
    return rms_norm(total, weight, eps), total


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first 2 n dimensions of `x` [T, heads, D] by `cos`, `sin` f32[T, n], halves
    against each other."""
    half = cos.shape[-1]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    cos, sin = cos[:, None], sin[:, None]
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    if 2 * half == x.shape[-1]:
        return rotated.to(x.dtype)
    return torch.cat([rotated.to(x.dtype), x[..., 2 * half :]], dim=-1)


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """Compute what goes into a down matrix of [T, 2 * width], gates first: [T, width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    if activation == "silu":
        return functional.silu(gate) * up
    if activation == "gelu_tanh":
        return functional.gelu(gate, approximate="tanh") * up
    gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP)
    return (up + 1) * gate * torch.sigmoid(CLAMPED_SLOPE * gate)


def capped(x: Tensor, cap: float | None) -> Tensor:
    """Compute `cap * tanh(x / cap)` of f32; x itself without a cap."""
    return x if cap is None else cap * tanh_f32(x / cap)


TORCH_OPS = Ops(linear, rms_norm, add_rms_norm, rotate, gated)
