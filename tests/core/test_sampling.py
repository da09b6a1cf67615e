"""The meaning of sampling: which token each parameter leaves, and what its logprob is."""

from typing import Any

import numpy as np
import pytest
from tests.core.sampled_rows import INF, batch, compiled, with_history

from skerry_core.batch import SamplingBatch
from skerry_core.sampling import sample, typical, weights


def with_bias(bias: dict[int, float], **overrides: Any) -> SamplingBatch:
    return batch(
        bias_start=np.array([0, len(bias)], np.int32),
        bias_ids=np.array(list(bias), np.int32),
        bias_values=np.array(list(bias.values()), np.float32),
        **overrides,
    )


@pytest.fixture(params=[sample, compiled], ids=["reference", "compiled"])
def sampler(request: pytest.FixtureRequest) -> Any:
    return request.param


def row(*logits: float) -> Any:
    return np.array([logits], np.float32)


def choices_of(sampler: Any, logits: Any, draws: int = 600, **overrides: Any) -> Any:
    """Share of each token over `draws` positions."""
    rows = np.repeat(logits, draws, axis=0)
    ids = sampler(rows, batch(draws, **overrides)).token_ids
    return np.bincount(ids, minlength=logits.shape[1]) / draws


# -- the meaning, of both ----------------------------------------------------------------------


def test_greedy_takes_the_lowest_id_among_equals(sampler: Any) -> None:
    assert sampler(row(1, 3, 2, 3), batch()).token_ids == [1]
    assert sampler(row(-0.0, 0.0), batch(temperature=9e-6)).token_ids == [0]


def test_draws_follow_the_softmax_at_the_temperature(sampler: Any) -> None:
    logits = row(2, 1, 0, -1)
    for temperature in (0.5, 1.0, 2.0):
        expected = np.exp(logits[0] / temperature)
        shares = choices_of(sampler, logits, temperature=temperature)
        np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.05)


def test_top_k_keeps_exactly_k_ties_by_id(sampler: Any) -> None:
    shares = choices_of(sampler, row(1, 2, 2, 2), temperature=1, top_k=2)
    np.testing.assert_allclose(shares, [0, 0.5, 0.5, 0], atol=0.05)


def test_top_p_keeps_the_shortest_prefix_that_reaches_it(sampler: Any) -> None:
    logits = np.log(np.array([[0.2, 0.5, 0.3]], np.float32))
    assert choices_of(sampler, logits, temperature=1, top_p=0.49).tolist() == [0, 1, 0]
    shares = choices_of(sampler, logits, temperature=1, top_p=0.79)
    np.testing.assert_allclose(shares, [0, 0.625, 0.375], atol=0.05)
    assert np.all(choices_of(sampler, logits, temperature=1, top_p=0.81) > 0)


def test_top_p_is_of_what_top_k_left(sampler: Any) -> None:
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], np.float32))
    shares = choices_of(sampler, logits, temperature=1, top_k=2, top_p=0.5)  # 0.4 / 0.7 > 0.5
    assert shares.tolist() == [1, 0, 0, 0]


def test_min_p_is_relative_to_the_most_likely(sampler: Any) -> None:
    logits = np.log(np.array([[0.6, 0.25, 0.15]], np.float32))
    shares = choices_of(sampler, logits, temperature=1, min_p=0.3)  # at least 0.18
    np.testing.assert_allclose(shares, [0.6 / 0.85, 0.25 / 0.85, 0], atol=0.05)
    assert choices_of(sampler, row(1, 2, 2), temperature=1, min_p=1.0)[0] == 0


def test_typical_p_keeps_what_is_nearest_to_the_entropy(sampler: Any) -> None:
    # The entropy is 2.055: -ln 0.06 is 0.759 away from it, and -ln 0.4 is 1.138 away.
    logits = np.log(np.array([[0.4] + [0.06] * 10], np.float32))
    shares = choices_of(sampler, logits, temperature=1, typical_p=0.1)  # equals stay together
    np.testing.assert_allclose(shares, [0] + [0.1] * 10, atol=0.05)
    assert choices_of(sampler, logits, temperature=1, typical_p=0.59)[0] == 0
    assert choices_of(sampler, logits, temperature=1, typical_p=0.61)[0] == pytest.approx(0.4, 0.1)
    assert sampler(logits, batch(typical_p=0.1)).token_ids == [0]  # greedy


def test_top_k_is_of_what_typical_p_left(sampler: Any) -> None:
    logits = np.log(np.array([[0.4] + [0.06] * 10], np.float32))
    shares = choices_of(sampler, logits, temperature=1, typical_p=0.5, top_k=1)
    assert shares.tolist() == [0, 1] + [0] * 9


