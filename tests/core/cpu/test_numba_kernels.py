"""Compiled kernels against their meaning in NumPy: the same bits on every target, in odd shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.core.cpu import reference_kernels as reference
from tests.core.cpu.targets import assert_same_bits, on_each_target

from skerry_core.config import BLOCK_SIZE, ConfigError
from skerry_core.kernels.cpu import attention, rowwise
from skerry_core.kernels.simd import targets
from skerry_core.kernels.simd.memory import address
from skerry_core.kernels.simd.numba_math import kernel
from skerry_core.kernels.simd.targets import TARGETS, Target, choose_target


@kernel
def norm_row(x: Any, weight: Any, eps: Any, out: Any) -> None:
    rowwise.rms_norm(x, weight, eps, out)


@pytest.mark.parametrize("columns", [32, 96, 576])
def test_rms_norm(columns: int, rng: np.random.Generator) -> None:
    x, weight = rng.normal(size=(2, columns)).astype(np.float32)
    out = np.zeros_like(x)
    norm_row(x, weight, np.float32(1e-5), out)
    assert_same_bits(out, reference.rms_norm(x, weight, 1e-5))


@kernel
def rotate(x: Any, cosines: Any, sines: Any) -> None:
    rowwise.rope(x, cosines, sines)


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
def test_rope(head_dim: int, rng: np.random.Generator) -> None:
    x = rng.normal(size=head_dim).astype(np.float32)
    cosines, sines = rng.uniform(-1, 1, (2, head_dim // 2)).astype(np.float32)
    wanted = reference.rope(x, cosines, sines)
    rotate(x, cosines, sines)
    assert_same_bits(x, wanted)


@kernel
def activate(gate: Any, up: Any) -> None:
    rowwise.swiglu(gate, up)


def test_swiglu(rng: np.random.Generator) -> None:
    gate, up = (rng.normal(size=(2, 500)) * 30).astype(np.float32)
    wanted = reference.swiglu(gate, up)
    activate(gate, up)
    assert_same_bits(gate, wanted)


@kernel
def store_half(target: Any, x: Any, count: Any, out: Any) -> None:
    rowwise.to_half(target, x, count, out)


@on_each_target
def test_values_are_stored_as_finite_halves(target: Target, rng: np.random.Generator) -> None:
    x = np.concatenate(
        [
            rng.normal(size=512) * 10.0 ** rng.integers(-9, 5, 512),
            [0.0, -0.0, 65504.0, 65519.0, 65520.0, 1e9, -1e9, np.inf, -np.inf],
            [2.0**-14, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 1 + 2.0**-11, 1 + 3 * 2.0**-11],
            [6.1e-5, -6.1e-5, 5.9e-8, 1e-40, -1e-40],
        ]
    )
    x = x[: len(x) // 16 * 16].astype(np.float32)
    out = np.zeros(len(x), np.float16)
    store_half(target, address(x), len(x), address(out))
    np.testing.assert_array_equal(out.view(np.uint16), reference.to_half(x).view(np.uint16))


@kernel
def merge(state: Any, state_peaks: Any, partial: Any, peaks: Any, seen: Any, group: Any) -> None:
    attention.merge_partials(state, state_peaks, partial, peaks, seen, group)


@kernel
def clear(state: Any, state_peaks: Any) -> None:
    attention.clear_state(state, state_peaks)


@on_each_target
@pytest.mark.parametrize(
    ("head_dim", "tokens", "group", "context"),
    [
        (16, 1, 1, 1),
        (64, 1, 3, 64),
        (64, 8, 3, 150),
        (80, 7, 1, 65),
        (96, 1, 5, 63),
        (128, 4, 2, 200),
        (32, 13, 1, 130),
    ],
)
@pytest.mark.parametrize(("window", "score_cap"), [(1000, 0.0), (64, 0.0), (1, 0.0), (64, 2.0)])
def test_attention(
    target: Target,
    head_dim: int,
    tokens: int,
    group: int,
    context: int,
    window: int,
    score_cap: float,
    rng: np.random.Generator,
) -> None:
    """Tokens that see different lengths of one context; what lies beyond is garbage."""
    blocks = -(-context // BLOCK_SIZE)
    keys, values = rng.normal(size=(2, blocks * BLOCK_SIZE, head_dim)).astype(np.float16)
    queries = rng.normal(size=(tokens * group, head_dim)).astype(np.float32)
    lengths = rng.integers(1, context + 1, tokens)
    lengths[-1] = context
    firsts = np.maximum(0, lengths - window)
    state = np.ones((tokens * group, head_dim), np.float32)
    state_peaks = np.ones((tokens * group, 2), np.float32)
    clear(state, state_peaks)
    partial, peaks = np.zeros_like(state), np.zeros_like(state_peaks)
    scores = np.zeros((tokens * group, BLOCK_SIZE), np.float32)
    widened = np.zeros((BLOCK_SIZE, head_dim), np.float32)
    for index in range(blocks):
        block = slice(index * BLOCK_SIZE, (index + 1) * BLOCK_SIZE)
        seen = np.stack([firsts, lengths], axis=1) - index * BLOCK_SIZE
        seen = np.ascontiguousarray(np.clip(seen, 0, BLOCK_SIZE))
        k, v = np.ascontiguousarray(keys[block].T), np.ascontiguousarray(values[block])
        attention.attend_block(
            target,
            address(k),
            address(v),
            address(k),
            address(v),
            head_dim,
            address(queries),
            tokens,
            group,
            address(seen),
            address(scores),
            address(widened),
            address(partial),
            address(peaks),
            np.float32(score_cap),
        )
        merge(state, state_peaks, partial, peaks, seen, group)
    got = state * (np.float32(1.0) / state_peaks[:, 1:])
    wanted = [
        reference.attention(query, keys[:n], values[:n], first, score_cap)
        for query, n, first in zip(
            queries, np.repeat(lengths, group), np.repeat(firsts, group), strict=True
        )
    ]
    assert_same_bits(got, np.stack(wanted))


def test_targets_are_chosen_by_name_and_by_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(targets.TARGET_VARIABLE, raising=False)
    with pytest.raises(
        ConfigError, match="no CPU target 'mmx'; there are avx512vnni, avx2, neondot, portable"
    ):
        choose_target("mmx")
    monkeypatch.setenv(targets.TARGET_VARIABLE, "portable")
    assert choose_target() is TARGETS["portable"]
    monkeypatch.delenv(targets.TARGET_VARIABLE)
    monkeypatch.setattr(targets.NUMBA_CONFIG, "CPU_FEATURES", "+avx2,+fma,+f16c,-avx512f")
    assert choose_target() is TARGETS["avx2"]
    with pytest.raises(ConfigError, match="lacks avx512f"):
        choose_target("avx512vnni")
    monkeypatch.setattr(targets.NUMBA_CONFIG, "CPU_FEATURES", "")
    assert choose_target() is TARGETS["portable"]
