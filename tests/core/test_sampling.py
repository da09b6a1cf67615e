"""The meaning of sampling, and the compiled sampler against it: same tokens, same bits."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from bench.subjects.samples import samples_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from skerry_core.batch import SamplingBatch, StepResult
from skerry_core.kernels.cpu.numba_sampling import SamplingOutput, sample_row, sampling_arrays
from skerry_core.kernels.cpu.sampling_bins import sampler_scratch
from skerry_core.sampling import sample, typical, weights

INF = float("inf")


def batch(num_samples: int = 1, **overrides: Any) -> SamplingBatch:
    """Greedy samples without penalties; an override is one value for all, or an array."""
    return samples_of(num_samples, **({"position": np.arange(num_samples), "seed": 7} | overrides))


def with_history(tokens: dict[int, int], **overrides: Any) -> SamplingBatch:
    """One sample with `tokens`: id to count in the output."""
    return batch(
        history_start=np.array([0, len(tokens)], np.int32),
        history_ids=np.array(list(tokens), np.int32),
        history_counts=np.array(list(tokens.values()), np.int32),
        **overrides,
    )


def with_bias(bias: dict[int, float], **overrides: Any) -> SamplingBatch:
    return batch(
        bias_start=np.array([0, len(bias)], np.int32),
        bias_ids=np.array(list(bias), np.int32),
        bias_values=np.array(list(bias.values()), np.float32),
        **overrides,
    )


def compiled(logits: Any, sampling: SamplingBatch) -> StepResult:
    num_samples, vocab_size = logits.shape
    width = max(0, int(sampling.samples["num_logprobs"].max()))
    output = SamplingOutput(
        token_ids=np.empty(num_samples, np.int32),
        logprobs=np.zeros(num_samples, np.float32),
        top_ids=np.empty((num_samples, width), np.int32),
        top_logprobs=np.empty((num_samples, width), np.float32),
    )
    scratch = sampler_scratch(vocab_size)
    for s in range(num_samples):
        sample_row(logits[s], sampling_arrays(sampling), s, scratch, output)
    return StepResult(**output._asdict())


@pytest.fixture(params=[sample, compiled], ids=["reference", "compiled"])
def sampler(request: pytest.FixtureRequest) -> Any:
    return request.param


def row(*logits: float) -> Any:
    return np.array([logits], np.float32)


def choices_of(sampler: Any, logits: Any, draws: int = 1500, **overrides: Any) -> Any:
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


# -- compiled against the meaning --------------------------------------------------------------


def assert_same(got: StepResult, expected: StepResult, sampling: SamplingBatch) -> None:
    np.testing.assert_array_equal(got.token_ids, expected.token_ids)
    np.testing.assert_array_equal(got.top_ids, expected.top_ids)
    asked = sampling.samples["num_logprobs"] >= 0
    np.testing.assert_array_equal(got.logprobs[asked], expected.logprobs[asked])
    np.testing.assert_array_equal(got.top_logprobs, expected.top_logprobs)


LOGITS = st.one_of(
    st.floats(-30, 30, width=32),
    st.sampled_from([0.0, -0.0, 1.0, 1.0000001, -INF, INF, 3e38, -3e38, 1e-40, float("nan")]),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, SamplingBatch]:
    vocab_size = draw(st.integers(1, 200))
    logits = draw(
        st.one_of(
            arrays(np.float32, (1, vocab_size), elements=LOGITS),
            arrays(np.float32, (1, vocab_size), elements=st.sampled_from([0.0, 1.0, 2.0])),
            arrays(np.float32, (1, vocab_size), elements=st.floats(0, 2**-20, width=32)),
        )
    )
    token = st.integers(0, vocab_size - 1)
    history = draw(st.dictionaries(token, st.integers(0, 5), max_size=8))
    bias = draw(st.dictionaries(token, st.sampled_from([-INF, -100.0, 0.5, 100.0]), max_size=8))
    words = (vocab_size + 31) // 32
    allowed = arrays(np.uint32, (1, words), elements=st.integers(0, 2**32 - 1))
    sampling = with_history(
        history,
        bias_start=np.array([0, len(bias)], np.int32),
        bias_ids=np.array(list(bias), np.int32),
        bias_values=np.array(list(bias.values()), np.float32),
        allowed=draw(st.just(np.zeros((1, 0), np.uint32)) | allowed),
        position=draw(st.integers(0, 1 << 40)),
        seed=draw(st.integers(0, 2**64 - 1)),
        choice=draw(st.integers(0, 127)),
        temperature=draw(st.sampled_from([0.0, 1e-5, 0.3, 1.0, 5.0, 1000.0])),
        top_p=draw(st.sampled_from([1e-6, 0.5, 0.95, 0.999, 1.0]) | st.floats(0.01, 1.0)),
        top_k=draw(st.sampled_from([0, 1, 2, 40]) | token),
        min_p=draw(st.sampled_from([0.0, 0.05, 1.0])),
        typical_p=draw(st.sampled_from([1.0, 0.999, 0.5, 1e-6]) | st.floats(0.01, 1.0)),
        repetition_penalty=draw(st.sampled_from([1.0, 0.5, 1.3, 2.0])),
        frequency_penalty=draw(st.sampled_from([0.0, -2.0, 0.7])),
        presence_penalty=draw(st.sampled_from([0.0, -2.0, 0.7])),
        num_logprobs=draw(st.integers(-1, 25)),
        target=draw(st.just(-1) | token),
    )
    return logits, sampling


@given(cases())
def test_compiled_equals_the_reference(case: tuple[Any, SamplingBatch]) -> None:
    logits, sampling = case
    assert_same(compiled(logits, sampling), sample(logits, sampling), sampling)


SHAPES = {
    "peaked": lambda rng, v: rng.normal(size=v) * 3 + (rng.random(v) < 0.001) * 12,
    "flat": lambda rng, v: rng.normal(size=v) * 1e-4,  # one bin
    "constant": lambda rng, v: np.zeros(v),
    "two values": lambda rng, v: rng.integers(0, 2, v),
    "half forbidden": lambda rng, v: np.where(rng.random(v) < 0.5, -np.inf, rng.normal(size=v)),
    "huge": lambda rng, v: rng.uniform(-3e38, 3e38, v),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "filters",
    [{}, {"top_p": 0.999}, {"top_k": 3000, "top_p": 0.7}, {"typical_p": 0.9, "min_p": 0.01}],
)
def test_compiled_equals_the_reference_over_a_real_vocabulary(
    shape: str, filters: dict[str, float]
) -> None:
    rng = np.random.default_rng(11)
    logits = np.stack([SHAPES[shape](rng, 49_152) for _ in range(4)]).astype(np.float32)
    sampling = batch(4, temperature=[0.7, 1.0, 5.0, 100.0], num_logprobs=20, **filters)
    assert_same(compiled(logits, sampling), sample(logits, sampling), sampling)


def test_any_thread_chooses_the_same() -> None:
    logits = (np.random.default_rng(5).normal(size=(32, 5000)) * 2).astype(np.float32)
    sampling = batch(32, temperature=1.0, top_p=0.95, num_logprobs=3)
    alone = compiled(logits, sampling)
    with ThreadPoolExecutor(4) as pool:
        for together in pool.map(lambda _: compiled(logits, sampling), range(4)):
            assert_same(together, alone, sampling)