@pytest.mark.parametrize("temperature", [0.4, 1.0, 1.9])
@pytest.mark.parametrize("mass", [0.05, 0.2, 0.5, 0.9, 0.999])
def test_typical_p_keeps_what_transformers_keeps(mass: float, temperature: float) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    warper = transformers.TypicalLogitsWarper(mass=mass)
    rng = np.random.default_rng(17)
    spreads = rng.choice([0.1, 1, 3, 8], (40, 1))
    logits = (rng.normal(size=(40, 700)) * spreads).astype(np.float32)
    expected = warper(None, torch.from_numpy(logits.astype(np.float64) / temperature))
    params = batch(temperature=temperature, typical_p=mass).samples[0]
    for ours, theirs in zip(logits, expected.numpy(), strict=True):
        kept = np.isfinite(typical(ours, params))
        # A weight below 2^-41 is none: whether such a token is "kept" cannot be seen.
        counts = weights((ours - ours.max()) / np.float32(temperature)) > 0
        np.testing.assert_array_equal(kept & counts, np.isfinite(theirs) & counts)


def test_repetition_penalty_covers_prompt_and_output(sampler: Any) -> None:
    logits = row(3.0, 2.0, -1.0)
    assert sampler(logits, with_history({0: 0}, repetition_penalty=2.0)).token_ids == [1]
    assert sampler(logits, with_history({0: 1, 1: 1}, repetition_penalty=0.5)).token_ids == [0]
    assert sampler(row(-1.0, -1.5), with_history({0: 0}, repetition_penalty=2.0)).token_ids == [
        1
    ]  # a negative logit is multiplied


def test_frequency_and_presence_penalties_cover_the_output_alone(sampler: Any) -> None:
    logits = row(3.0, 2.0)
    for penalty in ("frequency_penalty", "presence_penalty"):
        assert sampler(logits, with_history({0: 0}, **{penalty: 1.5})).token_ids == [0]
        assert sampler(logits, with_history({0: 1}, **{penalty: 1.5})).token_ids == [1]
    assert sampler(logits, with_history({0: 3}, presence_penalty=0.5)).token_ids == [0]
    assert sampler(logits, with_history({0: 3}, frequency_penalty=0.5)).token_ids == [1]


def test_bias_adds_and_forbids(sampler: Any) -> None:
    assert sampler(row(1, 0), with_bias({1: 2.0})).token_ids == [1]
    assert sampler(row(1, 0), with_bias({0: -INF})).token_ids == [1]


def test_a_mask_leaves_the_allowed_tokens(sampler: Any) -> None:
    logits = np.arange(70, dtype=np.float32)[None]
    allowed = np.zeros((1, 3), np.uint32)
    for token in (3, 31, 32, 64):
        allowed[0, token // 32] |= np.uint32(1 << (token % 32))
    assert sampler(logits, batch(allowed=allowed)).token_ids == [64]
    allowed[0, 2] = 0
    assert sampler(logits, batch(allowed=allowed)).token_ids == [32]


def test_no_possible_token_is_said(sampler: Any) -> None:
    for temperature in (0.0, 1.0):
        params = batch(temperature=temperature, num_logprobs=1)
        for logits in (row(-INF, -INF), row(np.nan, -INF)):
            result = sampler(logits, params)
            assert result.token_ids == [-1]
            assert result.logprobs == [-np.inf]
    nothing = np.zeros((1, 1), np.uint32)
    assert sampler(row(1, 2), batch(allowed=nothing)).token_ids == [-1]


def test_a_target_is_chosen_and_has_the_raw_logprob(sampler: Any) -> None:
    result = sampler(row(2, 1, 0), batch(target=2, num_logprobs=0, temperature=0.1))
    assert result.token_ids == [2]
    assert result.logprobs[0] == pytest.approx(-2.40760596, abs=2e-7)


def test_logprobs_are_of_the_unadjusted_distribution(sampler: Any) -> None:
    params = with_bias({2: 5.0}, num_logprobs=2, temperature=3.0, top_k=1)
    result = sampler(row(2, 1, 0), params)
    assert result.token_ids == [2]
    assert result.logprobs[0] == pytest.approx(-2.40760596, abs=2e-7)
    assert result.top_ids.tolist() == [[0, 1]]
    np.testing.assert_allclose(result.top_logprobs, [[-0.40760596, -1.40760596]], atol=2e-7)


def test_top_logprobs_break_ties_by_id_and_pad(sampler: Any) -> None:
    params = batch(3, num_logprobs=[5, 2, -1])
    result = sampler(np.array([[0, 1, 1]] * 3, np.float32), params)
    assert result.top_ids.tolist() == [[1, 2, 0, -1, -1], [1, 2, -1, -1, -1], [-1] * 5]
    assert np.all(result.top_logprobs[result.top_ids < 0] == -np.inf)


def test_logprobs_are_within_an_ulp_of_the_true_ones(sampler: Any) -> None:
    logits = (np.random.default_rng(3).normal(size=(1, 30_000)) * 4).astype(np.float32)
    result = sampler(logits, batch(num_logprobs=20))
    exact = logits[0].astype(np.float64)
    exact -= np.log(np.exp(exact).sum())
    np.testing.assert_allclose(result.top_logprobs[0], exact[result.top_ids[0]], rtol=2e-7)
