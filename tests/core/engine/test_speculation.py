"""Speculation changes how many steps an answer takes, and nothing else about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bench.subjects.requests import Request
from hypothesis import given
from hypothesis import strategies as st
from tests.core.byte_grammars import END, compiled
from tests.core.engine.drafting import draft_true_tokens, speculator_of
from tests.core.engine.test_engine import STYLES, make_engine, mixed_requests, run_one
from tests.core.toy_oracle import VOCAB, Answer, expected, prompt, request, run

from skerry_core.batch import ForwardBatch, Int32
from skerry_core.config import ConfigError, EngineConfig
from skerry_core.engine.drafts.acceptance import Acceptance
from skerry_core.engine.drafts.prompt_lookup import MAX_MATCH, MIN_MATCH, find_match, followers
from skerry_core.engine.engine import Engine
from skerry_core.engine.sequence import Sequence as Stream
from skerry_core.engine.step_price import StepPrice
from skerry_core.request import KVBlock
from skerry_core.runners.toy import ToyRunner

# --- the same answers ----------------------------------------------------------------------------


def oracle(patch: pytest.MonkeyPatch, requests: Sequence[Request], seed: int = 0) -> None:
    answers = {one.id: expected(one).token_ids for one in requests}
    draft_true_tokens(patch, answers, VOCAB, seed)


def check_drafted(engine: Engine) -> None:
    """Some drafts were right and some were not, or the test shows nothing."""
    speculator = speculator_of(engine)
    assert 0 < speculator.num_accepted < speculator.num_drafted


@pytest.mark.parametrize("max_step_tokens", [2, 3, 8, 64, 512])
def test_batched_and_chunked(monkeypatch: pytest.MonkeyPatch, max_step_tokens: int) -> None:
    requests = mixed_requests()
    oracle(monkeypatch, requests)
    engine = make_engine(max_step_tokens=max_step_tokens)
    for one in requests:
        engine.add(one.sequence())
    answers = run(engine)
    for one in requests:
        assert answers[one.id] == expected(one), one.id
    check_drafted(engine)


@pytest.mark.parametrize("num_blocks", [3, 5, 9])
def test_preempted(monkeypatch: pytest.MonkeyPatch, num_blocks: int) -> None:
    requests = [
        request(f"{style} {i}", 40, salt=i, max_tokens=60, tenant=style, **fields)
        for style, fields in STYLES.items()
        for i in range(2)
    ]
    oracle(monkeypatch, requests)
    engine = make_engine(num_blocks=num_blocks)
    for one in requests:
        engine.add(one.sequence())
    answers = run(engine)
    assert engine.statistics().preemptions > 0
    for one in requests:
        assert answers[one.id] == expected(one), one.id
    check_drafted(engine)


@pytest.mark.parametrize("style", STYLES)
def test_resumed_at_every_point(monkeypatch: pytest.MonkeyPatch, style: str) -> None:
    one = request(prompt_length=60, max_tokens=30, **STYLES[style])
    whole = expected(one)
    oracle(monkeypatch, [one])
    engine = make_engine()
    for point in range(len(whole.token_ids) + 1):
        resumed = run_one(engine, replace(one, output_ids=tuple(whole.token_ids[:point])))
        assert resumed.token_ids == whole.token_ids[point:]
        assert resumed.logprobs == whole.logprobs[point:]
        assert resumed.finish_reason == whole.finish_reason
    check_drafted(engine)


def test_aborted_between_any_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    doomed, survivor = request("doomed", 60, max_tokens=40), request("s", 70, 1, max_tokens=40)
    oracle(monkeypatch, [doomed, survivor])
    for point in range(12):
        engine = make_engine()
        engine.add(survivor.sequence())
        engine.add(doomed.sequence())
        answers = {"s": Answer(), "doomed": Answer()}
        for _ in range(point):
            for output in engine.step():
                answers[output.request_id].add(output)
        engine.abort("doomed")
        while engine.has_work:
            for output in engine.step():
                answers[output.request_id].add(output)
            engine.pool.sanity_check()
        assert answers["s"] == expected(survivor)
        cut = answers["doomed"].token_ids
        assert cut == expected(doomed).token_ids[: len(cut)]
        assert engine.pool.num_used == 0


def test_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt computed by one engine, the answer by another, both of which may draft."""
    one = request(prompt_length=200, max_tokens=50, cache_key=b"tenant")
    oracle(monkeypatch, [one])
    first = make_engine()
    first.add(
        replace(one, exports_kv=True, sampling=replace(one.sampling, max_tokens=1)).sequence()
    )
    kv: list[KVBlock] = []
    made: list[int] = []
    while first.has_work:
        for output in first.step():
            kv += output.kv
            made += output.token_ids
    assert speculator_of(first).num_drafted == 0
    second = make_engine()
    answer = run_one(second, replace(one, kv=tuple(kv), output_ids=tuple(made)))
    assert made + answer.token_ids == expected(one).token_ids
    assert answer.usage is not None
    assert answer.usage.cached_tokens == 199
    assert answer.usage.decode_steps < answer.usage.decode_tokens == 49
    check_drafted(second)


def test_only_accepted_tokens_become_prefix_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next turn reads the first one's blocks, and the toy computes from what is in them."""
    first = request(prompt_length=50, max_tokens=300)
    oracle(monkeypatch, [first])
    engine = make_engine()
    turn = first.prompt_ids + tuple(run_one(engine, first).token_ids) + (1, 2, 3)
    check_drafted(engine)
    second = request("second", prompt_ids=turn, max_tokens=20)
    answer = run_one(engine, second)
    assert answer == expected(second)
    assert answer.usage is not None
    assert answer.usage.cached_tokens == (50 + 300 - 1) // 64 * 64


def test_nothing_is_drafted_under_a_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = compiled("regex", "[ab]{1,200}")
    plain = request(max_tokens=100, stop_token_ids=(END,))
    draft_true_tokens(monkeypatch, {"r": [ord("a")] * 100}, VOCAB)
    engine = make_engine()
    answer = run_one(engine, replace(plain, matcher=grammar.matcher()))
    assert set(answer.token_ids) <= {ord("a"), ord("b"), END}
    assert speculator_of(engine).num_drafted == 0


def test_nothing_is_drafted_where_batches_change_bits() -> None:
    runner = ToyRunner(num_blocks=8)
    runner.batch_invariant = False
    assert Engine(runner, EngineConfig(), model_key=b"toy")._speculator is None
    config = EngineConfig(max_draft_tokens=0)
    assert Engine(ToyRunner(num_blocks=8), config, model_key=b"toy")._speculator is None
    with pytest.raises(ConfigError, match="max_draft_tokens must not be negative, got -1"):
        EngineConfig(max_draft_tokens=-1)


# --- chosen by what it brings --------------------------------------------------------------------

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
