"""Which drafts are made: those that pay, judged by sequence, and what prompt lookup finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from bench.subjects.requests import Request
from hypothesis import given
from hypothesis import strategies as st
from tests.core.engine.drafting import speculator_of
from tests.core.engine.toy_engine import make_engine, mixed_requests, run_one
from tests.core.toy_oracle import VOCAB, expected, prompt, request, run

from skerry_core.batch import ForwardBatch, Int32
from skerry_core.config import EngineConfig
from skerry_core.engine.drafts.acceptance import Acceptance
from skerry_core.engine.drafts.prompt_lookup import MAX_MATCH, MIN_MATCH, find_match, followers
from skerry_core.engine.engine import Engine
from skerry_core.engine.sequence import Sequence as Stream
from skerry_core.engine.step_price import StepPrice
from skerry_core.runners.toy import ToyRunner

BASE, PER_TOKEN = 3.0, 1.0  # seconds of a step


class Timed:
    """An engine over the toy, whose steps take a base and a price per token on its clock."""

    def __init__(self, **config: Any) -> None:
        self.now = 0.0
        self.steps: list[int] = []
        runner = ToyRunner(num_blocks=512, vocab_size=VOCAB, before_step=self._run)
        self.engine = Engine(
            runner, EngineConfig(**config), model_key=b"toy", clock=lambda: self.now
        )

    def _run(self, batch: ForwardBatch) -> None:
        self.now += BASE + PER_TOKEN * batch.num_tokens
        self.steps.append(batch.num_tokens)

    def seconds(self, requests: Sequence[Request]) -> float:
        """Of all of them together."""
        started = self.now
        for one in requests:
            self.engine.add(one.sequence())
        run(self.engine)
        return self.now - started


def test_a_stream_that_repeats_itself_takes_less_than_half_the_time() -> None:
    drafting, plain = Timed(), Timed(max_draft_tokens=0)
    constant = [request(prompt_length=20, max_tokens=400, logit_bias=((3, 1000.0),))]
    assert drafting.seconds(constant) < 0.45 * plain.seconds(constant)


class Misled(Timed):
    """Every draft is wrong, and looks as good as can be."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        speculator = speculator_of(self.engine)
        wrong = np.full(8, VOCAB - 1, np.int32)
        speculator.propose = lambda sequence, limit: (wrong[:limit], 3)  # type: ignore[method-assign]


def test_a_stream_whose_drafts_would_be_wrong_loses_nothing() -> None:
    misled, plain = Misled(), Timed(max_draft_tokens=0)
    one = [request(prompt_length=20, max_tokens=1000)]
    assert misled.seconds(one) == plain.seconds(one)
    assert speculator_of(misled.engine).num_drafted == 0


def test_a_stream_that_repeats_itself_drafts_beside_one_that_is_misled() -> None:
    """In the same steps, each by what its own drafts were worth."""
    engine = Timed().engine
    speculator, wrong = speculator_of(engine), np.full(8, VOCAB - 1, np.int32)
    propose = speculator.propose
    speculator.propose = (
        lambda sequence, limit: (  # type: ignore[method-assign]
            (wrong[:limit], 8) if sequence.id == "misled" else propose(sequence, limit)
        )
    )
    engine.add(request("constant", 20, max_tokens=400, logit_bias=((3, 1000.0),)).sequence())
    engine.add(request("misled", 20, 1, max_tokens=400).sequence())
    answers = run(engine)
    constant, misled = answers["constant"].usage, answers["misled"].usage
    assert constant is not None
    assert misled is not None
    assert constant.decode_steps < 0.3 * constant.decode_tokens
    assert misled.decode_steps > 0.95 * misled.decode_tokens
    assert speculator.num_drafted - speculator.num_accepted < 30


def test_a_step_of_many_streams_drafts_only_what_is_nearly_certain() -> None:
    timed = Timed()
    timed.seconds([request(str(i), 20, i, max_tokens=100) for i in range(32)])
    assert speculator_of(timed.engine).num_drafted == 0


def test_each_sequence_is_judged_by_its_own_drafts() -> None:
    """One that repeats itself beside one that is misled."""
    good, bad = Acceptance(), Acceptance()
    for _ in range(30):
        good.note(8, 4, 4)
        bad.note(8, 4, 0)
    assert good.of(8) > 0.95
    assert bad.of(8) < 0.05
    assert bad.of(3) == Acceptance().of(3)


