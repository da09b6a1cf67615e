"""Speculation changes how many steps an answer takes, and nothing else about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from bench.subjects.requests import Request
from tests.core.byte_grammars import END, compiled
from tests.core.engine.drafting import draft_true_tokens, speculator_of
from tests.core.engine.toy_engine import STYLES, make_engine, mixed_requests, run_one
from tests.core.kv.sane_pools import check_pool
from tests.core.toy_oracle import VOCAB, Answer, expected, request, run

from skerry_core.config import ConfigError, EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.request import KVBlock
from skerry_core.runners.toy import ToyRunner


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
            check_pool(engine.pool)
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
