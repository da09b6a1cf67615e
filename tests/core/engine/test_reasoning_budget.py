"""Reasoning ends at its limit, at the same token whatever else happens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bench.subjects.requests import Reasoning, Request
from hypothesis import given
from hypothesis import strategies as st
from tests.core.byte_grammars import compiled, compiler
from tests.core.engine.drafting import draft_true_tokens, speculator_of
from tests.core.engine.lagging import lagging
from tests.core.engine.toy_engine import STYLES, make_engine, run_one
from tests.core.talker import Talker
from tests.core.toy_oracle import VOCAB, Answer, expected, forced_token, request, run

from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.reasoning_budget import ReasoningBudget
from skerry_core.request import KVBlock, RequestRejected

COMMON = tuple((token_id,) for token_id in range(0, VOCAB, 16))  # one of them comes before long
LIMITS = {
    "the prompt begins it": Reasoning(max_tokens=7, end_ids=(9, 8, 7)),
    "none is left": Reasoning(max_tokens=0, end_ids=(9, 8)),
    "it may end by itself": Reasoning(max_tokens=11, end_ids=(9,), ends=COMMON),
    "again and again": Reasoning(
        max_tokens=9,
        end_ids=(9, 16, 7),
        begins=tuple((n,) for n in range(1, VOCAB, 8)),
        ends=COMMON,
    ),
    "more than there is": Reasoning(max_tokens=1000, end_ids=(9,)),
}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("style", STYLES)
def test_alone(style: str, limit: str) -> None:
    one = request(max_tokens=40, reasoning=LIMITS[limit], **STYLES[style])
    assert run_one(make_engine(), one) == expected(one)


def test_what_is_written_is_in_place() -> None:
    one = request(max_tokens=20, reasoning=LIMITS["the prompt begins it"])
    free = expected(replace(one, reasoning=None)).token_ids
    made = run_one(make_engine(), one).token_ids
    assert made[:10] == [*free[:7], 9, 8, 7]
    assert made[10:] != free[10:]


def mixed() -> list[Request]:
    return [
        request(
            f"{style} {name}", 40, salt=i, max_tokens=40, reasoning=limit, tenant=style, **fields
        )
        for style, fields in STYLES.items()
        for i, (name, limit) in enumerate(LIMITS.items())
    ]


@pytest.mark.parametrize(
    ("num_blocks", "step_tokens", "overlaps"),
    [
        (64, 512, False),
        (64, 3, True),
        (9, 512, False),
        (5, 64, True),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [(64, 512, True), (64, 3, False), (9, 512, True), (5, 64, False)]
        ),
    ],
)
def test_batched_preempted_and_launched_ahead(
    num_blocks: int, step_tokens: int, overlaps: bool
) -> None:
    make = lagging if overlaps else make_engine
    engine = make(num_blocks=num_blocks, max_step_tokens=step_tokens)
    requests = mixed()
    for each in requests:
        engine.add(each.sequence())
    answers = run(engine)
    assert engine.statistics().preemptions > 0 or num_blocks == 64
    for each in requests:
        assert answers[each.id] == expected(each), each.id


def test_a_step_whose_logits_are_looked_at_is_waited_for() -> None:
    """Of the tokens that end its reasoning the model chose none: their logprobs come later."""
    engine = lagging()
    runner: Any = engine.runner
    limit = Reasoning(max_tokens=2, end_ids=(9, 8, 7))
    one = request("one", max_tokens=7, reasoning=limit, logprobs=1)
    other = request("b", max_tokens=7)
    for each in (one, other):
        engine.add(each.sequence())
    told = run(engine)
    assert (told["one"], told["b"]) == (expected(one), expected(other))
    ahead, alone = ["launch", "collect"], ["collect", "launch"]
    assert runner.calls == ["launch", *ahead * 2, *alone * 3, *ahead, "collect"]


@pytest.mark.parametrize("step_tokens", [3, pytest.param(64, marks=pytest.mark.slow), 512])
def test_drafted(monkeypatch: pytest.MonkeyPatch, step_tokens: int) -> None:
    """Drafts are the model's own answer, in which no end was written, and the one with it."""
    requests = mixed()
    answers = {
        each.id: expected(each if i % 2 else replace(each, reasoning=None)).token_ids
        for i, each in enumerate(requests)
    }
    draft_true_tokens(monkeypatch, answers, VOCAB)
    engine = make_engine(max_step_tokens=step_tokens)
    for each in requests:
        engine.add(each.sequence())
    told = run(engine)
    for each in requests:
        assert told[each.id] == expected(each), each.id
    assert 0 < speculator_of(engine).num_accepted < speculator_of(engine).num_drafted


@pytest.mark.parametrize("limit", LIMITS)
def test_resumed_at_every_point(limit: str) -> None:
    one = request(prompt_length=60, max_tokens=30, reasoning=LIMITS[limit], **STYLES["sampled"])
    whole = expected(one)
    engine = make_engine()
    for point in range(len(whole.token_ids) + 1):
        resumed = run_one(engine, replace(one, output_ids=tuple(whole.token_ids[:point])))
        assert resumed.token_ids == whole.token_ids[point:]
        assert resumed.finish_reason == whole.finish_reason


