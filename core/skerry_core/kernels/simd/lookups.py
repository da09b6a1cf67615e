"""How each kind of CPU looks up 4 bits in a table of 16 bytes: bytes below 16 in, values out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from skerry_core.kernels.simd.emitter import I8, Emitter, Value, vector

LookUp = Callable[[Emitter, Value, Sequence[int]], Value]


def _table(values: Sequence[int], count: int) -> Value:
    """Return a vector of a table, repeated."""
    repeated = [*values] * (count // len(values))
    return ir.Constant(vector(I8, count), [ir.Constant(I8, value) for value in repeated])


def look_up_avx2(e: Emitter, codes: Value, table: Sequence[int]) -> Value:
    """Look up in registers of 32 bytes, each half in its own copy of the table."""
    return e.call("llvm.x86.avx2.pshuf.b", codes.type, _table(table, 32), codes)


def look_up_avx512(e: Emitter, codes: Value, table: Sequence[int]) -> Value:
    return e.call("llvm.x86.avx512.pshuf.b.512", codes.type, _table(table, 64), codes)


def look_up_neon(e: Emitter, codes: Value, table: Sequence[int]) -> Value:
    """Look up in registers of 16 bytes."""
    parts = [e.take(codes, range(at, at + 16)) for at in range(0, codes.type.count, 16)]
    name, whole = "llvm.aarch64.neon.tbl1.v16i8", _table(table, 16)
    return e.join([e.call(name, whole.type, whole, part) for part in parts])


def look_up_portable(e: Emitter, codes: Value, table: Sequence[int]) -> Value:
    """Choose between constants by the lowest bit, between those by the next, …"""
    b, kind = e.builder, codes.type
    values = [e.constant(kind, value) for value in table]
    for bit in range(4):
        is_set = b.icmp_signed("!=", b.and_(codes, e.constant(kind, 1 << bit)), e.constant(kind, 0))
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [b.select(is_set, one, zero) for zero, one in pairs]
    return values[0]
