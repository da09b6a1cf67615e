"""Kinds of CPU that the kernels are written for, and how each multiplies small integers.

A target is a NamedTuple *type*: numba compiles a kernel once per target it is called with. Integer
sums are exact and float sums have one order, so all targets give the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from numba.core import config as _numba_config

from skerry_core.config import ConfigError
from skerry_core.kernels.simd.emitter import I8, I16, I32, Emitter, Value, vector
from skerry_core.kernels.simd.lookups import (
    LookUp,
    look_up_avx2,
    look_up_avx512,
    look_up_neon,
    look_up_portable,
)

NUMBA_CONFIG: Any = _numba_config  # whose settings appear when it is imported

TARGET_VARIABLE = "SKERRY_NUMBA_TARGET"  # names a target; empty: the best this CPU has


class Avx512Vnni(NamedTuple):
    """Intel from Ice Lake on, AMD from Zen 4 on."""

    rows: int = 16  # of a weight group, interleaved


class Avx2(NamedTuple):
    """Nearly every x86 of the last ten years: AVX2, FMA, F16C."""

    rows: int = 8


class NeonDot(NamedTuple):
    """64-bit Arm with the dot product instructions: Armv8.4 on, Graviton 2, Apple M1."""

    rows: int = 8


class Portable(NamedTuple):
    """Any CPU that LLVM knows."""

    rows: int = 8


Target = Avx512Vnni | Avx2 | NeonDot | Portable

TARGETS: dict[str, Target] = {
    "avx512vnni": Avx512Vnni(),
    "avx2": Avx2(),
    "neondot": NeonDot(),
    "portable": Portable(),
}
_NEEDS = {
    "avx512vnni": ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "fma", "f16c"),
    "avx2": ("avx2", "fma", "f16c"),
    "neondot": ("neon", "dotprod"),
    "portable": (),
}

Activations = Callable[[int, int], Value]  # (token, quad) -> <4 rows x i8>, 4 values in every row
_VNNI_SUMS = 8  # at a time: nearly enough to keep both units busy, and few enough for registers
DotBlock = Callable[..., list[Value]]


@dataclass(frozen=True, slots=True)
class Traits:
    """What the emitters of kernels need of a target."""

    rows: int
    tile_tokens: tuple[int, ...]  # token counts of the matmul tiles, largest first
    attention_vectors: int  # vectors of 16 floats per query that attention keeps in registers
    native_half: bool  # converts fp16 in hardware
    dot_block: DotBlock
    look_up: LookUp
    signed_as_unsigned: bool  # bytes w are multiplied as w + 128: the result is 128 * sum too high


def traits_of(numba_type: Any) -> Traits:
    """Return the traits of the target whose NamedTuple type numba passes to an intrinsic."""
    return _TRAITS[numba_type.instance_class]


def choose_target(name: str | None = None) -> Target:
    """Return the named target, else `$SKERRY_NUMBA_TARGET`, else the best one for this CPU.

    Raises ConfigError when there is no such target, or this CPU lacks what it needs.
    """
    name = name or os.environ.get(TARGET_VARIABLE, "")
    features = _cpu_features()
    if not name:
        return next(t for n, t in TARGETS.items() if _is_supported(n, features))
    if name not in TARGETS:
        raise ConfigError(f"no CPU target {name!r}; there are {', '.join(TARGETS)}")
    if not _is_supported(name, features):
        missing = [f for f in _NEEDS[name] if not features.get(f)]
        raise ConfigError(f"this CPU cannot run target {name!r}: it lacks {', '.join(missing)}")
    return TARGETS[name]


def name_of(target: Target) -> str:
    return next(name for name, other in TARGETS.items() if type(other) is type(target))


def _is_supported(name: str, features: Mapping[str, bool]) -> bool:
    return all(features.get(feature) for feature in _NEEDS[name])


def _cpu_features() -> Mapping[str, bool]:
    """Return the features that numba compiles for: the host's unless NUMBA_CPU_FEATURES overrides
    them."""
    if NUMBA_CONFIG.CPU_FEATURES is None:
        return llvm.get_host_cpu_features()
    listed = [item.strip() for item in NUMBA_CONFIG.CPU_FEATURES.split(",")]
    return {item[1:]: item.startswith("+") for item in listed if item}


def _dot_vnni(
    e: Emitter,
    weights: Sequence[Value],  # 8 of <4 rows x i8>: quad j holds values 4j..4j+3 of each row
    activations: Activations,
    start: Sequence[Value],  # per token <rows x i32>
    *,
    signed: bool,
) -> list[Value]:
    """Emit `start + sum(weights * activations)` per token, <rows x i32>; signed weights as w + 128.

    Several sums per token where tokens are few: an instruction waits five cycles for the one before
    it in its sum, and two could begin in each.
    """
    rows = weights[0].type.count // 4
    if signed:
        weights = [e.builder.xor(w, e.constant(w.type, -128)) for w in weights]
    zero = e.constant(vector(I32, rows), 0)
    more = min(4, max(1, _VNNI_SUMS // len(start))) - 1
    sums = [[first, *[zero] * more] for first in start]
    for quad, weight in enumerate(weights):
        as_words = e.builder.bitcast(weight, vector(I32, rows))
        for t, parts in enumerate(sums):
            operand = e.builder.bitcast(activations(t, quad), vector(I32, rows))
            which = quad % len(parts)
            parts[which] = e.call(
                f"llvm.x86.avx512.vpdpbusd.{32 * rows}", zero.type, parts[which], as_words, operand
            )
    return [reduce(e.builder.add, parts) for parts in sums]


def _dot_avx2(
    e: Emitter,
    weights: Sequence[Value],
    activations: Activations,
    start: Sequence[Value],
    *,
    signed: bool,
) -> list[Value]:
    """Multiply as `_dot_vnni` does, with pmaddubsw; no sum of pairs leaves 16 bits.

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


def _dot_neon(
    e: Emitter,
    weights: Sequence[Value],
    activations: Activations,
    start: Sequence[Value],
    *,
    signed: bool,
) -> list[Value]:
    """Multiply as `_dot_vnni` does, with sdot: registers of 4 rows. Nibbles can be signed too."""
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


def _dot_portable(
    e: Emitter,
    weights: Sequence[Value],
    activations: Activations,
    start: Sequence[Value],
    *,
    signed: bool,
) -> list[Value]:
    """Multiply as `_dot_vnni` does, in plain LLVM: widen to 32 bits, multiply, add."""
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


_TRAITS: dict[type, Traits] = {
    Avx512Vnni: Traits(
        rows=16,
        tile_tokens=(8, 4, 2, 1),
        attention_vectors=4,
        native_half=True,
        dot_block=_dot_vnni,
        look_up=look_up_avx512,
        signed_as_unsigned=True,
    ),
    Avx2: Traits(
        rows=8,
        tile_tokens=(4, 2, 1),
        attention_vectors=1,
        native_half=True,
        dot_block=_dot_avx2,
        look_up=look_up_avx2,
        signed_as_unsigned=False,
    ),
    NeonDot: Traits(
        rows=8,
        tile_tokens=(4, 2, 1),
        attention_vectors=1,
        native_half=True,
        dot_block=_dot_neon,
        look_up=look_up_neon,
        signed_as_unsigned=False,
    ),
    Portable: Traits(
        rows=8,
        tile_tokens=(4, 2, 1),
        attention_vectors=1,
        native_half=False,
        dot_block=_dot_portable,
        look_up=look_up_portable,
        signed_as_unsigned=False,
    ),
}