def test_handed_over() -> None:
    for limit in LIMITS.values():
        one = request(prompt_length=200, max_tokens=30, reasoning=limit, logprobs=2)
        first = make_engine()
        alone = replace(one, exports_kv=True, sampling=replace(one.sampling, max_tokens=1))
        first.add(alone.sequence())
        kv: list[KVBlock] = []
        made = Answer()
        while first.has_work:
            for output in first.step():
                kv += output.kv
                made.add(output)
        answer = run_one(
            make_engine(), replace(one, kv=tuple(kv), output_ids=tuple(made.token_ids))
        )
        assert made.token_ids + answer.token_ids == expected(one).token_ids
        assert made.logprobs + answer.logprobs == expected(one).logprobs


tokens = st.integers(0, 5)
marks = st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple)


@given(st.integers(0, 12), st.lists(tokens, min_size=1, max_size=4), marks, marks, st.data())
def test_any_marks_at_any_place(
    size: int, end_ids: list[int], begins: Any, ends: Any, data: st.DataObject
) -> None:
    limit = Reasoning(max_tokens=size, end_ids=tuple(end_ids), begins=begins, ends=ends)
    budget, output = ReasoningBudget(limit), list[int]()
    for _ in range(30):
        assert budget.forced == forced_token(limit, output)
        token_id = budget.forced
        if token_id is None:
            ahead = data.draw(st.lists(tokens, max_size=4))
            assert budget.count_free(ahead) == free(limit, output, ahead)
            token_id = data.draw(tokens)
        budget.advance(token_id)
        output.append(token_id)
        assert ReasoningBudget(limit, output).forced == budget.forced


def free(limit: Reasoning, output: list[int], ahead: list[int]) -> int:
    """How many of the tokens may run in one step, each before one of the model's choice."""
    sizes = range(len(ahead))
    counts = (n for n in sizes if forced_token(limit, [*output, *ahead[: n + 1]]) is not None)
    return next(counts, len(ahead))


# --- marks that are texts, and grammars ----------------------------------------------------------

TEXTS = tuple(compiler().texts)


def talk(words: str, limit: Reasoning, *, pattern: str | None = None, max_tokens: int = 60) -> str:
    """What a model that says `words` says with its reasoning limited, on bytes as tokens."""
    runner = Talker(num_blocks=8, vocab_size=VOCAB)
    one = request(
        prompt_length=5, max_tokens=max_tokens, stop_token_ids=(256,), reasoning=limit,
        token_texts=TEXTS, matcher=compiled("regex", pattern).matcher() if pattern else None,
    )  # fmt: skip
    runner.turn, runner.words, runner.end = one.prompt_ids, words.encode(), 256
    answer = run_one(Engine(runner, EngineConfig(), model_key=b"toy"), one)
    return bytes(each for each in answer.token_ids if each < 256).decode(errors="replace")


THOUGHT = Reasoning(max_tokens=8, end_ids=tuple(b"</t>"), ends=("</t>", "<call>"))


def test_a_text_ends_it_however_it_is_spelt() -> None:
    short = "think</t>A long answer."
    assert talk(short, replace(THOUGHT, max_tokens=9)) == short
    assert talk("So<call>now!", THOUGHT) == "So<call>now!"
    assert talk("A long thought.", THOUGHT) == "A long t</t>"


def test_a_text_begins_it() -> None:
    limit = replace(THOUGHT, begins=("<t>",))
    assert talk("No thought at all.", limit) == "No thought at all."
    assert talk("So: <t>A long thought.", limit) == "So: <t>A long t</t>"


def test_a_grammar_goes_on_from_the_end() -> None:
    grammar = r"[^<]*</t>[0-9]{3}"
    written = talk("A long thought.", THOUGHT, pattern=grammar)
    assert written[:12] == "A long t</t>"
    assert written[12:].isdigit()
    assert len(written) == 15


def test_a_grammar_says_where_it_may_end() -> None:
    """Not within a character, nor a word."""
    limit = replace(THOUGHT, max_tokens=2)
    two = talk("☃☃", limit, pattern=r"[^<]+</t>a", max_tokens=200)
    assert two == "☃</t>a"
    assert talk("abcdefgh", limit, pattern=r"([a-z]{4} ?)*</t>a") == "abcd</t>a"


def test_what_no_engine_can_hold_is_refused() -> None:
    with pytest.raises(RequestRejected, match="a mark of reasoning is a text"):
        ReasoningBudget(THOUGHT)
    with pytest.raises(RequestRejected, match="no tokens"):
        ReasoningBudget(replace(THOUGHT, end_ids=(), ends=()))
    with pytest.raises(RequestRejected, match="end_ids"):
        run_one(make_engine(), request(reasoning=Reasoning(max_tokens=1, end_ids=(VOCAB,))))
