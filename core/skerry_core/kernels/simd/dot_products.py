"""Products of blocks of small integers, in each target's own instructions.

Integer sums are exact, so all give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from skerry_core.kernels.simd.emitter import I8, I16, I32, Emitter, Value, vector

Activations = Callable[[int, int], Value]  # (token, quad) -> <4 rows x i8>, 4 values in every row
Quads = Sequence[Sequence[Value]]
"""Of each group of rows 8 of <4 rows x i8>: quad j holds values 4j..4j+3 of each row."""
Sums = Sequence[Sequence[Value]]  # of each group and token <rows x i32>
_VNNI_SUMS = 8  # at a time: nearly enough to keep both units busy, and few enough for registers
DotBlock = Callable[..., list[list[Value]]]


def dot_vnni(
    e: Emitter,
    weights: Quads,
    activations: Activations,
    start: Sums,
    *,
    signed: bool,
) -> list[list[Value]]:
    """Emit `start + sum(weights * activations)` per group and token, <rows x i32>; signed weights
    as w + 128.

    Several sums per token where tokens are few: an instruction waits five cycles for the one before
    it in its sum, and two could begin in each. Groups take turns, so that an activation is loaded
    once for them.
    """
    rows = weights[0][0].type.count // 4
    if signed:
        weights = [[e.builder.xor(w, e.constant(w.type, -128)) for w in each] for each in weights]
    words = vector(I32, rows)
    zero = e.constant(words, 0)
    more = min(4, max(1, _VNNI_SUMS // (len(start) * len(start[0])))) - 1
    sums = [[[first, *[zero] * more] for first in each] for each in start]
    for quad in range(len(weights[0])):
        as_words = [e.builder.bitcast(each[quad], words) for each in weights]
        for t in range(len(start[0])):
            operand = e.builder.bitcast(activations(t, quad), words)
            for weight, of_group in zip(as_words, sums, strict=True):
                parts, which = of_group[t], quad % (1 + more)
                parts[which] = e.call(
                    f"llvm.x86.avx512.vpdpbusd.{32 * rows}", words, parts[which], weight, operand
                )
    return [[reduce(e.builder.add, parts) for parts in each] for each in sums]


def _group_by_group(dot: Callable[..., list[Value]]) -> DotBlock:
    """Return a `DotBlock` of one that multiplies a single group."""

    def dot_block(
        e: Emitter, weights: Quads, activations: Activations, start: Sums, *, signed: bool
    ) -> list[list[Value]]:
        groups = zip(weights, start, strict=True)
        return [dot(e, quads, activations, sums, signed=signed) for quads, sums in groups]

    return dot_block


@_group_by_group
def dot_avx2(
    e: Emitter,
    weights: Sequence[Value],
    activations: Activations,
    start: Sequence[Value],
    *,
    signed: bool,
) -> list[Value]:
    """Multiply as `dot_vnni` does, with pmaddubsw; no sum of pairs leaves 16 bits.

    Nibbles: 8 quads * 2 * 15 * 127 = 30,480. Bytes, as |w| * sign(w) a: 2 * 128 * 127 = 32,512.
    """
    b = e.builder
    bytes_, pairs, words = vector(I8, 32), vector(I16, 16), vector(I32, 8)
    ones = e.constant(pairs, 1)

    def product(weight: Value, activation: Value) -> Value:
        if signed:
            activation = e.call("llvm.x86.avx2.psign.b", bytes_, activation, weight)
            weight = e.call("llvm.x86.avx2.psign.b", bytes_, weight, weight)
        return e.call("llvm.x86.avx2.pmadd.ub.sw", pairs, weight, activation)

    def widen(sums: Value) -> Value:
        return e.call("llvm.x86.avx2.pmadd.wd", words, sums, ones)

    totals = list(start)
    if signed:
        for quad, weight in enumerate(weights):
            for t in range(len(totals)):
                totals[t] = b.add(totals[t], widen(product(weight, activations(t, quad))))
        return totals
    narrow: list[Value | None] = [None] * len(totals)
    for quad, weight in enumerate(weights):
        for t, sums in enumerate(narrow):
            term = product(weight, activations(t, quad))
            narrow[t] = term if sums is None else b.add(sums, term)
    return [b.add(total, widen(sums)) for total, sums in zip(totals, narrow, strict=True)]


@_group_by_group
def dot_neon(
    e: Emitter,
    weights: Sequence[Value],
    activations: Activations,
    start: Sequence[Value],
    *,
    signed: bool,
) -> list[Value]:
    """Multiply as `dot_vnni` does, with sdot: registers of 4 rows. Nibbles can be signed too."""
    rows, words = weights[0].type.count // 4, vector(I32, 4)
    quarters = range(0, rows, 4)
    sums = [[e.take(total, range(first, first + 4)) for first in quarters] for total in start]
    for quad, weight in enumerate(weights):
        parts = [e.take(weight, range(4 * first, 4 * first + 16)) for first in quarters]
        for t, totals in enumerate(sums):
            same = e.take(activations(t, quad), range(16))  # for every row
            for i, part in enumerate(parts):
                totals[i] = e.call(
                    "llvm.aarch64.neon.sdot.v4i32.v16i8", words, totals[i], part, same
                )
    return [e.join(totals) for totals in sums]


@_group_by_group
def dot_portable(
    e: Emitter,
    weights: Sequence[Value],
    activations: Activations,
    start: Sequence[Value],
    *,
    signed: bool,
) -> list[Value]:
    """Multiply as `dot_vnni` does, in plain LLVM: widen to 32 bits, multiply, add."""
    b = e.builder
    rows = weights[0].type.count // 4
    words = vector(I32, rows)
    totals = list(start)
    for quad, weight in enumerate(weights):
        for byte in range(4):
            lanes = range(byte, 4 * rows, 4)
            part = e.take(weight, lanes)
            wide = b.sext(part, words) if signed else b.zext(part, words)
            for t, total in enumerate(totals):
                activation = b.sext(e.take(activations(t, quad), lanes), words)
                totals[t] = b.add(total, b.mul(wide, activation))
    return totals
