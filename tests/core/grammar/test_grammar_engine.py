"""The engine under grammars: whole outputs, the same tokens whatever happens, no step held up."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import numpy as np
import pytest
from bench.subjects.requests import Request
from tests.clock import Clock
from tests.core.byte_grammars import END, compiled, text
from tests.core.toy_oracle import Answer, expected, prompt, request, run

from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.engine.masks import MASK_SECONDS
from skerry_core.grammar.matcher import CompiledGrammar, GrammarError, Matcher
from skerry_core.request import Output
from skerry_core.runners.toy import ToyRunner

PERSON = compiled(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 8},
                "ages": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
            },
            "required": ["name", "ages"],
            "additionalProperties": False,
        }
    ),
)
STYLES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.5, "top_p": 0.95, "top_k": 20, "seed": 7},
    "penalised": {"repetition_penalty": 1.3, "presence_penalty": 2.0},
    "logprobs": {"temperature": 1.0, "logprobs": 2, "prompt_logprobs": 1},
}


def engine_of(**fields: Any) -> Engine:
    clock = fields.pop("clock", count(step=1e-6).__next__)
    runner = ToyRunner(num_blocks=fields.pop("num_blocks", 64))
    return Engine(runner, EngineConfig(**fields), model_key=b"toy", clock=clock)


def person(id: str = "r", grammar: CompiledGrammar = PERSON, **fields: Any) -> Request:
    matcher = grammar.matcher(fields.get("output_ids", ()))
    fields = {"max_tokens": 400, "stop_token_ids": (END,)} | fields
    return request(id, matcher=matcher, **fields)


def answer_of(one: Request) -> Answer:
    engine = engine_of()
    engine.add(one.sequence())
    return run(engine)[one.id]


@pytest.mark.parametrize("style", STYLES)
def test_the_output_follows_the_grammar_and_stops(style: str) -> None:
    answer = answer_of(person(**STYLES[style]))
    assert answer.finish_reason == "stop"
    assert json.loads(text(answer.token_ids)).keys() == {"name", "ages"}


def test_masks_change_the_choice_and_not_the_logprobs() -> None:
    answer = answer_of(person(logprobs=0, prompt_logprobs=0))
    assert answer.token_ids[0] == ord("{")
    logprob, _ = answer.logprobs[0]
    assert logprob < -1.0  # of the raw distribution, in which it is not likely
    assert len(answer.prompt_logprobs) == 9


def test_max_tokens_cut_it() -> None:
    answer = answer_of(person(max_tokens=3))
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", 3)


def test_a_grammar_without_an_end_token_in_the_stops() -> None:
    answer = answer_of(person(grammar=compiled("regex", "[ab]{2,3}"), stop_token_ids=()))
    assert answer.finish_reason == "stop"
    assert set(text(answer.token_ids)) <= set("ab")


def test_among_others_it_is_the_same() -> None:
    alone = {style: answer_of(person(style, **fields)) for style, fields in STYLES.items()}
    engine = engine_of(max_step_tokens=16)
    free = [request(f"free {n}", 30 + n, max_tokens=40) for n in range(3)]
    for one in (*free, *(person(style, **fields) for style, fields in STYLES.items())):
        engine.add(one.sequence())
    answers = run(engine)
    assert {style: answers[style] for style in STYLES} == alone
    assert all(answers[one.id] == expected(one) for one in free)


def test_preemption_changes_nothing() -> None:
    grammar = compiled("regex", "[a-z ]{200}")
    prompts = {f"r{n}": prompt(60, salt=n) for n in range(3)}

    def ask(id: str) -> Request:
        return person(id, grammar, prompt_ids=prompts[id], temperature=1.0, max_tokens=200)

    engine = engine_of(num_blocks=8)
    for id in prompts:
        engine.add(ask(id).sequence())
    answers = run(engine)
    assert engine.statistics().preemptions > 0
    assert answers == {id: answer_of(ask(id)) for id in prompts}


@pytest.mark.parametrize("style", STYLES)
def test_it_goes_on_elsewhere_with_the_same_tokens(style: str) -> None:
    whole = answer_of(person(**STYLES[style]))
    for cut in range(1, len(whole.token_ids) + 1, 5):
        resumed = answer_of(person(output_ids=tuple(whole.token_ids[:cut]), **STYLES[style]))
        assert whole.token_ids[:cut] + resumed.token_ids == whole.token_ids
        assert resumed.finish_reason == "stop"


def test_a_matcher_that_lags_behind_the_transcript_is_caught_up() -> None:
    whole = answer_of(person())
    late = request(
        matcher=PERSON.matcher(whole.token_ids[:2]),
        output_ids=tuple(whole.token_ids[:5]),
        max_tokens=400,
        stop_token_ids=(END,),
    )
    assert answer_of(late).token_ids == whole.token_ids[5:]


def failures(outputs: list[Output]) -> dict[str, str | None]:
    return {output.request_id: output.failure for output in outputs if output.finish_reason}


def test_a_transcript_that_breaks_the_grammar_fails_alone() -> None:
    engine = engine_of()
    engine.add(request("bad", matcher=PERSON.matcher(), output_ids=(1, 2), max_tokens=9).sequence())
    engine.add(person("good").sequence())
    ended: dict[str, str | None] = {}
    while engine.has_work:
        ended |= failures(engine.step())
    assert ended["good"] is None
    assert ended["bad"]
    assert engine.pool.num_used == 0


class Slow(Matcher):
    """A matcher whose masks take as long as it says, on the engine's clock."""

    def __init__(self, matcher: Matcher, clock: Clock, seconds: float) -> None:
        super().__init__(matcher._matcher, matcher._grammar)
        self.mask = matcher.mask
        self.clock, self.seconds = clock, seconds

    def fill(self, left: int | None = None) -> None:
        if self.mask is None:
            self.clock.now += self.seconds
        super().fill(left)


