"""The next step is launched while one is computed, and every answer is what it is without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clock import Clock
from tests.core.byte_grammars import compiled, text
from tests.core.engine.lagging import LaggingRunner, answers, engine_over, lagging
from tests.core.engine.toy_engine import STYLES
from tests.core.kv.sane_pools import check_pool
from tests.core.open_runners import open_on_torch
from tests.core.runners.runner_suite import (
    answers_of,
    requests_that_outgrow_five_blocks,
    write_model,
)
from tests.core.toy_oracle import Answer, expected, request, run
from tests.properties import examples


@pytest.mark.parametrize(
    ("num_blocks", "step_tokens"), [(64, 512), (64, 3), (9, 512), (5, 64), (3, 33)]
)
def test_answers_are_the_same_in_a_full_pool_too(num_blocks: int, step_tokens: int) -> None:
    requests = [
        request(f"{style} {i}", 40, salt=i, max_tokens=40, tenant=style, **fields)
        for style, fields in STYLES.items()
        for i in range(2)
    ]
    engine = lagging(num_blocks, max_step_tokens=step_tokens)
    told = answers(engine, requests)
    for each in requests:
        assert told[each.id] == expected(each), each.id
    assert engine.statistics().preemptions > 0 or num_blocks == 64


def test_preempted_in_the_air() -> None:
    """Streams alone, so that each is under way when another takes its blocks."""
    requests = [request(str(i), 60, salt=i, max_tokens=150) for i in range(6)]
    engine = lagging(num_blocks=7)
    told = answers(engine, requests)
    assert engine.statistics().preemptions > 0
    for each in requests:
        assert told[each.id] == expected(each)


def test_the_next_step_is_launched_before_one_is_waited_for() -> None:
    engine = lagging()
    runner: Any = engine.runner
    told = answers(engine, [request("a", max_tokens=4), request("b", max_tokens=3)])
    assert [len(each.token_ids) for each in told.values()] == [4, 3]
    ahead = ["launch", *["launch", "collect"] * 3, "collect"]
    assert runner.calls == ahead  # their length is known: none of them runs once more
    assert engine.statistics().steps == 4


@pytest.mark.parametrize(
    "asked",
    [{"frequency_penalty": 0.5}, {"prompt_logprobs": 1}, {"exports_kv": True}],
    ids=str,
)
def test_nothing_is_launched_for_who_has_all(asked: dict[str, Any]) -> None:
    engine = lagging()
    runner: Any = engine.runner
    one = request(max_tokens=1, **asked)
    answers(engine, [one, request("b", max_tokens=1)])
    assert runner.calls == ["launch", "collect"]


def test_penalties_wait_for_no_token() -> None:
    engine = lagging()
    runner: Any = engine.runner
    one = request(max_tokens=9, frequency_penalty=0.5, presence_penalty=0.25)
    assert answers(engine, [one])[one.id] == expected(one)
    assert runner.calls == ["launch", *["launch", "collect"] * 8, "collect"]


def test_a_grammar_runs_a_step_behind_and_holds_nobody_up() -> None:
    sizes: list[int] = []
    runner = LaggingRunner(num_blocks=64, before_step=lambda batch: sizes.append(batch.num_rows))
    engine = engine_over(runner, Clock())  # by which the masks of a step never take too long
    digits = compiled("regex", "[0-9]{6}").matcher(())
    led = request("led", max_tokens=6, matcher=digits)
    plain = [request(str(i), salt=i, max_tokens=8) for i in range(3)]
    told = answers(engine, [led, *plain])
    for each in plain:
        assert told[each.id] == expected(each)
    assert text(told["led"].token_ids).isdigit()
    assert sizes == [4, 3] * 4 + [1] * 2
    ahead = ["launch", *["launch", "collect"] * 8]
    assert runner.calls == [*ahead, *["collect", "launch"], "collect"]  # at last it is alone


@pytest.mark.parametrize(("num_led", "num_plain"), [(3, 1), (3, 2), (2, 2)])
def test_a_step_waits_for_the_one_before_it_where_most_rows_have_grammars(
    num_led: int, num_plain: int
) -> None:
    """All run in each step then, where few would have one of their own in between."""
    sizes: list[int] = []
    runner = LaggingRunner(num_blocks=64, before_step=lambda batch: sizes.append(batch.num_rows))
    digits = compiled("regex", "[0-9]{6}")
    led = [
        request(f"led {i}", salt=i, max_tokens=6, matcher=digits.matcher(()))
        for i in range(num_led)
    ]
    plain = [request(str(i), salt=9 + i, max_tokens=8) for i in range(num_plain)]
    told = answers(engine_over(runner, Clock()), [*led, *plain])
    for each in plain:
        assert told[each.id] == expected(each)
    for each in led:
        assert text(told[each.id].token_ids).isdigit()
    if num_led > num_plain:
        assert sizes == [num_led + num_plain] * 6 + [num_plain] * 2
        together = ["launch", *["collect", "launch"] * 6, "launch", "collect", "collect"]
        assert runner.calls == together
    else:
        assert sizes == [num_led + num_plain, num_plain] * 4 + [num_led] * 2


def test_who_stops_has_run_once_more_for_nothing() -> None:
    probe = expected(request(max_tokens=20)).token_ids
    stop = probe[5]
    one, other = request("one", max_tokens=20, stop_token_ids=(stop,)), request("other", 70, 3)
    engine = lagging()
    runner: Any = engine.runner
    told = answers(engine, [one])
    assert told["one"] == expected(one)
    usage = told["one"].usage
    assert usage is not None
    assert usage.output_tokens == probe.index(stop) + 1
    assert runner.calls.count("launch") == usage.output_tokens + 1
    assert engine.statistics().computed_tokens == 10 + usage.output_tokens - 1
    assert answers(engine, [other])["other"] == expected(other)


def test_no_token_is_possible() -> None:
    none = request("none", stop_token_ids=tuple(range(257)), min_tokens=3)
    told = answers(lagging(), [none, request("b", max_tokens=9)])
    assert told["none"].token_ids == []
    assert told["none"].finish_reason == "stop"
    assert told["none"].usage is not None
    assert told["none"].usage.output_tokens == 0
    assert told["b"] == expected(request("b", max_tokens=9))


def test_an_abort_in_the_air_ends_with_what_was_told() -> None:
    engine = lagging()
    engine.add(request("gone", max_tokens=50).sequence())
    engine.add(request("stays", 20, 1, max_tokens=9).sequence())
    outputs = [output for _ in range(4) for output in engine.step()]
    engine.abort("gone")
    engine.add(request("gone", 5, 2, max_tokens=3).sequence())  # the name is free again
    outputs += engine.step()
    ends = [output for output in outputs if output.finish_reason is not None]
    assert [(end.request_id, end.finish_reason) for end in ends] == [("gone", "cancelled")]
    told = [token for out in outputs if out.request_id == "gone" for token in out.token_ids]
    assert told == expected(request("gone", max_tokens=50)).token_ids[: len(told)]
    assert ends[0].usage is not None
    assert ends[0].usage.output_tokens == len(told) > 0
    assert run(engine)["gone"] == expected(request("gone", 5, 2, max_tokens=3))


def test_all_aborted_in_the_air_leaves_a_step_to_wait_for() -> None:
    engine = lagging()
    engine.add(request().sequence())
    assert engine.step() == []
    assert [output.finish_reason for output in engine.abort_all()] == ["cancelled"]
    assert engine.has_work
    assert engine.step() == []
    assert not engine.has_work
    one = request(max_tokens=5)
    assert answers(engine, [one])["r"] == expected(one)


arrivals = st.tuples(
    st.integers(0, 12),  # the step before which it comes
    st.sampled_from(sorted(STYLES)),
    st.integers(1, 140),  # tokens of its prompt
    st.integers(1, 80),  # of its answer
    st.integers(0, 3),  # salt: some begin alike
)


@settings(max_examples=examples(6, deep=60), deadline=None)
@given(
    st.lists(arrivals, min_size=1, max_size=8),
    st.dictionaries(st.integers(0, 7), st.integers(1, 30), max_size=2),
    st.integers(5, 12),
    st.sampled_from([3, 40, 512]),
)
def test_whoever_comes_and_goes(
    coming: list[tuple[int, str, int, int, int]],
    aborts: dict[int, int],
    num_blocks: int,
    step_tokens: int,
) -> None:
    engine = lagging(num_blocks, max_step_tokens=step_tokens, max_running=4)
    requests = [
        request(str(i), length, salt, max_tokens=most, tenant=str(i % 3), **STYLES[style])
        for i, (_, style, length, most, salt) in enumerate(coming)
    ]
    told: dict[str, Answer] = {each.id: Answer() for each in requests}
    for step in range(31):
        for each, (due, *_) in zip(requests, coming, strict=True):
            if due == step:
                engine.add(each.sequence())
        for index, due in aborts.items():
            if due == step:
                engine.abort(str(index))
        for output in engine.step():
            told[output.request_id].add(output)
        check_pool(engine.pool)
    for id_, answer in run(engine).items():
        told[id_] = Answer(
            told[id_].token_ids + answer.token_ids, told[id_].logprobs + answer.logprobs,
            told[id_].prompt_logprobs + answer.prompt_logprobs, answer.finish_reason, answer.usage,
        )  # fmt: skip
    for each in requests:
        whole, got = expected(each), told[each.id]
        assert got.usage is not None
        assert got.usage.output_tokens == len(got.token_ids)
        if got.finish_reason == "cancelled":
            assert got.token_ids == whole.token_ids[: len(got.token_ids)]
        else:
            assert got == whole


@pytest.mark.parametrize("deterministic", [False, True])
def test_torch_feeds_what_it_made(tmp_path: Path, deterministic: bool) -> None:
    """Alone, where bits do not depend on the batch; a full pool, where they never do."""
    path = write_model(tmp_path, "llama")
    requests = requests_that_outgrow_five_blocks(
        temperature=1.3, seed=3, logprobs=2, repetition_penalty=1.2, frequency_penalty=0.3
    )

    def told(overlaps: bool) -> list[dict[str, Answer]]:
        runner = open_on_torch(
            path, num_blocks=5, threads=1, device="cpu", deterministic=deterministic
        )
        runner.steps_ahead = int(overlaps)
        groups = [requests] if deterministic else [[each] for each in requests[:2]]
        engine = engine_over(runner)
        return [answers_of(engine, group) for group in groups]

    assert told(True) == told(False)
