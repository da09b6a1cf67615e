"""The engine on the toy model, whose every answer is known: exact tokens, whatever happens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.subjects.requests import Request
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.engine.toy_engine import SAMPLED, STYLES, make_engine, mixed_requests, run_one
from tests.core.kv.sane_pools import check_pool
from tests.core.toy_oracle import Answer, expected, request, run
from tests.properties import examples

from skerry_core.request import Priority


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 150])
def test_alone(style: str, length: int) -> None:
    one = request(prompt_length=length, max_tokens=20, **STYLES[style])
    assert run_one(make_engine(), one) == expected(one)


@pytest.mark.parametrize("max_step_tokens", [1, 2, 3, 5, 7, 8, 16, 64, 100, 512])
def test_batched_and_chunked_with_every_budget(max_step_tokens: int) -> None:
    engine = make_engine(max_step_tokens=max_step_tokens)
    requests = mixed_requests()
    for one in requests:
        engine.add(one.sequence())
    answers = run(engine)
    for one in requests:
        assert answers[one.id] == expected(one), one.id


@pytest.mark.parametrize("num_blocks", [3, 5, 9])
def test_preempted(num_blocks: int) -> None:
    engine = make_engine(num_blocks=num_blocks)
    requests = [
        request(f"{style} {i}", 40, salt=i, max_tokens=60, tenant=style, **fields)
        for style, fields in STYLES.items()
        for i in range(2)
    ]
    for one in requests:
        engine.add(one.sequence())
    answers = run(engine)
    assert engine.statistics().preemptions > 0
    for one in requests:
        assert answers[one.id] == expected(one), one.id


@pytest.mark.parametrize("length", [64, 127, 128, 129, 200])
def test_from_a_warm_prefix_cache(length: int) -> None:
    engine = make_engine()
    one = request(prompt_length=length, max_tokens=70, **SAMPLED)
    cold = run_one(engine, one)
    warm = run_one(engine, one)
    longer = request(prompt_length=length, max_tokens=90, **SAMPLED)
    assert cold == warm == expected(one)
    assert run_one(engine, longer) == expected(longer)
    assert cold.usage is not None
    assert warm.usage is not None
    assert cold.usage.cached_tokens == 0
    assert warm.usage.cached_tokens == (length - 1) // 64 * 64


def test_a_cached_answer_is_a_prefix_of_the_next_turn() -> None:
    engine = make_engine()
    first = request(prompt_length=50, max_tokens=100)
    answer = run_one(engine, first)
    turn = first.prompt_ids + tuple(answer.token_ids) + (1, 2, 3)
    second = request("second", prompt_ids=turn, max_tokens=5)
    usage = run_one(engine, second).usage
    assert usage is not None
    assert usage.cached_tokens == 128  # of 149 computed tokens, two full blocks


def test_tenants_do_not_share_prefixes() -> None:
    engine = make_engine()
    run_one(engine, request(prompt_length=130, cache_key=b"a"))
    usage = run_one(engine, request(prompt_length=130, cache_key=b"b")).usage
    assert usage is not None
    assert usage.cached_tokens == 0


def test_prompt_logprobs_need_the_whole_prompt_and_still_warm_the_cache() -> None:
    engine = make_engine(max_step_tokens=50)
    one = request(prompt_length=130, max_tokens=2, prompt_logprobs=3)
    run_one(engine, one)
    again = run_one(engine, one)
    assert again == expected(one)
    assert len(again.prompt_logprobs) == 129
    usage = run_one(engine, request(prompt_length=130)).usage
    assert usage is not None
    assert usage.cached_tokens == 128


@pytest.mark.parametrize("max_samples", [1, 3, 64])
def test_prompt_logprobs_with_few_samples_per_step(max_samples: int) -> None:
    engine = make_engine(max_samples=max_samples)
    requests = [
        request(f"{i}", 20 + i, salt=i, max_tokens=4, logprobs=1, prompt_logprobs=i)
        for i in range(4)
    ]
    for one in requests:
        engine.add(one.sequence())
    answers = run(engine)
    for one in requests:
        assert answers[one.id] == expected(one)


# --- resumed from a transcript -------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_resumed_from_a_transcript_at_every_point(style: str) -> None:
    one = request(prompt_length=60, max_tokens=20, **STYLES[style])
    whole = expected(one)
    engine = make_engine()
    for point in range(len(whole.token_ids) + 1):
        resumed = run_one(engine, replace(one, output_ids=tuple(whole.token_ids[:point])))
        assert resumed.token_ids == whole.token_ids[point:]
        assert resumed.logprobs == whole.logprobs[point:]
        assert resumed.finish_reason == whole.finish_reason
        assert resumed.prompt_logprobs == ([] if point else whole.prompt_logprobs)
        assert resumed.usage is not None
        assert resumed.usage.output_tokens == len(whole.token_ids)
        assert resumed.usage.prompt_tokens == 60


def test_a_transcript_that_is_complete_runs_nothing() -> None:
    engine = make_engine()
    one = request(max_tokens=5)
    answer = run_one(engine, replace(one, output_ids=tuple(expected(one).token_ids)))
    assert (answer.token_ids, answer.finish_reason) == ([], "length")
    assert engine.statistics().steps == 0


# --- everything at once --------------------------------------------------------------------------


@given(
    plans=st.lists(
        st.tuples(
            st.integers(0, 4),  # steps before it
            st.sampled_from(sorted(STYLES)),
            st.integers(1, 140),  # prompt
            st.integers(0, 2),  # which prompt: some share a prefix
            st.integers(1, 40),  # max_tokens
            st.sampled_from(["interactive", "batch"]),
            st.sampled_from("ab"),  # tenant
            st.none() | st.integers(1, 30),  # aborted after so many steps
        ),
        min_size=1,
        max_size=10,
    ),
    num_blocks=st.integers(3, 12),
    max_step_tokens=st.integers(2, 100),
)
@settings(max_examples=examples(15, deep=200), deadline=None)
def test_any_mix_gives_each_request_its_own_tokens(
    plans: list[tuple[int, str, int, int, int, Priority, str, int | None]],
    num_blocks: int,
    max_step_tokens: int,
) -> None:
    engine = make_engine(num_blocks=num_blocks, max_step_tokens=max_step_tokens)
    requests: dict[str, Request] = {}
    answers: dict[str, Answer] = {}
    aborts: dict[int, list[str]] = {}
    step = 0

    def advance() -> None:
        nonlocal step
        for id in aborts.pop(step, []):
            engine.abort(id)
        for output in engine.step():
            answers[output.request_id].add(output)
        check_pool(engine.pool)
        step += 1

    for i, (delay, style, length, salt, tokens, priority, tenant, life) in enumerate(plans):
        for _ in range(delay):
            advance()
        id = str(i)
        requests[id] = request(
            id,
            length,
            salt,
            max_tokens=min(tokens, num_blocks * 64 - length + 1),
            priority=priority,
            tenant=tenant,
            cache_key=tenant.encode(),
            **STYLES[style],
        )
        engine.add(requests[id].sequence())
        answers[id] = Answer()
        if life is not None:
            aborts.setdefault(step + life, []).append(id)
    while engine.has_work:
        assert step < 5_000
        advance()
    assert engine.pool.num_used == 0
    for id, answer in answers.items():
        whole = expected(requests[id])
        if answer.finish_reason == "cancelled":
            assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]
        else:
            assert answer == whole