def test_slow_masks_hold_up_their_own_sequences_only() -> None:
    clock = Clock()
    engine = engine_of(clock=clock)
    for n in range(8):
        matcher = Slow(compiled("regex", "[a-c]{6}").matcher(), clock, MASK_SECONDS / 2)
        engine.add(request(f"slow {n}", matcher=matcher, max_tokens=6, salt=n).sequence())
    engine.add(request("free", max_tokens=20).sequence())
    tokens: dict[str, int] = {}
    steps = 0
    while engine.has_work:
        before, steps = clock.now, steps + 1
        for output in engine.step():
            tokens[output.request_id] = tokens.get(output.request_id, 0) + len(output.token_ids)
            if output.request_id == "free":
                assert tokens["free"] == steps  # in every step, none left out
        assert clock.now - before <= 1.5 * MASK_SECONDS
    assert tokens == {"free": 20} | {f"slow {n}": 6 for n in range(8)}


class Ponderous(Matcher):
    """A matcher whose choices near the end take as long as it says, on the engine's clock."""

    def __init__(self, matcher: Matcher, clock: Clock, seconds: float) -> None:
        super().__init__(matcher._matcher, matcher._grammar)
        self.mask = matcher.mask
        self.clock, self.seconds = clock, seconds

    def choose(self, token_id: int, left: int) -> int:
        if self.looks_ahead:
            self.clock.now += self.seconds
        return super().choose(token_id, left)


def test_slow_choices_hold_up_their_own_sequences_only() -> None:
    """Each is expected to take as long as the one before; the first one, a little."""
    clock = Clock()
    engine = engine_of(clock=clock)
    answers = {"free": 60}
    for n in range(8):
        matcher = Ponderous(compiled("regex", "[0-2]{30}").matcher(), clock, MASK_SECONDS / 2)
        engine.add(request(f"slow {n}", matcher=matcher, max_tokens=30, salt=n).sequence())
        answers[f"slow {n}"] = 30
    engine.add(request("free", max_tokens=60).sequence())
    tokens: dict[str, int] = {}
    taken: list[float] = []
    while engine.has_work:
        before = clock.now
        for output in engine.step():
            tokens[output.request_id] = tokens.get(output.request_id, 0) + len(output.token_ids)
        taken.append(clock.now - before)
    assert tokens == answers
    assert max(taken[1:]) < 2 * MASK_SECONDS  # the first step computes the prompts
    assert sum(taken) == pytest.approx(8 * 30 * MASK_SECONDS / 2)


class Broken(Matcher):
    """A matcher that meets a limit when it computes its third mask."""

    def fill(self, left: int | None = None) -> None:
        if self.mask is None and self.num_tokens == 3:
            raise GrammarError("too much")
        super().fill(left)


def test_a_grammar_at_its_limit_fails_its_own_request() -> None:
    engine = engine_of()
    matcher = compiled("regex", "[a-z]{9}").matcher()
    broken = Broken(matcher._matcher, matcher._grammar)
    broken.fill()
    engine.add(request("broken", matcher=broken, max_tokens=9).sequence())
    engine.add(request("free", max_tokens=9).sequence())
    outputs: list[Output] = []
    while engine.has_work:
        outputs += engine.step()
    assert failures(outputs) == {"broken": "too much", "free": None}
    assert [o.finish_reason for o in outputs if o.failure] == ["cancelled"]
    assert sum(len(o.token_ids) for o in outputs if o.request_id == "broken") == 3
    assert engine.pool.num_used == 0


def test_the_step_before_a_mask_is_computed_makes_no_token() -> None:
    one = person()
    assert one.matcher is not None
    assert isinstance(one.matcher.mask, np.ndarray)
    engine = engine_of()
    engine.add(one.sequence())
    [output] = engine.step()
    assert output.token_ids == [ord("{")]
    assert one.matcher.mask is None
    [output] = engine.step()
    assert output.token_ids == [ord('"')]
