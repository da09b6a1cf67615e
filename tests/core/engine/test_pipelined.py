"""Several steps under way at once: all stages have work, and every answer is the undivided one."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from bench.subjects.requests import Reasoning, Request
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.byte_grammars import END, compiled
from tests.core.engine.lagging import lagging
from tests.core.engine.pipelining import (
    Given,
    Pace,
    PipelinedRunner,
    eager,
    engine_over,
    lazy,
    step_on,
    undivided,
)
from tests.core.engine.toy_engine import STYLES
from tests.core.toy_oracle import expected, request, run
from tests.properties import examples

from skerry_core.batch import ForwardBatch, StepResult
from skerry_core.config import BLOCK_SIZE
from skerry_core.engine.engine import Engine

PAIR = compiled(
    "json_schema",
    json.dumps({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4}),
)
FORMS: dict[str, dict[str, Any]] = STYLES | {
    "thinks": {"reasoning": Reasoning(max_tokens=7, end_ids=(9, 8, 7)), "logprobs": 1},
    "exports": {"exports_kv": True},
    "exports all": {"exports_kv": True, "prompt_logprobs": 1, "temperature": 1.0},
    "grammar": {"stop_token_ids": (END,), "temperature": 1.5, "seed": 3},
    "grammar told": {"stop_token_ids": (END,), "logprobs": 2, "repetition_penalty": 1.2},
}


def pipelined(depth: int, *, pace: Pace = lazy, num_blocks: int = 64, **limits: Any) -> Engine:
    return engine_over(PipelinedRunner(depth=depth, pace=pace, num_blocks=num_blocks), **limits)


def form_of(style: str, id: str, length: int, **fields: Any) -> Request:
    own = FORMS[style] | fields
    if style.startswith("grammar"):
        own["matcher"] = PAIR.matcher(())
    return request(id, length, **own)


def calls_of(engine: Engine, requests: list[Request]) -> str:
    runner = engine.runner
    assert isinstance(runner, PipelinedRunner)
    runner.calls.clear()
    for each in requests:
        engine.add(each.sequence())
    answers = run(engine)
    for each in requests:
        assert answers[each.id] == expected(each)
    return "".join(runner.calls)


STREAMS = [request(str(i), 5, i, max_tokens=4) for i in range(4)]
PREFILL = "LC"  # of all: nothing else is to do until their tokens are there


@pytest.mark.parametrize(
    ("depth", "calls"),
    [
        (1, "LC" * 3),
        (2, "LL" + "CL" * 4 + "CC"),
        (3, "LLL" + "CL" * 6 + "CCC"),
        (4, "LLLL" + "CL" * 8 + "CCCC"),
    ],
)
def test_streams_are_divided_so_that_each_stage_has_a_step(depth: int, calls: str) -> None:
    """Three tokens each after the first; 4 streams among 3 stages are parts of 2, 1 and 1."""
    assert calls_of(pipelined(depth), STREAMS) == PREFILL + calls


def test_a_stream_alone_has_one_step_under_way() -> None:
    assert calls_of(pipelined(4), STREAMS[:1]) == "LC" * 4


def test_chunks_of_a_prompt_follow_each_other() -> None:
    one = request(prompt_length=40, max_tokens=2)
    assert calls_of(pipelined(3, max_step_tokens=8), [one]) == "LLL" + "CLCL" + "CCC" + "LC"
    told = request(prompt_length=40, max_tokens=2, prompt_logprobs=1, logprobs=1)
    assert calls_of(pipelined(3, max_step_tokens=8), [told]) == "LLL" + "CLCL" + "CCC" + "LC"


class TimedPipeline(PipelinedRunner):
    """Each stage takes a second for a step, whatever is in it; the host takes no time."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.now = 0.0
        self.ends = [0.0] * (self.steps_ahead + 1)
        self.idle = [0.0] * (self.steps_ahead + 1)  # seconds of each stage, between its steps
        self._due: list[float] = []

    def launch(self, batch: ForwardBatch) -> None:
        super().launch(batch)
        arrives = self.now
        for stage, end in enumerate(self.ends):
            start = max(arrives, end)
            self.idle[stage] += (start - end) if end else 0.0
            arrives = self.ends[stage] = start + 1.0
        self._due.append(arrives)

    def collect(self) -> StepResult:
        self.now = max(self.now, self._due.pop(0))
        return super().collect()


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("num_streams", [4, 7, 9])
def test_no_stage_is_idle_while_there_is_work(depth: int, num_streams: int) -> None:
    runner = TimedPipeline(depth=depth, num_blocks=64)
    engine = engine_over(runner, clock=lambda: runner.now)
    for i in range(num_streams):
        engine.add(request(str(i), 5, i, max_tokens=1 + 12 * depth).sequence())
    run(engine)
    # The first step has all prompts, and nothing follows it until it is through.
    assert runner.idle == [depth - 1.0] * depth
    statistics = engine.statistics()
    assert statistics.steps == 1 + 12 * depth * depth
    assert statistics.busy_seconds == runner.now == statistics.steps + 2 * (depth - 1)


