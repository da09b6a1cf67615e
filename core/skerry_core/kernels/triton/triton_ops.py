"""What a decoder does besides attention and products, in fused Triton kernels.

`rms_norm`, `add_rms_norm` and `swiglu` mean what they do in `torch_ops`. `rotate_and_store` is all
that lies between a layer's projections and its attention, in one launch, unless attention does it.
"""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.torch.quantized import LARGEST
from skerry_core.kernels.triton.triton_math import in_8_bits

_BLOCK: tl.constexpr = tl.constexpr(BLOCK_SIZE)
_CHUNK = 1024  # elements of a SwiGLU program


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm over the last axis of [..., width], in x's dtype."""
    rows, normed = x.reshape(-1, x.shape[-1]), torch.empty_like(x)
    _launch_norm(rows, rows, weight, normed, rows, eps, is_sum=False)
    return normed


def add_rms_norm(x: Tensor, branch: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the norm of `x + branch`, and that sum: both [T, hidden]."""
    total, normed = torch.empty_like(x), torch.empty_like(x)
    _launch_norm(x, branch, weight, normed, total, eps, is_sum=True)
    return normed, total


def _launch_norm(
    x: Tensor, branch: Tensor, weight: Tensor, normed: Tensor, total: Tensor, eps: float,
    *, is_sum: bool,
) -> None:  # fmt: skip
    width = x.shape[-1]
    padded = triton.next_power_of_2(width)
    _norm[(x.shape[0],)](
        x, branch, weight, normed, total, width, eps, IS_SUM=is_sum, PADDED=padded,
        num_warps=min(max(padded // 512, 1), 16),
    )  # fmt: skip


@triton.jit
def _norm(x, branch, weight, normed, total, width, eps, IS_SUM: tl.constexpr, PADDED: tl.constexpr):
    i = tl.arange(0, PADDED)
    at, is_own = tl.program_id(0).to(tl.int64) * width + i, i < width
    value = tl.load(x + at, mask=is_own, other=0.0)
    if IS_SUM:
        # The sum is rounded to the activations' dtype before it is normed, as if it were read back.
        value = (value.to(tl.float32) + tl.load(branch + at, mask=is_own, other=0.0)).to(
            value.dtype
        )
        tl.store(total + at, value, mask=is_own)
    wide = value.to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(wide * wide, axis=0) / width + eps)
    gain = tl.load(weight + i, mask=is_own, other=0.0).to(tl.float32)
    tl.store(normed + at, (wide * scale * gain).to(value.dtype), mask=is_own)


def swiglu(gate_up: Tensor) -> Tensor:
    """Compute SwiGLU (Shazeer, 2020) of [T, 2 * intermediate], gates first: [T, intermediate]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, width))
    _swiglu[(rows, triton.cdiv(width, _CHUNK))](gate_up, out, width, CHUNK=_CHUNK)
    return out


