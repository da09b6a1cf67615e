"""The compiled sampler against the reference: same tokens, same bits."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.core.sampled_rows import INF, batch, compiled, with_history

from skerry_core.batch import SamplingBatch, StepResult
from skerry_core.sampling import sample

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
