"""Matrices of 4- and 8-bit weights in Torch: GGML's rows of blocks, taken apart into planes, and
floats that are narrowed here.

A weight is `scale * q`, or `scale * q + minimum`, where 16 or 32 neighbours of a row, or the whole
row, share scale and minimum. GGML keeps each block's scales beside its quants, at odd addresses;
planes of their own are what a GPU reads at full width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from skerry_core.kernels.torch.lossless import BF12Planes, encoded
from skerry_core.weights.codebooks import IQ4_VALUES

FORMATS = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "UINT4"),
)
"""What `unpack` takes."""

Narrow = Literal["int8", "fp8"]
"""Formats of 8 bits, of weights or of KV; fp8 is e4m3fn."""

Rounded = Narrow | Literal["int4"]
"""Formats that round weights of floats."""

NarrowWeights = Rounded | Literal["bf12"]
"""Formats that weights of floats can be brought into; bf12 loses nothing."""

NARROW_DTYPES: dict[Narrow, torch.dtype] = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
LARGEST = {torch.int8: 127, torch.float8_e4m3fn: 448}
"""Values of 8 bits are shares of it, times a scale."""

FP8_CAPABILITY = (8, 9)  # of CUDA devices that have it: Ada; Hopper is (9, 0)


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """[rows, columns]. Each byte of a 4-bit row has weight i of its group of 32 in its low half,
    weight i + 16 in its high one."""

    quants: Tensor  # i8 or e4m3fn[rows, columns], or u8[rows, columns / 2]: 4 bits
    scales: Tensor  # f16[rows, columns / group]; f32 of e4m3fn
    minima: Tensor | None  # f16[rows, columns / group]

    @property
    def bits(self) -> int:
        return 4 if self.quants.dtype is torch.uint8 else 8

    @property
    def group(self) -> int:
        """Return how many weights share a scale: 32, or 16 with 8 bits; a whole row of e4m3fn."""
        return self.shape[1] // self.scales.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        rows, width = self.quants.shape
        return rows, width * 8 // self.bits

    @property
    def device(self) -> torch.device:
        return self.quants.device

    @property
    def num_bytes(self) -> int:
        planes = (self.quants, self.scales, self.minima)
        return sum(plane.nbytes for plane in planes if plane is not None)

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """Return the weights themselves, [rows, columns]."""
        q = self.quants if self.bits == 8 else _nibbles(self.quants)
        values = q.reshape(*self.scales.shape, -1).float() * self.scales[..., None].float()
        if self.minima is not None:
            values += self.minima[..., None].float()
        return values.reshape(self.shape).to(dtype)

    def widened(self) -> QuantizedMatrix:
        """Return the weights in int8, groups of 16, with minima: what every matrix can become."""
        if self.quants.dtype is torch.float8_e4m3fn:
            return narrowed(self.dequantized(torch.float32), "int8").widened()
        repeat = self.group // 16
        minima = torch.zeros_like(self.scales) if self.minima is None else self.minima
        return QuantizedMatrix(
            (self.quants if self.bits == 8 else _nibbles(self.quants).to(torch.int8)),
            self.scales.repeat_interleave(repeat, 1),
            minima.repeat_interleave(repeat, 1),
        )


Matrix: TypeAlias = "Tensor | QuantizedMatrix | BF12Planes"


def stacked(matrices: Sequence[Matrix]) -> Matrix:
    """Stack matrices. Mixed formats become 8 bits, or floats where one is of floats; bf16 in 12
    bits stays so where all are."""
    quantized = [each for each in matrices if isinstance(each, QuantizedMatrix)]
    plain = [each for each in matrices if isinstance(each, Tensor)]
    if len(quantized) < len(matrices):
        dtype = plain[0].dtype if plain else torch.bfloat16
        floats = torch.cat([e if isinstance(e, Tensor) else e.dequantized(dtype) for e in matrices])
        return floats if plain or quantized else encoded(floats)
    if len({(m.quants.dtype, m.group, m.minima is None) for m in quantized}) > 1:
        quantized = [matrix.widened() for matrix in quantized]
    minima = [matrix.minima for matrix in quantized if matrix.minima is not None]
    dtype = quantized[0].quants.dtype  # not all of Torch joins e4m3fn
    return QuantizedMatrix(
        torch.cat([matrix.quants.view(torch.uint8) for matrix in quantized]).view(dtype),
        torch.cat([matrix.scales for matrix in quantized]),
        torch.cat(minima) if minima else None,
    )


def in_fewer_bits(weight: Tensor, form: NarrowWeights) -> Matrix:
    """Bring floats [rows, columns], their columns a multiple of 32, into a form; for bf12 only what
    bf16 has, other floats stay as they are."""
    if form != "bf12":
        return narrowed(weight, form)
    exact = weight.bfloat16()
    return encoded(exact) if torch.equal(exact.to(weight.dtype), weight) else weight


def narrowed(weight: Tensor, narrow: Rounded) -> QuantizedMatrix:
    """Narrow floats [rows, columns], their columns a multiple of 32, to fewer bits.

    int4 and int8 have a scale for 32 weights, and int4 a minimum; e4m3fn a scale for each row.
    """
    if narrow == "int4":
        return _four_bits(weight)
    rows, columns = weight.shape
    dtype = NARROW_DTYPES[narrow]
    size = columns if narrow == "fp8" else 32
    groups = weight.float().reshape(rows, -1, size)
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    shares = groups * (LARGEST[dtype] / largest)
    quants = (shares.round() if narrow == "int8" else shares).to(dtype).reshape(rows, columns)
    scales = (largest / LARGEST[dtype])[..., 0]
    return QuantizedMatrix(quants, scales if narrow == "fp8" else scales.half(), None)


def _four_bits(weight: Tensor) -> QuantizedMatrix:
    groups = weight.float().reshape(len(weight), -1, 32)
    minima, largest = groups.amin(-1), groups.amax(-1)
    scales = ((largest - minima) / 15).clamp(min=1e-7)
    q = ((groups - minima[..., None]) / scales[..., None]).round().to(torch.uint8)
    return _planes(q[..., :16] | (q[..., 16:] << 4), scales.half(), minima.half())


def unpack(raw: Tensor, format_: str, columns: int) -> QuantizedMatrix:
    """Unpack GGML rows u8[rows, bytes], in any of `FORMATS`, to planes on their device.

    K-quants' products of scales are rounded to float16.
    """
    if format_ == "Q8_0":
        blocks = raw.reshape(len(raw), columns // 32, 34)
        return _planes(blocks[..., 2:].contiguous().view(torch.int8), _half(blocks[..., :2]), None)
    if format_ == "Q4_0":
        blocks = raw.reshape(len(raw), columns // 32, 18)
        scales = _half(blocks[..., :2])
        return _planes(blocks[..., 2:].contiguous(), scales, scales * -8)
    if format_ == "Q4_1":
        blocks = raw.reshape(len(raw), columns // 32, 20)
        return _planes(
            blocks[..., 4:].contiguous(), _half(blocks[..., :2]), _half(blocks[..., 2:4])
        )
    if format_ in ("Q5_0", "Q5_1"):
        return _unpack_5(raw.reshape(len(raw), columns // 32, -1), has_minima=format_ == "Q5_1")
    if format_ == "IQ4_NL":
        blocks = raw.reshape(len(raw), columns // 32, 18)
        return _planes(_looked_up(blocks[..., 2:].flatten(1)), _half(blocks[..., :2]), None)
    if format_ == "UINT4":
        blocks = raw.reshape(len(raw), columns // 32, 19)
        scales = _half(blocks[..., :2])
        return _planes(blocks[..., 3:].contiguous(), scales, -scales * blocks[..., 2])
    if format_ == "IQ4_XS":
        return _unpack_iq4_xs(raw.reshape(len(raw), columns // 256, 136))
    if format_ in ("Q4_K", "Q5_K"):
        return _unpack_k(raw.reshape(len(raw), columns // 256, -1), has_fifth_bit=format_ == "Q5_K")
    if format_ == "Q6_K":
        return _unpack_6_k(raw.reshape(len(raw), columns // 256, 210))
    raise ValueError(f"{format_} is not a quantised format, only {', '.join(FORMATS)} are")


def _unpack_5(blocks: Tensor, *, has_minima: bool) -> QuantizedMatrix:
    """Unpack Q5_0 or Q5_1, u8[rows, blocks, bytes]; a fifth bit of each value."""
    size = 4 if has_minima else 2
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    fifths = (blocks[..., size : size + 4, None] >> shifts & 1).flatten(2)
    packed = blocks[..., size + 4 :]
    q = (torch.cat([packed & 15, packed >> 4], dim=-1) | (fifths << 4)).view(torch.int8)
    scales = _half(blocks[..., :2])
    return (
        _planes(q, scales, _half(blocks[..., 2:4])) if has_minima else _planes(q - 16, scales, None)
    )


def _looked_up(quants: Tensor) -> Tensor:
    """Return what the codes of u8[rows, columns / 2] stand for in IQ4_NL and IQ4_XS: i8[rows,
    columns]."""
    table = torch.tensor(IQ4_VALUES, dtype=torch.int8, device=quants.device)
    return table[_nibbles(quants).int()]


def _unpack_iq4_xs(blocks: Tensor) -> QuantizedMatrix:
    """Unpack 8 groups of 32 in a block u8[rows, blocks, 136]."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device)
    low = (blocks[..., 4:8, None] >> shifts[::2] & 15).flatten(2)
    high = (blocks[..., 2:4, None] >> shifts & 3).flatten(2)
    steps = (low | (high << 4)).float() - 32
    scales = (_half(blocks[..., :2])[..., None].float() * steps).half()
    return _planes(_looked_up(blocks[..., 8:].flatten(1)), scales.flatten(1), None)


