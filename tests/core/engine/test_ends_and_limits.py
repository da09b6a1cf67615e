"""How requests end in the engine, which are refused, and what is counted of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.core.engine.toy_engine import make_engine, mixed_requests, run_one
from tests.core.toy_oracle import VOCAB, Answer, expected, prompt, request, run

from skerry_core.batch import ForwardBatch
from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.request import EngineOverloaded, RequestRejected
from skerry_core.runners.toy import ToyRunner


def test_aborted_at_every_point() -> None:
    fields: dict[str, Any] = {"prompt_length": 150, "max_tokens": 10, "prompt_logprobs": 1}
    survivor = request("survivor", 70, salt=1, max_tokens=30)
    doomed = request("doomed", **fields)
    whole = expected(doomed)
    for point in range(20):
        engine = make_engine(max_step_tokens=32)
        engine.add(survivor.sequence())
        engine.add(doomed.sequence())
        answers = {"survivor": Answer(), "doomed": Answer()}
        for _ in range(point):
            for output in engine.step():
                answers[output.request_id].add(output)
        engine.abort("doomed")
        engine.abort("doomed")
        for id, answer in run(engine).items():
            answers[id].token_ids += answer.token_ids
            answers[id].finish_reason = answers[id].finish_reason or answer.finish_reason
        cut = answers["doomed"]
        assert answers["survivor"].token_ids == expected(survivor).token_ids
        assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
        assert cut.finish_reason == ("cancelled" if len(cut.token_ids) < 10 else "length")


def test_aborting_what_is_unknown_or_ended_is_ignored() -> None:
    engine = make_engine()
    engine.abort("nobody")
    run_one(engine, request())
    engine.abort("r")
    assert not engine.has_work


def test_abort_all_tells_every_end() -> None:
    engine = make_engine(max_running=2)
    for i in range(4):
        engine.add(request(str(i)).sequence())
    engine.step()
    outputs = engine.abort_all()
    assert [(o.request_id, o.finish_reason) for o in outputs] == [
        (str(i), "cancelled") for i in range(4)
    ]
    assert engine.pool.num_used == 0
    assert not engine.has_work


# --- endings -------------------------------------------------------------------------------------


def test_a_stop_token_is_given_and_ends_the_answer() -> None:
    stop = expected(request(max_tokens=5)).token_ids[3]
    answer = run_one(make_engine(), request(max_tokens=50, stop_token_ids=(stop,)))
    assert answer.finish_reason == "stop"
    assert answer.token_ids[-1] == stop


def test_min_tokens_forbids_stop_tokens_until_then() -> None:
    stops = tuple(range(VOCAB - 1))
    answer = run_one(make_engine(), request(max_tokens=50, min_tokens=5, stop_token_ids=stops))
    assert answer.token_ids[:5] == [VOCAB - 1] * 5
    assert len(answer.token_ids) >= 6
    assert answer.finish_reason == "stop"


def test_an_answer_without_a_possible_token_stops() -> None:
    stops = tuple(range(VOCAB))
    answer = run_one(make_engine(), request(min_tokens=5, stop_token_ids=stops, logprobs=1))
    assert (answer.token_ids, answer.logprobs, answer.finish_reason) == ([], [], "stop")


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 63, 64])
def test_a_pool_of_one_block_finishes_what_fits(length: int) -> None:
    one = request(prompt_length=length, max_tokens=64 - length + 1)
    assert run_one(make_engine(num_blocks=1), one) == expected(one)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt_length": 64, "max_tokens": 2}, "need 2 blocks of KV memory, this engine has 1"),
        ({"prompt_length": 90, "max_tokens": 20}, "context of 100 tokens"),
        ({"prompt_ids": ()}, "the prompt has no tokens"),
        ({"prompt_ids": (1, VOCAB)}, "prompt_ids contains token 257"),
        ({"output_ids": (-1,)}, "output_ids contains token -1"),
        ({"output_ids": (1, 2), "max_tokens": 1}, "2 output_ids exceed max_tokens 1"),
        ({"stop_token_ids": (300,)}, "stop_token_ids contains token 300"),
        ({"logit_bias": ((300, 1.0),)}, "logit_bias contains token 300"),
        ({"logit_bias": ((3, float("nan")),)}, "logit_bias is out of range"),
        ({"temperature": float("nan")}, "temperature is out of range: nan"),
        ({"temperature": -1.0}, "temperature is out of range"),
        ({"top_p": 0.0}, "top_p is out of range"),
        ({"top_k": -1}, "top_k is out of range"),
        ({"min_p": 1.5}, "min_p is out of range"),
        ({"typical_p": 0.0}, "typical_p is out of range"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is out of range"),
        ({"presence_penalty": float("inf")}, "presence_penalty is out of range"),
        ({"seed": 1 << 64}, "seed is out of range"),
        ({"max_tokens": 0}, "max_tokens is out of range"),
        ({"logprobs": 1000}, "logprobs must be between 0 and 128"),
        ({"prompt_logprobs": -1}, "prompt_logprobs must be between 0 and 128"),
        ({"cache_key": b"x" * 65}, "more than 64 bytes"),
    ],
)
def test_what_can_never_run_is_rejected_with_the_reason(
    fields: dict[str, Any], message: str
) -> None:
    engine = make_engine(num_blocks=1, max_context=100)
    defaults: dict[str, Any] = {"max_tokens": 5}
    with pytest.raises(RequestRejected, match=message):
        engine.add(request(**(defaults | fields)).sequence())
    assert not engine.has_work


def test_an_id_in_use_is_rejected_and_free_again_at_the_end() -> None:
    engine = make_engine()
    engine.add(request().sequence())
    with pytest.raises(RequestRejected, match="'r' is in use"):
        engine.add(request().sequence())
    run(engine)
    run_one(engine, request())


def test_a_full_engine_says_when_to_come_back_and_keeps_places_for_other_tenants() -> None:
    engine = make_engine(max_running=2, max_waiting=16)
    places = 2 + 16 - 16 // 8
    for i in range(places):
        engine.add(request(f"{i}", tenant="flood").sequence())
    with pytest.raises(EngineOverloaded, match=f"{places} requests") as raised:
        engine.add(request("one too many", tenant="flood").sequence())
    assert 1.0 <= raised.value.retry_after <= 60.0
    engine.add(request("calm", tenant="calm").sequence())
    run(engine)


def test_who_will_not_wait_is_refused_when_all_places_to_run_are_taken() -> None:
    engine = make_engine(max_running=2, max_waiting=16)
    hasty = [replace(request(f"hasty {i}"), reject_if_busy=True) for i in range(3)]
    engine.add(request("a").sequence())
    engine.add(hasty[0].sequence())
    with pytest.raises(EngineOverloaded, match="all 2 places to run are taken") as raised:
        engine.add(hasty[1].sequence())
    assert 1.0 <= raised.value.retry_after <= 60.0
    engine.add(request("patient").sequence())
    run(engine)
    engine.add(hasty[2].sequence())
    run(engine)


def test_no_more_sequences_run_than_a_step_has_tokens_or_samples() -> None:
    for limits in ({"max_step_tokens": 3}, {"max_samples": 3}):
        engine = make_engine(**limits)
        for i in range(5):
            engine.add(request(f"{i}").sequence())
        engine.step()
        assert engine.statistics().running <= 3
        run(engine)


# --- accounts ------------------------------------------------------------------------------------


def test_usage_counts_seconds_by_phase() -> None:
    times = iter(range(1000))
    runner = ToyRunner(num_blocks=8)
    config = EngineConfig(max_step_tokens=50)
    engine = Engine(runner, config, model_key=b"toy", clock=lambda: float(next(times)))
    usage = run_one(engine, request(prompt_length=100, max_tokens=4)).usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens) == (100, 4, 0)
    assert usage.queue_seconds == 1.0  # from one reading of this clock to the next
    assert usage.prefill_seconds == 2.0  # two chunks, each from one reading to the next
    assert usage.decode_seconds == 3.0  # the first token belongs to prefill


def test_statistics_add_up() -> None:
    engine = make_engine(num_blocks=16, max_running=2)
    for i in range(3):
        engine.add(request(f"{i}", 100, max_tokens=3).sequence())
    engine.step()
    now = engine.statistics()
    assert (now.running, now.waiting, now.steps) == (2, 1, 1)
    assert (now.blocks, now.blocks_used, now.blocks_cached, now.blocks_free) == (16, 4, 0, 12)
    run(engine)
    end = engine.statistics()
    assert (end.running, end.waiting, end.output_tokens) == (0, 0, 9)
    assert (end.blocks_used, end.blocks_cached, end.blocks_free) == (0, 1, 15)
    assert end.cache_hit_tokens == 64  # the third came after the first had sealed its block
    assert end.computed_tokens == 3 * (100 + 2) - 64


# --- the batch, as a runner sees it --------------------------------------------------------------


def test_batches_are_flat_contiguous_and_consistent() -> None:
    shapes: list[tuple[tuple[str, str, int], ...]] = []

    def look(batch: ForwardBatch) -> None:
        arrays = {name: getattr(batch, name) for name in ("token_ids", "positions", "query_start")}
        sampling = batch.sampling
        arrays |= {n: getattr(sampling, n) for n in sampling.__slots__ if n != "allowed"}
        arrays["block_tables"] = batch.block_tables
        for name, array in arrays.items():
            assert isinstance(array, np.ndarray), name
            assert array.flags.c_contiguous, name
        assert all(a < b for a, b in pairwise(batch.query_start.tolist()))
        shapes.append(tuple((name, a.dtype.str, a.ndim) for name, a in arrays.items()))

    runner = ToyRunner(num_blocks=64, before_step=look)
    engine = Engine(runner, EngineConfig(max_step_tokens=40), model_key=b"toy")
    for one in mixed_requests():
        engine.add(one.sequence())
    run(engine)
    assert len(set(shapes)) == 1, "dtypes that change between steps recompile kernels"


def test_shared_prompts_are_prefilled_once() -> None:
    engine = make_engine(max_step_tokens=64)
    first = request("first", prompt_ids=(*prompt(128), 1))
    engine.add(first.sequence())
    for _ in range(2):
        engine.step()
    second = request("second", prompt_ids=(*prompt(128), 2))
    engine.add(second.sequence())
    answers = run(engine)
    assert answers["first"] == expected(first)
    assert answers["second"] == expected(second)
    assert engine.statistics().cache_hit_tokens == 128


def test_the_counters_that_explain_busy_seconds() -> None:
    """Of one prompt of 10 tokens, computed in one step, and five tokens after it."""
    engine = make_engine()
    run_one(engine, request("a", 10, max_tokens=6))
    figures = engine.statistics()
    assert figures.prompt_tokens == 10
    assert figures.attended_pairs == 55
    assert figures.stream_steps == 5
    assert figures.context_steps == 11 + 12 + 13 + 14 + 15
