"""Scalar math: near the true value, and the same bits compiled (any vector width) as in NumPy."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry_core import exact_math
from skerry_core.kernels.simd import numba_math
from skerry_core.kernels.simd.numba_math import kernel


def elementwise(function: Any, arguments: int, dtype: type) -> Callable[..., Any]:
    """`function` over arrays, in a loop that LLVM vectorises."""

    @kernel
    def of_one(x: Any, out: Any) -> None:
        for i in range(out.shape[0]):
            out[i] = function(x[i])

    @kernel
    def of_three(x: Any, y: Any, z: Any, out: Any) -> None:
        for i in range(out.shape[0]):
            out[i] = function(x[i], y[i], z[i])

    def call(*arrays: Any) -> Any:
        out = np.empty(len(arrays[0]), dtype)
        operands = [*arrays, out]
        if arguments == 1:
            of_one(*operands)
        else:
            of_three(*operands)
        return out

    return call


@pytest.fixture(scope="module")
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def assert_same_bits(left: Any, right: Any) -> None:
    as_int = {4: np.int32, 8: np.int64}[left.dtype.itemsize]
    np.testing.assert_array_equal(left.view(as_int), right.view(as_int))


def test_fma_rounds_once(rng: np.random.Generator) -> None:
    scales = 10.0 ** rng.integers(-9, 9, (3, 100_000))
    a, b, c = (rng.normal(size=(3, 100_000)) * scales).astype(np.float32)
    c[::2] = -(a * b)[::2]  # what is left is the rounding error of the product
    got = elementwise(numba_math.fma, 3, np.float32)(a, b, c)
    assert_same_bits(got, exact_math.fma_f32(a, b, c))
    np.testing.assert_array_equal(
        got[::2].astype(np.float64), a[::2].astype(np.float64) * b[::2] + c[::2]
    )


def test_exp_f32(rng: np.random.Generator) -> None:
    limits = [exact_math.EXP_F32_MIN, exact_math.EXP_F32_MAX]
    x = np.concatenate([rng.uniform(-90, 90, 200_001), rng.normal(size=50_000), limits, [0.0]])
    x = x.astype(np.float32)
    got = elementwise(numba_math.exp_f32, 1, np.float32)(x)
    assert_same_bits(got, exact_math.exp_f32(x))
    inside = (x >= limits[0]) & (x <= limits[1])
    true = np.exp(x[inside].astype(np.float64))
    assert np.max(np.abs(got[inside] - true) / np.spacing(true.astype(np.float32))) <= 1.0
    assert np.all(got[x < limits[0]] == 0)
    assert np.all(got[x > limits[1]] == np.inf)
    assert got[-1] == 1.0


def test_exp_f32_of_values_that_are_not_finite() -> None:
    x = np.array([-np.inf, np.inf, np.nan, -0.0], np.float32)
    for exp in (elementwise(numba_math.exp_f32, 1, np.float32), exact_math.exp_f32):
        np.testing.assert_array_equal(exp(x), np.array([0, np.inf, np.nan, 1], np.float32))


def test_tanh_f32(rng: np.random.Generator) -> None:
    x = np.concatenate([rng.normal(size=50_001), rng.uniform(-100, 100, 50_000), [0.0, -0.0]])
    x = np.append(x, [np.inf, -np.inf, np.nan]).astype(np.float32)
    got = elementwise(numba_math.tanh_f32, 1, np.float32)(x)
    np.testing.assert_array_equal(got, exact_math.tanh_f32(x))
    np.testing.assert_allclose(got, np.tanh(x.astype(np.float64)), rtol=0, atol=2.0**-23)


def test_log(rng: np.random.Generator) -> None:
    x = np.concatenate(
        [np.exp(rng.uniform(-300, 300, 50_001)), rng.uniform(0.5, 2, 50_000), [1.0, 0.0]]
    )
    got = elementwise(numba_math.log_f64, 1, np.float64)(x)
    assert_same_bits(got, exact_math.log_f64(x))
    true = np.log(x[:-2])
    assert np.max(np.abs(got[:-2] - true) / np.spacing(np.abs(true))) <= 2.0
    np.testing.assert_array_equal(got[-2:], [0.0, -np.inf])
    x32 = x[50_001:].astype(np.float32)
    assert_same_bits(elementwise(numba_math.log_f32, 1, np.float32)(x32), exact_math.log_f32(x32))


def test_exp_f64(rng: np.random.Generator) -> None:
    x = rng.uniform(-700, 700, 50_001)
    got = elementwise(numba_math.exp_f64, 1, np.float64)(x)
    assert_same_bits(got, exact_math.exp_f64(x))
    true = np.exp(x)
    assert np.max(np.abs(got - true) / np.spacing(true)) <= 2.0


def test_sin_and_cos_up_to_the_longest_context(rng: np.random.Generator) -> None:
    multiples = np.arange(-500_000, 500_000, 7) * (math.pi / 2)  # worst cancellation
    x = np.concatenate([rng.uniform(-1.6e6, 1.6e6, 50_001), np.arange(50_000.0), multiples])

    @kernel
    def run(x: Any, sine: Any, cosine: Any) -> None:
        for i in range(x.shape[0]):
            sine[i], cosine[i] = numba_math.sin_cos_f64(x[i])

    sine, cosine = np.empty_like(x), np.empty_like(x)
    run(x, sine, cosine)
    for got, reference, true in zip(
        (sine, cosine), exact_math.sin_cos_f64(x), (np.sin(x), np.cos(x)), strict=True
    ):
        assert_same_bits(got, reference)
        np.testing.assert_allclose(got, true, rtol=0, atol=3e-16)


# Known answers published with the Random123 library.
PHILOX_KNOWN = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        0xFFFFFFFFFFFFFFFF,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@kernel
def philox(c0: Any, c1: Any, c2: Any, c3: Any, key: Any) -> Any:
    return numba_math.philox4x32_10(c0, c1, c2, c3, key)


@kernel
def uniform(seed: Any, position: Any, choice: Any) -> Any:
    return numba_math.uniform(seed, position, choice)


@pytest.mark.parametrize(("counter", "key", "words"), PHILOX_KNOWN)
def test_philox_known_answers(
    counter: tuple[int, int, int, int], key: int, words: tuple[int, ...]
) -> None:
    assert exact_math.philox4x32_10(counter, key) == words
    c0, c1, c2, c3 = (np.uint64(c) for c in counter)
    assert philox(c0, c1, c2, c3, np.uint64(key)) == words


@settings(deadline=None)  # the first call compiles
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_uniform_is_inside_zero_and_one(seed: int, position: int, choice: int) -> None:
    u = exact_math.uniform(seed, position, choice)
    assert 0.0 < u < 1.0
    assert u == uniform(np.uint64(seed), np.int64(position), np.int32(choice))


def test_uniform_depends_on_seed_position_and_choice() -> None:
    values = {
        exact_math.uniform(seed, position, choice)
        for seed in (1, 1 << 40)
        for position in (5, 5 + (1 << 32))
        for choice in (0, 1)
    }
    assert len(values) == 8


def test_uniform_is_uniform() -> None:
    values = [exact_math.uniform(3, position, 0) for position in range(4096)]
    counts, _ = np.histogram(values, bins=16, range=(0, 1))
    assert ((counts - 256) ** 2 / 256).sum() < 37.7  # chi-square, 15 degrees, p = 0.001