def _planes(quants: Tensor, scales: Tensor, minima: Tensor | None) -> QuantizedMatrix:
    """Return the planes of quants [rows, groups, bytes] and scales [rows, groups]."""
    return QuantizedMatrix(quants.flatten(1), scales, minima)


def _half(data: Tensor) -> Tensor:
    """Return u8[..., 2] as f16[...]."""
    return data.contiguous().view(torch.float16).squeeze(-1)


def _nibbles(quants: Tensor) -> Tensor:
    """Return u8[rows, columns / 2] as u8[rows, columns], in the order of weights."""
    pairs = quants.reshape(len(quants), -1, 16)
    return torch.cat([pairs & 15, pairs >> 4], dim=-1).flatten(1)


def _unpack_k(blocks: Tensor, *, has_fifth_bit: bool) -> QuantizedMatrix:
    """Unpack Q4_K or Q5_K: 8 groups of 32 in a block u8[rows, blocks, bytes]."""
    rows = len(blocks)
    steps, minima = _scales_and_minima(blocks[..., 4:16])
    scales = (_half(blocks[..., :2])[..., None].float() * steps).half()
    minima = (_half(blocks[..., 2:4])[..., None].float() * -minima).half()
    low_bits = blocks[..., 48 if has_fifth_bit else 16 :].reshape(rows, -1, 4, 1, 32)
    q = torch.cat([low_bits & 15, low_bits >> 4], dim=3).reshape(rows, -1, 8, 32)
    if has_fifth_bit:
        shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)[:, None]
        q = (q | (((blocks[..., None, 16:48] >> shifts) & 1) << 4)).view(torch.int8)
    else:
        q = q[..., :16] | (q[..., 16:] << 4)
    return _planes(q.flatten(1, 2).contiguous(), scales.flatten(1), minima.flatten(1))


