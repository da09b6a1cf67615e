"""Kinds of CPU that the kernels are written for, and how each multiplies small integers.

A target is a NamedTuple *type*: numba compiles a kernel once per target it is called with. Integer
sums are exact and float sums have one order, so all targets give the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from numba.core import config as _numba_config

from skerry_core.config import ConfigError
from skerry_core.kernels.simd.dot_products import (
    DotBlock,
    dot_avx2,
    dot_neon,
    dot_portable,
    dot_vnni,
)
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
    panel_groups: int = 2  # of rows, that many tokens at once are multiplied by
    panel_tokens: tuple[int, ...] = (6, 2)  # of their tiles, each a multiple of the next


class Avx2(NamedTuple):
    """Nearly every x86 of the last ten years: AVX2, FMA, F16C."""

    rows: int = 8
    panel_groups: int = 1
    panel_tokens: tuple[int, ...] = (4,)


class NeonDot(NamedTuple):
    """64-bit Arm with the dot product instructions: Armv8.4 on, Graviton 2, Apple M1."""

    rows: int = 8
    panel_groups: int = 1
    panel_tokens: tuple[int, ...] = (4,)


class Portable(NamedTuple):
    """Any CPU that LLVM knows."""

    rows: int = 8
    panel_groups: int = 1
    panel_tokens: tuple[int, ...] = (4,)


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


@dataclass(frozen=True, slots=True)
class Traits:
    """What the emitters of kernels need of a target."""

    target: Target
    tile_tokens: tuple[int, ...]  # token counts of the matmul tiles, largest first
    attention_vectors: int  # vectors of 16 floats per query that attention keeps in registers
    native_half: bool  # converts fp16 in hardware
    dot_block: DotBlock
    look_up: LookUp
    signed_as_unsigned: bool  # bytes w are multiplied as w + 128: the result is 128 * sum too high

    @property
    def rows(self) -> int:
        return self.target.rows


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


_TRAITS: dict[type, Traits] = {
    Avx512Vnni: Traits(
        target=Avx512Vnni(),
        tile_tokens=(8, 4, 2, 1),
        attention_vectors=4,
        native_half=True,
        dot_block=dot_vnni,
        look_up=look_up_avx512,
        signed_as_unsigned=True,
    ),
    Avx2: Traits(
        target=Avx2(),
        tile_tokens=(4, 2, 1),
        attention_vectors=1,
        native_half=True,
        dot_block=dot_avx2,
        look_up=look_up_avx2,
        signed_as_unsigned=False,
    ),
    NeonDot: Traits(
        target=NeonDot(),
        tile_tokens=(4, 2, 1),
        attention_vectors=1,
        native_half=True,
        dot_block=dot_neon,
        look_up=look_up_neon,
        signed_as_unsigned=False,
    ),
    Portable: Traits(
        target=Portable(),
        tile_tokens=(4, 2, 1),
        attention_vectors=1,
        native_half=False,
        dot_block=dot_portable,
        look_up=look_up_portable,
        signed_as_unsigned=False,
    ),
}
