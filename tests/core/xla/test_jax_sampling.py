"""Choosing on the device in JAX: the tokens and logprobs of `skerry_core.sampling`, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bench.subjects.samples import samples_of
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from tests.core.fed_histories import without_last
from tests.core.runners.runner_suite import CACHE
from tests.core.sampled_rows import INF
from tests.core.test_compiled_sampling import assert_same
from tests.properties import examples

from skerry_core import exact_math
from skerry_core.batch import Float32, SamplingBatch
from skerry_core.kernels.jax.jax_math import exp_f32, uniform
from skerry_core.kernels.jax.jax_sampling import (
    Searches,
    Style,
    choose,
    keep_typical,
    likely_tokens,
)
from skerry_core.kernels.jax.weights import place
from skerry_core.runners.jax.jax_process import keep_on_disk, mesh_of
from skerry_core.runners.jax.jax_sampler import OnDevice
from skerry_core.sampling import sample

# Programs are compiled for each size: these are all.
ROWS, VOCAB = 4, 150
ODD = [0.0, -0.0, 1.0, 1.0000001, -INF, INF, 3e38, -3e38, float("nan")]


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    keep_on_disk(CACHE)


def check(logits: Float32, sampling: SamplingBatch) -> None:
    """Compare what the device makes of logits f32[S, V], as of a runner with a bucket of `ROWS`."""
    mesh = mesh_of(1)
    padded = np.zeros((ROWS, logits.shape[1]), np.float32)
    padded[: len(logits)] = logits
    sampler = OnDevice(logits.shape[1], 2 * ROWS, mesh)
    step = sampler.begin(place(padded, mesh, P()), sampling)
    assert_same(step(), sample(logits, sampling), sampling)
    np.testing.assert_array_equal(sampler.made[: len(logits)], step().token_ids)


LOGITS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "distinct": lambda rng, count: rng.normal(size=(count, VOCAB)) * 3,
    "ties": lambda rng, count: rng.integers(0, 3, (count, VOCAB)),
    "one bin": lambda rng, count: rng.normal(size=(count, VOCAB)) * 1e-4,
    "odd": lambda rng, count: rng.choice(ODD, (count, VOCAB)),
    "impossible": lambda rng, count: rng.choice([-INF, float("nan")], (count, VOCAB)),
}


def random_sampling(rng: np.random.Generator, count: int) -> SamplingBatch:
    """Return samples with settings of their own, among them those that turn a filter off."""

    def ragged(values: Any) -> dict[str, Any]:
        lengths = rng.integers(0, 9, count)
        ids = [rng.choice(VOCAB, n, replace=False) for n in lengths]
        return {
            "start": np.cumsum([0, *lengths]).astype(np.int32),
            "ids": np.concatenate(ids).astype(np.int32),
            "values": rng.choice(values, lengths.sum()),
        }

    history, bias = ragged(np.arange(5)), ragged([-INF, -100.0, 0.5, 100.0])
    words = -(-VOCAB // 32) * int(rng.integers(0, 2))
    return samples_of(
        count,
        position=rng.integers(0, 2**40, count),
        seed=rng.integers(0, 2**64, count, dtype=np.uint64),
        choice=rng.integers(0, 128, count),
        temperature=rng.choice([0, 1e-5, 0.3, 1, 5, 1000], count),
        top_p=rng.choice([1e-6, 0.5, 0.95, 0.999, 1], count),
        top_k=rng.choice([0, 0, 1, 3, 40, VOCAB], count),
        min_p=rng.choice([0, 0.05, 0.5, 1], count),
        typical_p=rng.choice([1, 1, 0.999, 0.2, 1e-6], count),
        repetition_penalty=rng.choice([1, 0.5, 1.3, 2], count),
        frequency_penalty=rng.choice([0, -2, 0.7], count),
        presence_penalty=rng.choice([0, -2, 0.7], count),
        num_logprobs=rng.choice([-1, 0, 5, 40, VOCAB], count),
        target=np.where(rng.random(count) < 0.2, rng.integers(0, VOCAB, count), -1),
        history_start=history["start"], history_ids=history["ids"],
        history_counts=history["values"].astype(np.int32),
        bias_start=bias["start"], bias_ids=bias["ids"],
        bias_values=bias["values"].astype(np.float32),
        allowed=rng.integers(0, 2**32, (count, words), dtype=np.uint32),
    )  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(shape=st.sampled_from(sorted(LOGITS)), count=st.integers(1, ROWS), seed=st.integers(0, 9999))
def test_choices_and_logprobs_are_those_of_the_meaning(shape: str, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    check(LOGITS[shape](rng, count).astype(np.float32), random_sampling(rng, count))


@settings(max_examples=examples(40), deadline=None)
@given(count=st.integers(1, ROWS), seed=st.integers(0, 9999))
def test_tokens_that_are_fed_count_in_histories(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.integers(-3, 3, (count, VOCAB)).astype(np.float32)
    sampling = random_sampling(rng, count)
    fed, made = without_last(sampling, rng, 2 * ROWS)
    mesh = mesh_of(1)
    sampler = OnDevice(VOCAB, 2 * ROWS, mesh)
    sampler.made = place(made, mesh, P())
    padded = np.zeros((ROWS, VOCAB), np.float32)
    padded[:count] = logits
    result = sampler.begin(place(padded, mesh, P()), fed)()
    assert_same(result, sample(logits, sampling), sampling)


def test_weights_whose_sum_a_float64_does_not_hold() -> None:
    """They are 2^54 together: the limit of top_p is rounded."""
    logits = np.zeros((3, 16_411), np.float32)
    logits[1:, ::3] = -1.0
    check(logits, samples_of(3, temperature=1, top_p=0.9, top_k=[0, 0, 16_000], seed=[3, 4, 5]))


def test_penalties_beyond_one_piece() -> None:
    rng = np.random.default_rng(2)
    logits, half = rng.normal(size=(2, 16_411)), np.arange(8_000, dtype=np.int32)
    check(
        logits.astype(np.float32),
        samples_of(
            2, presence_penalty=[9, 0], frequency_penalty=[0, 9],
            history_start=np.array([0, 8_000, 16_000], np.int32),
            history_ids=np.concatenate([half, half[::-1]]),
            history_counts=np.ones(16_000, np.int32),
        ),
    )  # fmt: skip


def test_powers_have_the_meanings_bits() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(-100, 0, 100_000), rng.normal(size=100_000), ODD])
    x = np.concatenate([x, np.spacing(np.float32(1)) * np.arange(-50, 50)]).astype(np.float32)
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(exp_f32)(x))
    np.testing.assert_array_equal(found, exact_math.exp_f32(x))


def test_uniforms_have_the_meanings_bits() -> None:
    rng = np.random.default_rng(1)
    seeds = rng.integers(0, 2**64, 200, dtype=np.uint64)
    positions, choices = rng.integers(0, 2**63, 200), rng.integers(0, 128, 200, dtype=np.int32)
    expected = [
        exact_math.uniform(*map(int, each)) for each in zip(seeds, positions, choices, strict=True)
    ]
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(uniform)(seeds, positions, choices))
    np.testing.assert_array_equal(found, expected)


def test_compilers_for_gpus_take_it() -> None:
    """As far as XLA's language: for a device that is not here."""
    with jax.enable_x64(True):
        logits, floats = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 999), (4,)))
        wide, ints = (jax.ShapeDtypeStruct((4,), t) for t in (jnp.float64, jnp.int32))
        longs, words = (jax.ShapeDtypeStruct((4,), t) for t in (jnp.int64, jnp.uint64))
        style = Style(wide, wide, ints, floats, words, longs, ints, ints)
        searches = Searches(has_top_k=True, has_top_p=True, is_drawn=True)
        for traced in (
            choose.trace(logits, style, searches, 8),
            keep_typical.trace(logits, wide, wide),
            likely_tokens.trace(logits, ints, 32),
        ):
            assert "stablehlo" in traced.lower(lowering_platforms=("cuda",)).as_text()