def _scales_and_minima(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return f32[..., 8] each: 6 bits each out of 12 bytes (ggml-common.h)."""
    low, middle, high = packed.split(4, dim=-1)
    scales = torch.cat([low & 0x3F, (high & 0xF) | ((low >> 6) << 4)], dim=-1)
    minima = torch.cat([middle & 0x3F, (high >> 4) | ((middle >> 6) << 4)], dim=-1)
    return scales.float(), minima.float()


def _unpack_6_k(blocks: Tensor) -> QuantizedMatrix:
    """Unpack Q6_K: 16 groups of 16 in a block u8[rows, blocks, 210]."""
    rows = len(blocks)
    low = blocks[..., :128].reshape(rows, -1, 2, 1, 64)
    low = torch.cat([low & 15, low >> 4], dim=3).reshape(rows, -1, 8, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device)[:, None]
    high = (blocks[..., 128:192].reshape(rows, -1, 2, 1, 32) >> shifts) & 3
    q = (low | (high.reshape(rows, -1, 8, 32) << 4)).view(torch.int8) - 32
    steps = blocks[..., 192:208].contiguous().view(torch.int8).float()
    scales = (_half(blocks[..., 208:])[..., None].float() * steps).half()
    return _planes(q.reshape(rows, -1, 16), scales.flatten(1), None)
