"""Weights of 8 and 4 bits as bf16, two in each register, without a conversion for each.

A bf16 of 128 to 255 has its integer in its seven low bits: a byte's are put there, and what is too
much is subtracted, both exactly. The products of one register are independent, so four bytes take
a dozen instructions. Each function gives a tensor of ones too, in the layout of the weights: what
multiplies both then lies in memory once.

Assembly runs on GPUs alone; in Triton's interpreter, and beside activations of other dtypes, values
are cast, to the same.
"""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

# Outputs are four weights, two in each register, and ones; then the input, four bytes.
INT8 = """{
.reg .b32 t, s, mask, magic, sign, least, one;
mov.b32 mask, 0x007F007F; mov.b32 magic, 0x43004300; mov.b32 one, 0x3F803F80;
mov.b32 sign, 0x00800080; mov.b32 least, 0xC300C300;
prmt.b32 t, $4, 0, 0x4140; lop3.b32 s, t, sign, least, 0xEA; lop3.b32 t, t, mask, magic, 0xEA;
fma.rn.bf16x2 $0, t, one, s;
prmt.b32 t, $4, 0, 0x4342; lop3.b32 s, t, sign, least, 0xEA; lop3.b32 t, t, mask, magic, 0xEA;
fma.rn.bf16x2 $1, t, one, s;
mov.b32 $2, 0x3F803F80; mov.b32 $3, 0x3F803F80;
}"""
"""128 and seven bits, less 128, or 256 where the sign is set: a constant with that bit in it."""

FP8 = """{
.reg .b32 t, u, sign, rest, scale, zero;
mov.b32 sign, 0x80008000; mov.b32 rest, 0x07F007F0; mov.b32 scale, 0x7B807B80;
mov.b32 zero, 0x80008000;
prmt.b32 t, $4, 0, 0x1404; shr.u32 u, t, 4; and.b32 t, t, sign; lop3.b32 t, u, rest, t, 0xEA;
fma.rn.bf16x2 $0, t, scale, zero;
prmt.b32 t, $4, 0, 0x3424; shr.u32 u, t, 4; and.b32 t, t, sign; lop3.b32 t, u, rest, t, 0xEA;
fma.rn.bf16x2 $1, t, scale, zero;
mov.b32 $2, 0x3F803F80; mov.b32 $3, 0x3F803F80;
}"""
"""e4m3's exponent and mantissa in the low bits of bf16's, and 2^120 for the difference of their
biases; a byte of NaN is 480."""

# Outputs are the low halves of four bytes, their high halves, and ones.
UINT4 = """{
.reg .b32 t, u, mask, magic, least, one;
mov.b32 mask, 0x000F000F; mov.b32 magic, 0x43004300; mov.b32 least, 0xC300C300;
mov.b32 one, 0x3F803F80;
prmt.b32 t, $6, 0, 0x4140; shr.u32 u, t, 4;
lop3.b32 t, t, mask, magic, 0xEA; fma.rn.bf16x2 $0, t, one, least;
lop3.b32 u, u, mask, magic, 0xEA; fma.rn.bf16x2 $2, u, one, least;
prmt.b32 t, $6, 0, 0x4342; shr.u32 u, t, 4;
lop3.b32 t, t, mask, magic, 0xEA; fma.rn.bf16x2 $1, t, one, least;
lop3.b32 u, u, mask, magic, 0xEA; fma.rn.bf16x2 $3, u, one, least;
mov.b32 $4, 0x3F803F80; mov.b32 $5, 0x3F803F80;
}"""

_INT8, _FP8, _UINT4 = tl.constexpr(INT8), tl.constexpr(FP8), tl.constexpr(UINT4)


@triton.jit
def widened_8(quants, dtype: tl.constexpr, IS_PACKED: tl.constexpr):
    """Return i8, or e4m3fn, as they are in a wider dtype, and ones."""
    if IS_PACKED and quants.dtype == tl.int8:
        return tl.inline_asm_elementwise(
            _INT8, "=r,=r,=r,=r,r", [quants], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True,
            pack=4,
        )  # fmt: skip
    if IS_PACKED:
        return tl.inline_asm_elementwise(
            _FP8, "=r,=r,=r,=r,r", [quants.to(tl.uint8, bitcast=True)],
            dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4,
        )  # fmt: skip
    return quants.to(dtype), tl.full(quants.shape, 1.0, dtype)


@triton.jit
def widened_4(quants, dtype: tl.constexpr, IS_PACKED: tl.constexpr):
    """Return the low and the high halves of u8 in a wider dtype, and ones."""
    if IS_PACKED:
        return tl.inline_asm_elementwise(
            _UINT4, "=r,=r,=r,=r,=r,=r,r", [quants],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=4,
        )  # fmt: skip
    low, high = (quants & 15).to(tl.int32).to(dtype), (quants >> 4).to(tl.int32).to(dtype)
    return low, high, tl.full(quants.shape, 1.0, dtype)
