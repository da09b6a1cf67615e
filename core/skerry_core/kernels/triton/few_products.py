"""Products of a decode step of few rows, with what stands before and behind them in a layer.

A norm before a product multiplies its x by gains as it is read, and its sums by the inverse of the
root mean square, which every program sums for itself. SwiGLU and the residual stream are applied to
sums before they are rounded. So a layer is four products and its attention, without launches for
norms, activations and additions, which read and write little and wait for each other.

A program multiplies 16 outputs; the inner dimension is dealt out to its warps. On Hopper a kernel
begins while the one before it ends (programmatic dependent launch): it finds its places, and waits
before it reads what that one wrote.
"""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from skerry_core.kernels.triton.dependent_launch import launch_options, prefetch

MOST_ROWS = 16
_OUTPUTS = 16  # of a program: what tensor cores take
_AHEAD = 4096  # bytes of a row of weights: as many as the loop's first loads, and one more


def normed_linear(
    x: Tensor, gain: Tensor, eps: float, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Norm [T, in] by root mean square with gains [in], multiply by [out, in] and add [out]."""
    return _launch(x, weight, len(weight), gain=gain, eps=eps, bias=bias)


def normed_swiglu(x: Tensor, gain: Tensor, eps: float, weight: Tensor) -> Tensor:
    """Norm [T, in], multiply by [2 * out, in], gates first, and compute SwiGLU: [T, out]."""
    return _launch(x, weight, len(weight) // 2, gain=gain, eps=eps, is_gated=True)


def linear_onto(x: Tensor, weight: Tensor, bias: Tensor | None, stream: Tensor) -> Tensor:
    """Multiply [T, in] by [out, in], add [out] and the residual stream [T, out]."""
    return _launch(x, weight, len(weight), bias=bias, stream=stream)


def _launch(
    x: Tensor, weight: Tensor, num_outputs: int, *, gain: Tensor | None = None, eps: float = 0.0,
    bias: Tensor | None = None, stream: Tensor | None = None, is_gated: bool = False,
) -> Tensor:  # fmt: skip
    count, inner = x.shape
    out = x.new_empty((count, num_outputs))
    _product_few[(triton.cdiv(num_outputs, _OUTPUTS),)](
        x, x if gain is None else gain, weight, x if bias is None else bias,
        x if stream is None else stream, out, count, num_outputs, inner, eps,
        IS_NORMED=gain is not None, IS_GATED=is_gated, HAS_BIAS=bias is not None,
        IS_ADDED=stream is not None, LINES=_AHEAD // (2 if is_gated else 1) // 64,
        ROWS=8 if count <= 8 else MOST_ROWS, OUTPUTS=_OUTPUTS, LANES=16, INNER=32,
        num_warps=4, num_stages=3 if is_gated else 4, **launch_options(x.device),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["rows"])
def _product_few(
    x, gain, weight, bias, stream, out, rows, outputs, inner, eps,
    IS_NORMED: tl.constexpr, IS_GATED: tl.constexpr, HAS_BIAS: tl.constexpr,
    IS_ADDED: tl.constexpr, HAS_PDL: tl.constexpr, LINES: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, LANES: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Multiply [OUTPUTS, rows]."""
    r, n = tl.arange(0, ROWS), tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, LANES)[:, None] * INNER + tl.arange(0, INNER)[None]
    # What is beyond rows and outputs is read as the last, and not written.
    row, output = tl.minimum(r, rows - 1).to(tl.int64), tl.minimum(n, outputs - 1).to(tl.int64)
    values = x + row[None, None] * inner + k[:, :, None]
    weights = weight + output[None, :, None] * inner + k[:, None]
    total = tl.zeros([LANES, OUTPUTS, ROWS], tl.float32)
    ups = tl.zeros([LANES, OUTPUTS, ROWS], tl.float32)
    squares = tl.zeros([LANES, INNER, ROWS], tl.float32)
    if HAS_PDL:
        gdc_launch_dependents()
        line = tl.arange(0, LINES) * (512 // weight.dtype.element_ty.primitive_bitwidth)
        ahead = weight + output[:, None] * inner + tl.minimum(line, inner - 1)[None]
        prefetch(ahead)
        if IS_GATED:
            prefetch(ahead + outputs.to(tl.int64) * inner)
        gdc_wait()
    for start in range(0, inner, LANES * INNER):
        is_inner = start + k < inner
        value = tl.load(values + start, mask=is_inner[:, :, None], other=0.0)
        wide = tl.load(weights + start, mask=is_inner[:, None], other=0.0)
        if IS_NORMED:
            single = value.to(tl.float32)
            squares += single * single
            gains = tl.load(gain + start + k, mask=is_inner, other=0.0).to(tl.float32)
            value = (single * gains[:, :, None]).to(value.dtype)
        total = tl.dot(wide, value, total, input_precision="ieee")
        if IS_GATED:
            up = tl.load(
                weights + outputs.to(tl.int64) * inner + start, mask=is_inner[:, None], other=0.0
            )
            ups = tl.dot(up, value, ups, input_precision="ieee")
    mixed = tl.sum(total, axis=0)
    if IS_NORMED:
        mean = tl.sum(tl.sum(squares, axis=0), axis=0) / inner
        scale = (1.0 / tl.sqrt_rn(mean + eps))[None]
        mixed *= scale
        if IS_GATED:
            mixed = mixed / (1.0 + tl.exp(-mixed)) * (tl.sum(ups, axis=0) * scale)
    if HAS_BIAS:
        mixed += tl.load(bias + output).to(tl.float32)[:, None]
    at = r[None] * outputs + n[:, None]
    is_own = (r < rows)[None] & (n < outputs)[:, None]
    if IS_ADDED:
        mixed += tl.load(stream + at, mask=is_own, other=0.0).to(tl.float32)
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=is_own)