def test_who_comes_later_gets_turns_and_parts_become_equal() -> None:
    """A stream alone, then six at once: the parts differ until they are divided anew."""
    sizes: list[int] = []
    runner = PipelinedRunner(
        depth=2, num_blocks=64, before_step=lambda batch: sizes.append(batch.num_rows)
    )
    engine = engine_over(runner)
    engine.add(request("first", 5, max_tokens=60).sequence())
    for _ in range(6):
        engine.step()
    for i in range(6):
        engine.add(request(str(i), 5, i + 1, max_tokens=50).sequence())
    run(engine)
    assert sizes[-60:-20] == [4, 3] * 20
    assert engine.statistics().steps == len(sizes)


def test_what_is_preempted_on_its_way_out_leaves_later() -> None:
    """Its blocks are another's before its step is collected: they are computed again."""
    exporting = request("e", 3 * BLOCK_SIZE, max_tokens=1, exports_kv=True, priority="batch")
    engine, given = pipelined(3, num_blocks=4, pace=eager), {"e": Given(), "i": Given()}
    engine.add(exporting.sequence())
    step_on(engine, given)
    engine.add(request("i", 100, 1, max_tokens=3).sequence())
    while engine.has_work:
        step_on(engine, given)
    assert engine.statistics().preemptions == 1
    assert given["e"].holds() == undivided(exporting)


def test_what_is_preempted_meanwhile_comes_back_with_its_token() -> None:
    """There is room again before its step is collected, and its next token is not known yet."""
    stream = request("s", max_tokens=20, priority="batch")
    engine, given = pipelined(4, num_blocks=2, pace=eager), {"s": Given(), "i": Given()}
    engine.add(stream.sequence())
    step_on(engine, given)
    step_on(engine, given)  # its first token is there, its second under way
    engine.add(request("i", 100, 1, max_tokens=9).sequence())
    step_on(engine, given)
    assert engine.statistics().preemptions == 1
    engine.abort("i")
    while engine.has_work:
        step_on(engine, given)
    assert given["s"].holds() == undivided(stream)


arrivals = st.tuples(
    st.integers(0, 12),  # the step before which it comes
    st.sampled_from(sorted(FORMS)),
    st.integers(1, 140),  # tokens of its prompt
    st.integers(1, 60),  # of its answer
    st.integers(0, 3),  # salt: some begin alike
    st.sampled_from(["interactive", "batch"]),
)


@settings(max_examples=examples(10, deep=100), deadline=None)
@given(
    st.lists(arrivals, min_size=1, max_size=8),
    st.dictionaries(st.integers(0, 7), st.integers(1, 30), max_size=2),
    st.integers(0, 4),
    st.integers(5, 12),
    st.sampled_from([3, 40, 512]),
    st.one_of(st.sampled_from([lazy, eager]), st.integers(0, 1000)),
)
def test_whoever_comes_and_goes(
    coming: list[tuple[int, str, int, int, int, str]],
    aborts: dict[int, int],
    depth: int,
    num_blocks: int,
    step_tokens: int,
    pace: Pace | int,
) -> None:
    """In pipelines of each depth; 0: on a device that feeds."""
    if isinstance(pace, int):
        random = Random(pace)
        pace = lambda waiting: random.randint(0, waiting)  # noqa: E731
    limits = {"num_blocks": num_blocks, "max_step_tokens": step_tokens, "max_running": 5}
    engine = pipelined(depth, pace=pace, **limits) if depth else lagging(**limits)
    requests = [
        form_of(
            style, str(i), length, salt=salt, max_tokens=most, tenant=str(i % 3), priority=priority
        )
        for i, (_, style, length, most, salt, priority) in enumerate(coming)
    ]
    given = {each.id: Given() for each in requests}
    steps = 0
    while steps <= 31 or engine.has_work:
        for each, (due, *_) in zip(requests, coming, strict=True):
            if due == steps:
                engine.add(each.sequence())
        for index, due in aborts.items():
            if due == steps:
                engine.abort(str(index))
        step_on(engine, given)
        steps += 1
        assert steps < 10_000, "stuck"
    assert engine.pool.num_used == 0
    for each in requests:
        got, fresh = given[each.id], each
        if each.matcher is not None:
            fresh = replace(each, matcher=PAIR.matcher(()))
        whole, blocks, begins = undivided(fresh)
        if got.answer.finish_reason == "cancelled":
            assert got.answer.token_ids == whole.token_ids[: len(got.answer.token_ids)]
            assert got.holds()[1] == blocks[: len(got.kv)]
        else:
            assert got.holds() == (whole, blocks, begins), each.id
