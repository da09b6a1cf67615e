"""Products with bf16 weights in 12 bits (BF12): widened as they are read, to the same bits."""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from skerry_core.kernels.torch.lossless import TILE_OUTPUTS, TILE_WORDS, BF12Planes


def lossless_product(x: Tensor, weight: BF12Planes, rows_of_tile: int) -> Tensor:
    """Multiply [T, in] by [out, in]: [T, out]. A row's bits depend on `rows_of_tile` alone."""
    num_outputs, inner = weight.shape
    out = x.new_empty((len(x), num_outputs))
    of_eight = x.view(len(x), -1, 8).transpose(1, 2).contiguous()
    _product_12[(triton.cdiv(num_outputs, TILE_OUTPUTS), triton.cdiv(len(x), rows_of_tile))](
        of_eight, *_planes(weight), out, len(x), num_outputs, inner // 8,
        ROWS=rows_of_tile, OUTPUTS=TILE_OUTPUTS, WORDS=TILE_WORDS,
        num_warps=1 if rows_of_tile == 16 else 2, num_stages=3,
    )  # fmt: skip
    return out


def decoded(weight: BF12Planes, dtype: torch.dtype) -> Tensor:
    """Return the weights themselves, [out, in]: for many rows, which wait for arithmetic alone."""
    num_outputs, inner = weight.shape
    out = torch.empty((num_outputs, inner), dtype=dtype, device=weight.device)
    _decode_12[(triton.cdiv(num_outputs, TILE_OUTPUTS), triton.cdiv(inner, 8 * TILE_WORDS))](
        *_planes(weight), out, num_outputs, inner // 8,
        OUTPUTS=TILE_OUTPUTS, WORDS=TILE_WORDS, num_warps=1,
    )  # fmt: skip
    return out


def _planes(weight: BF12Planes) -> tuple[Tensor, ...]:
    return (
        weight.signs, weight.codes, weight.firsts, weight.starts, weight.places, weight.pairs,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _product_12(
    x, signs, codes, firsts, starts, places, pairs, out, rows, outputs, words,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Multiply [ROWS, OUTPUTS] of x[rows, 8, words], eighth by eighth of each tile."""
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    tiles = tl.cdiv(words, WORDS)
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for tile in range(0, tiles):
        g = tile * WORDS + tl.arange(0, WORDS)
        p0, p1, p2, p3 = _pairs(
            signs, codes, firsts, starts, places, pairs, n, outputs, g, words,
            tl.program_id(0) * tiles + tile, OUTPUTS, WORDS,
        )  # fmt: skip
        at = x + r[:, None].to(tl.int64) * 8 * words + g[None]
        is_own = (r < rows)[:, None] & (g < words)[None]
        total = _add(total, at, p0, 0, words, is_own)
        total = _add(total, at, p1, 1, words, is_own)
        total = _add(total, at, p2, 2, words, is_own)
        total = _add(total, at, p3, 3, words, is_own)
    at = out + r[:, None].to(tl.int64) * outputs + n[None]
    tl.store(at, total.to(out.dtype.element_ty), mask=(r < rows)[:, None] & (n < outputs)[None])


@triton.jit
def _add(total, at, pair, j: tl.constexpr, words, is_own):
    """Add the products of weights j and j + 4 of each eight."""
    first = tl.load(at + j * words, mask=is_own, other=0.0)
    second = tl.load(at + (j + 4) * words, mask=is_own, other=0.0)
    low, high = _low(pair).to(first.dtype), _high(pair).to(first.dtype)
    total = tl.dot(first, tl.trans(low), total, input_precision="ieee")
    return tl.dot(second, tl.trans(high), total, input_precision="ieee")


@triton.jit
def _decode_12(
    signs, codes, firsts, starts, places, pairs, out, outputs, words,
    OUTPUTS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Write one tile's weights."""
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    g = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    tile = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    p0, p1, p2, p3 = _pairs(
        signs, codes, firsts, starts, places, pairs, n, outputs, g, words, tile, OUTPUTS, WORDS
    )
    at = out + (n[:, None].to(tl.int64) * words + g[None]) * 8
    is_own = (n < outputs)[:, None] & (g < words)[None]
    _write(at, p0, 0, is_own)
    _write(at, p1, 1, is_own)
    _write(at, p2, 2, is_own)
    _write(at, p3, 3, is_own)


@triton.jit
def _write(at, pair, j: tl.constexpr, is_own):
    tl.store(at + j, _low(pair).to(at.dtype.element_ty), mask=is_own)
    tl.store(at + j + 4, _high(pair).to(at.dtype.element_ty), mask=is_own)


@triton.jit
def _pairs(
    signs, codes, firsts, starts, places, pairs, n, outputs, g, words, tile,
    OUTPUTS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Return weights j and j + 4 of each eight of a tile, for j from 0 to 3: u32[OUTPUTS, WORDS],
    bf16 in each half."""
    at = n[:, None].to(tl.int64) * words + g[None]
    is_own = (n < outputs)[:, None] & (g < words)[None]
    sign = tl.load(signs + at, mask=is_own, other=0)
    code = tl.load(codes + at, mask=is_own, other=0).to(tl.uint32, bitcast=True)
    first = tl.load(firsts + n, mask=n < outputs, other=0).to(tl.uint32)[:, None] * 0x00800080
    low, high = sign.to(tl.uint32), (sign >> 32).to(tl.uint32)
    p0 = _signed(low << 8, low, code, first)
    p1 = _signed(low, low >> 8, code >> 4, first)
    p2 = _signed(high << 8, high, code >> 8, first)
    p3 = _signed(high, high >> 8, code >> 12, first)
    p0 = _patched(p0, starts, places, pairs, tile * 4, OUTPUTS, WORDS)
    p1 = _patched(p1, starts, places, pairs, tile * 4 + 1, OUTPUTS, WORDS)
    p2 = _patched(p2, starts, places, pairs, tile * 4 + 2, OUTPUTS, WORDS)
    p3 = _patched(p3, starts, places, pairs, tile * 4 + 3, OUTPUTS, WORDS)
    return p0, p1, p2, p3


@triton.jit
def _signed(sign, mantissa, code, first):
    exponent = (code & 0x000F000F) * 128 + first
    return (sign & 0x80008000) | (mantissa & 0x007F007F) | exponent


@triton.jit
def _patched(made, starts, places, pairs, number, OUTPUTS: tl.constexpr, WORDS: tl.constexpr):
    """Put the pairs that no window has in their places."""
    i, k = tl.arange(0, OUTPUTS)[:, None], tl.arange(0, WORDS)[None]
    for e in range(tl.load(starts + number), tl.load(starts + number + 1)):
        place, pair = tl.load(places + e), tl.load(pairs + e).to(tl.uint32, bitcast=True)
        made = tl.where((i == place // WORDS) & (k == place % WORDS), pair, made)
    return made


@triton.jit
def _low(pair):
    return (pair & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _high(pair):
    return (pair >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
