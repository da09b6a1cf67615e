"""Choosing on the device in one kernel: the tokens of `skerry_core.sampling`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.fed_histories import without_last
from tests.core.paged_kv import DEVICE
from tests.properties import examples

pytest.importorskip("triton")

from bench.subjects.samples import samples_of

from skerry_core import sampling
from skerry_core.batch import Float32, SamplingBatch
from skerry_core.kernels.torch.torch_penalties import fed_tokens, penalize
from skerry_core.kernels.torch.torch_sampling import begin, sample
from skerry_core.kernels.triton import triton_sampling
from skerry_core.kernels.triton.triton_sampling import choose

pytestmark = [pytest.mark.gpu, pytest.mark.triton]


def random_sampling(count: int, seed: int) -> SamplingBatch:
    """Each sample with settings of its own, among them those that turn a filter off."""
    rng = np.random.default_rng(seed)
    return samples_of(
        count,
        position=rng.integers(0, 2**40, count),
        seed=rng.integers(0, 2**64, count, dtype=np.uint64),
        choice=rng.integers(0, 5, count).astype(np.int32),
        temperature=rng.choice([0, 0.3, 1, 1.7], count).astype(np.float32),
        top_p=rng.choice([0, 0.3, 0.9, 1], count).astype(np.float32),
        top_k=rng.choice([0, 0, 1, 3, 50], count).astype(np.int32),
        min_p=rng.choice([0, 0, 0.01, 0.5, 1], count).astype(np.float32),
        typical_p=rng.choice([1, 0.2, 0.95], count).astype(np.float32),
    )


def random_logits(count: int, vocab_size: int, seed: int, *, with_ties: bool) -> Float32:
    logits = np.random.default_rng(seed).normal(size=(count, vocab_size)).astype(np.float32) * 3
    return np.round(logits) if with_ties else logits


@settings(max_examples=examples(3), deadline=None)
@given(vocab_size=st.integers(1, 300), seed=st.integers(0, 999), with_ties=st.booleans())
def test_choices_are_those_of_the_meaning(vocab_size: int, seed: int, with_ties: bool) -> None:
    logits = random_logits(3, vocab_size, seed, with_ties=with_ties)
    batch = random_sampling(3, seed)
    expected = sampling.sample(logits, batch).token_ids
    told = sample(torch.from_numpy(logits).to(DEVICE), batch, choose)
    np.testing.assert_array_equal(told.token_ids, expected)


@settings(max_examples=examples(20), deadline=None)
@given(count=st.integers(1, 5), seed=st.integers(0, 9999), in_triton=st.booleans())
def test_tokens_that_are_fed_count_in_histories(count: int, seed: int, in_triton: bool) -> None:
    rng = np.random.default_rng(seed)
    logits, batch = random_logits(count, 20, seed, with_ties=True), random_sampling(count, seed)
    lengths = rng.integers(0, 9, count)
    batch.history_start = np.cumsum([0, *lengths], dtype=np.int32)
    ids = [rng.choice(20, size, replace=False) for size in lengths]
    batch.history_ids = np.concatenate(ids).astype(np.int32)
    batch.history_counts = rng.integers(0, 4, lengths.sum()).astype(np.int32)
    batch.samples["repetition_penalty"] = rng.choice([1, 0.5, 1.3], count)
    batch.samples["frequency_penalty"] = rng.choice([0, -2, 0.7], count)
    batch.samples["presence_penalty"] = rng.choice([0, -2, 0.7], count)
    batch.samples["temperature"] = rng.choice([0, 1.7], count) if in_triton else 0
    fed, made = without_last(batch, rng, 2 * count)
    before = torch.from_numpy(made).to(DEVICE).long()
    on_device = torch.from_numpy(logits).to(DEVICE)
    told = begin(on_device, fed, choose if in_triton else None, None, fed_tokens(fed, before))
    np.testing.assert_array_equal(told.result().token_ids, sampling.sample(logits, batch).token_ids)
    adjusted = on_device.clone()
    penalize(adjusted, fed, fed_tokens(fed, before))
    whole = on_device.clone()
    penalize(whole, batch, None)
    assert torch.equal(adjusted, whole)


def test_a_vocabulary_of_several_chunks() -> None:
    logits, batch = random_logits(1, 5001, 1, with_ties=True), random_sampling(1, 2)
    for name, value in {"temperature": 1.7, "top_p": 0.9, "top_k": 3000}.items():
        batch.samples[name] = value
    expected = sampling.sample(logits, batch).token_ids
    told = sample(torch.from_numpy(logits).to(DEVICE), batch, choose)
    np.testing.assert_array_equal(told.token_ids, expected)


@pytest.mark.parametrize("room", [pytest.param(1, marks=pytest.mark.slow), 100])
def test_a_bin_of_more_tokens_than_are_gathered(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr(triton_sampling, "GATHERED", room)
    logits, batch = random_logits(6, 400, 5, with_ties=True), random_sampling(6, 4)
    batch.samples["temperature"] = 1.7
    expected = sampling.sample(logits, batch).token_ids
    told = sample(torch.from_numpy(logits).to(DEVICE), batch, choose)
    np.testing.assert_array_equal(told.token_ids, expected)


def test_weights_whose_sum_a_float64_does_not_hold() -> None:
    logits, batch = np.zeros((3, 20_001), np.float32), random_sampling(3, 6)
    logits[1:, ::3] = -1.0
    for name, value in {"temperature": 1.0, "top_p": 0.9, "min_p": 0.0, "typical_p": 1.0}.items():
        batch.samples[name] = value
    batch.samples["top_k"] = [0, 0, 17_000]
    expected = sampling.sample(logits, batch).token_ids
    told = sample(torch.from_numpy(logits).to(DEVICE), batch, choose)
    np.testing.assert_array_equal(told.token_ids, expected)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_odd_logits(temperature: float) -> None:
    logits = np.zeros((5, 70), np.float32)
    logits[0] = -np.inf  # nothing is possible
    logits[1, ::2] = -0.0  # as likely as 0
    logits[2, 1:] = -np.inf
    logits[3] = np.nan
    logits[4, 3] = np.inf
    batch = random_sampling(5, 3)
    batch.samples["temperature"] = temperature
    told = sample(torch.from_numpy(logits).to(DEVICE), batch, choose)
    np.testing.assert_array_equal(told.token_ids, sampling.sample(logits, batch).token_ids)
    assert told.token_ids[0] == -1