def test_guesses_count_once_the_token_is_there() -> None:
    acceptance, tokens = Acceptance(), np.array([5, 6, 7], np.int32)
    acceptance.guess(2, 7, 3)
    acceptance.count_guess(tokens[:2])
    assert acceptance.of(3) == Acceptance().of(3)
    acceptance.count_guess(tokens)
    right = acceptance.of(3)
    assert right > Acceptance().of(3)
    acceptance.count_guess(tokens)
    assert acceptance.of(3) == right
    acceptance.guess(3, 7, 3)
    acceptance.count_guess(np.append(tokens, np.int32(8)))
    assert acceptance.of(3) < right


def test_a_stream_that_does_not_repeat_itself_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, looked = make_engine(), list[list[int]]()

    def propose(sequence: Stream, limit: int) -> tuple[Int32, int]:
        looked.append(sequence.tokens.tolist())
        return sequence.tokens[:0], 0

    monkeypatch.setattr(speculator_of(engine), "propose", propose)
    for one in mixed_requests():
        run_one(engine, one)
    for tokens in looked:
        assert any(tokens[i : i + MIN_MATCH] == tokens[-MIN_MATCH:] for i in range(len(tokens) - 3))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=120), st.integers(1, 119))
def test_each_repetition_is_noticed(tokens: list[int], prompt_tokens: int) -> None:
    given_ids, rest = tokens[:prompt_tokens], tokens[prompt_tokens:]
    sequence = request(prompt_ids=tuple(given_ids), max_tokens=200).sequence()
    sequence.arrive(0, 0.0, watches_runs=True)
    for token in rest:
        sequence.append(token)
        so_far = sequence.tokens.tolist()
        runs = [so_far[i : i + MIN_MATCH] for i in range(len(so_far) - MIN_MATCH)]
        assert sequence.is_recurring == (so_far[-MIN_MATCH:] in runs)


def test_the_price_of_a_token_is_learned_and_outliers_are_not() -> None:
    price = StepPrice()
    for i in range(200):
        n = 1 + i % 9
        price.observe(n, 0, 100.0 if i % 50 == 49 else BASE + PER_TOKEN * n)
    assert price.per_token == pytest.approx(PER_TOKEN, rel=0.3)
    assert price.of(4) == pytest.approx(BASE + 4 * PER_TOKEN, rel=0.2)


def test_a_clock_that_stands_still_is_no_division_by_zero() -> None:
    engine = Engine(ToyRunner(num_blocks=8), EngineConfig(), model_key=b"toy", clock=lambda: 1.0)
    one = request(prompt_ids=(5,) * 30, max_tokens=30, logit_bias=((5, 1000.0),))
    assert run_one(engine, one) == expected(one)


# --- prompt lookup -------------------------------------------------------------------------------


def slow_match(tokens: Sequence[int]) -> tuple[int, int]:
    """The meaning of `find_match`, place by place."""
    best = (0, 0)
    for end in range(1, len(tokens)):
        length = 0
        while length < min(end, MAX_MATCH) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= max(MIN_MATCH, best[1]):
            best = (end, length)
    return best


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60))
def test_the_longest_and_latest_match_is_found(tokens: list[int]) -> None:
    assert find_match(np.array(tokens, np.int32)) == slow_match(tokens)


def test_what_follows_goes_on_in_a_loop() -> None:
    tokens = np.array([9, 1, 2, 3, 1, 2, 3, 1, 2, 3], np.int32)
    place, match = find_match(tokens)
    assert (place, match) == (7, 6)
    assert followers(tokens, place, 7).tolist() == [1, 2, 3, 1, 2, 3, 1]


def test_no_draft_holds_a_token_that_would_end_the_output() -> None:
    engine = make_engine()
    tokens = (*prompt(40), 7, 8, 9, 10, 11, 12, 7, 8, 9)
    engine.add(request(prompt_ids=tokens, max_tokens=20, stop_token_ids=(12,)).sequence())
    (sequence,) = engine._sequences.values()
    drafts, match = speculator_of(engine).propose(sequence, 8)
    assert (drafts.tolist(), match) == ([10, 11], 3)
    engine.abort("r")
    run(engine)