@triton.jit
def _swiglu(gate_up, out, width, CHUNK: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    gate = tl.load(gate_up + row * 2 * width + i, mask=i < width, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + i, mask=i < width, other=0.0)
    value = gate / (1.0 + tl.exp(-gate)) * up.to(tl.float32)
    tl.store(out + row * width + i, value.to(out.dtype.element_ty), mask=i < width)


@dataclass(frozen=True, slots=True)
class NewHeads:
    """What becomes of heads between a layer's projections and its attention.

    Queries and keys are normed, and rotated by their positions, halves rotated; keys and values
    are written to KV.
    """

    slots: Tensor  # i32[T]  where a token's KV goes: block * 64 + slot
    rope: tuple[Tensor, Tensor] | None  # cosines and sines, f32[max_context, D / 2]
    q_norm: Tensor | None = None  # [D]  norms of single heads (Qwen3)
    k_norm: Tensor | None = None
    eps: float = 0.0

    @property
    def is_normed(self) -> bool:
        return self.q_norm is not None and self.k_norm is not None


def rotate_and_store(
    heads: Tensor,  # [T, H + 2 * Hk, D]: queries, keys, values; queries are rotated in place
    kv: Tensor,  # [2, N, Hk, 64, D]
    positions: Tensor,  # i32[T]
    new: NewHeads,
    *,
    scales: Tensor | None = None,  # f32[2, N, Hk, 64]: KV is in 8 bits, and times this
) -> None:
    """Do what is to be done with all heads of new tokens."""
    tokens, total, width = heads.shape
    kv_heads = kv.shape[2]
    cos, sin = (heads, heads) if new.rope is None else new.rope
    _rotate_and_store[(tokens, 3)](
        heads, kv, kv if scales is None else scales, positions, new.slots, cos, sin,
        heads if new.q_norm is None else new.q_norm, heads if new.k_norm is None else new.k_norm,
        kv.stride(0), new.eps,
        HEADS=total - 2 * kv_heads, KV_HEADS=kv_heads, WIDTH=width,
        PADDED_HEADS=triton.next_power_of_2(total - 2 * kv_heads),
        PADDED_KV_HEADS=triton.next_power_of_2(kv_heads),
        PADDED_HALF=triton.next_power_of_2(width // 2),
        IS_NORMED=new.is_normed, IS_ROTATED=new.rope is not None, MOST=LARGEST.get(kv.dtype, 0),
    )  # fmt: skip


def feed(token_ids: Tensor, sources: Tensor, made: Tensor) -> None:
    """Put tokens that the step before made into `token_ids` i32[T]: `made` i64[S] at `sources`
    i32[T], where that is at least 0. Where none was possible, -1, the row runs with any."""
    count = len(token_ids)
    _feed[(triton.cdiv(count, _CHUNK),)](token_ids, sources, made, count, CHUNK=_CHUNK)


@triton.jit(do_not_specialize=["tokens"])
def _feed(token_ids, sources, made, tokens, CHUNK: tl.constexpr):
    i = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    source = tl.load(sources + i, mask=i < tokens, other=-1)
    token = tl.load(made + source, mask=source >= 0, other=0).to(tl.int32)
    tl.store(token_ids + i, tl.maximum(token, 0), mask=source >= 0)


@triton.jit
def _rotate_and_store(
    heads, kv, scales, positions, slots, cos, sin, q_norm, k_norm, value_offset, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED_HEADS: tl.constexpr,
    PADDED_KV_HEADS: tl.constexpr, PADDED_HALF: tl.constexpr, IS_NORMED: tl.constexpr,
    IS_ROTATED: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Handle one token's queries, keys or values."""
    token, part = tl.program_id(0), tl.program_id(1)
    base = heads + token.to(tl.int64) * (HEADS + 2 * KV_HEADS) * WIDTH
    position, slot = tl.load(positions + token), tl.load(slots + token)
    own = tl.arange(0, PADDED_KV_HEADS)
    if part == 0:
        q1, q2, at, is_own = _halves(base, tl.arange(0, PADDED_HEADS), HEADS, PADDED_HALF, WIDTH)
        if IS_NORMED:
            q1, q2 = _normed(q1, q2, q_norm, eps, PADDED_HALF, WIDTH)
        if IS_ROTATED:
            q1, q2 = _rotated(q1, q2, cos, sin, position, PADDED_HALF, WIDTH)
        tl.store(base + at, q1.to(base.dtype.element_ty), mask=is_own)
        tl.store(base + at + WIDTH // 2, q2.to(base.dtype.element_ty), mask=is_own)
    elif part == 1:
        store_keys(
            base + HEADS * WIDTH, kv, scales, position, slot, own, cos, sin, k_norm, eps,
            KV_HEADS, WIDTH, PADDED_HALF, IS_NORMED, IS_ROTATED, MOST,
        )  # fmt: skip
    else:
        store_values(
            base + (HEADS + KV_HEADS) * WIDTH, kv, scales, slot, own, value_offset,
            KV_HEADS, WIDTH, PADDED_HALF, MOST,
        )  # fmt: skip


@triton.jit
def store_keys(
    keys, kv, scales, position, slot,
    h,  # of heads, powers of two in all: which ones
    cos, sin, k_norm, eps,
    KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    IS_NORMED: tl.constexpr, IS_ROTATED: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Store some keys of one token, whose first lies at `keys`."""
    k1, k2, _, _ = _halves(keys, h, KV_HEADS, HALF, WIDTH)
    if IS_NORMED:
        k1, k2 = _normed(k1, k2, k_norm, eps, HALF, WIDTH)
    if IS_ROTATED:
        k1, k2 = _rotated(k1, k2, cos, sin, position, HALF, WIDTH)
    # Rounded as the activations are, so that KV holds what a plain path would put there.
    dtype = keys.dtype.element_ty
    k1, k2 = k1.to(dtype).to(tl.float32), k2.to(dtype).to(tl.float32)
    _store(kv, scales, k1, k2, slot, h, KV_HEADS, HALF, WIDTH, MOST)


@triton.jit
def store_values(
    values, kv, scales, slot, h, value_offset,
    KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Store some values of one token, whose first lies at `values`."""
    v1, v2, _, _ = _halves(values, h, KV_HEADS, HALF, WIDTH)
    _store(
        kv + value_offset, scales + value_offset // WIDTH, v1, v2, slot, h,
        KV_HEADS, HALF, WIDTH, MOST,
    )  # fmt: skip


@triton.jit
def _halves(base, h, COUNT: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr):
    """Load both halves f32[heads, HALF] of heads h; where the first lie, which are real."""
    d = tl.arange(0, HALF)
    at = h[:, None] * WIDTH + d[None]
    is_own = (h < COUNT)[:, None] & (d < WIDTH // 2)[None]
    first = tl.load(base + at, mask=is_own, other=0.0).to(tl.float32)
    second = tl.load(base + at + WIDTH // 2, mask=is_own, other=0.0).to(tl.float32)
    return first, second, at, is_own


@triton.jit
def _normed(first, second, weight, eps, HALF: tl.constexpr, WIDTH: tl.constexpr):
    """Norm each head, rounded to the weights' dtype as a product would leave it."""
    d = tl.arange(0, HALF)
    is_own = d < WIDTH // 2
    squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
    scale = (1.0 / tl.sqrt_rn(squares / WIDTH + eps))[:, None]
    low = tl.load(weight + d, mask=is_own, other=0.0).to(tl.float32)[None]
    high = tl.load(weight + d + WIDTH // 2, mask=is_own, other=0.0).to(tl.float32)[None]
    dtype = weight.dtype.element_ty
    return (first * scale * low).to(dtype).to(tl.float32), (second * scale * high).to(dtype).to(
        tl.float32
    )


@triton.jit
def _rotated(first, second, cos, sin, position, HALF: tl.constexpr, WIDTH: tl.constexpr):
    d = tl.arange(0, HALF)
    at, is_own = position.to(tl.int64) * (WIDTH // 2) + d, d < WIDTH // 2
    c = tl.load(cos + at, mask=is_own, other=0.0)[None]
    s = tl.load(sin + at, mask=is_own, other=0.0)[None]
    return first * c - second * s, second * c + first * s


@triton.jit
def _store(
    kv, scales, first, second, slot, h,
    COUNT: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Store heads of one token in their slot; in 8 bits as shares of the largest of each head."""
    d = tl.arange(0, HALF)
    own = (slot // _BLOCK * COUNT + h).to(tl.int64) * _BLOCK + slot % _BLOCK
    if MOST:
        largest = tl.maximum(tl.max(tl.abs(first), axis=1), tl.max(tl.abs(second), axis=1))
        scale = tl.maximum(largest, 1e-12) / MOST
        tl.store(scales + own, scale, mask=h < COUNT)
        first = in_8_bits(first / scale[:, None], MOST)
        second = in_8_bits(second / scale[:, None], MOST)
    at = own[:, None] * WIDTH + d[None]
    is_own = (h < COUNT)[:, None] & (d < WIDTH // 2)[None]
    tl.store(kv + at, first.to(kv.dtype.element_ty), mask=is_own)
    tl.store(kv + at + WIDTH // 2, second.to(kv.dtype.element_ty), mask=is_own)
