"""KV from one engine to another: the decode engine computes nothing that the prefill engine did."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bench.subjects.requests import Request, SamplingParams
from tests.core.kv.sane_pools import check_pool

from skerry_core.batch import ForwardBatch
from skerry_core.config import BLOCK_SIZE, EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.request import KVBlock, Output
from skerry_core.runners.toy import ToyRunner, next_token

VOCABULARY = 256
KEY = b"tenant"


def toy_engine(**options: object) -> tuple[Engine, list[int]]:
    """An engine, and the number of tokens of each step that it ran."""
    steps: list[int] = []

    def count(batch: ForwardBatch) -> None:
        steps.append(batch.num_tokens)

    runner = ToyRunner(num_blocks=64, vocab_size=VOCABULARY, before_step=count, **options)  # type: ignore[arg-type]
    config = EngineConfig(max_step_tokens=128, max_draft_tokens=0)
    return Engine(runner, config, model_key=b"toy"), steps


def request(length: int, **changes: object) -> Request:
    prompt = tuple((11 * i + 5) % VOCABULARY for i in range(length))
    base = Request(id="r", prompt_ids=prompt, sampling=SamplingParams(max_tokens=20), cache_key=KEY)
    return replace(base, **changes)  # type: ignore[arg-type]


def run(engine: Engine) -> tuple[list[int], list[KVBlock], list[Output]]:
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    tokens = [token for output in outputs for token in output.token_ids]
    return tokens, [block for output in outputs for block in output.kv], outputs


def oracle(prompt: tuple[int, ...], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(np.array(tokens, np.int64), VOCABULARY))
    return tokens[len(prompt) :]


def prefilled(length: int) -> tuple[list[int], list[KVBlock], list[Output]]:
    engine, _ = toy_engine()
    engine.add(request(length, exports_kv=True, sampling=SamplingParams(max_tokens=1)).sequence())
    return run(engine)


LENGTHS = [1, 5, 63, 64, 65, 128, 200, 320]


@pytest.mark.parametrize("length", LENGTHS)
def test_the_decode_engine_only_decodes(length: int) -> None:
    first, kv, _ = prefilled(length)
    engine, steps = toy_engine()
    asked = request(length, kv=tuple(kv), output_ids=tuple(first))
    engine.add(asked.sequence())
    tokens, _, outputs = run(engine)
    assert first + tokens == oracle(asked.prompt_ids, 20)
    assert steps == [1] * 19
    usage = outputs[-1].usage
    assert usage is not None
    assert usage.cached_tokens == length - 1
    assert engine.pool.num_used == 0
    check_pool(engine.pool)


@pytest.mark.parametrize("length", LENGTHS)
def test_blocks_are_named_in_advance_and_told_in_order(length: int) -> None:
    _, kv, _ = prefilled(length)
    engine, _ = toy_engine()
    assert [block.digest for block in kv] == engine.exchange.names(request(length))
    assert [block.num_tokens for block in kv[:-1]] == [BLOCK_SIZE] * (len(kv) - 1)
    assert sum(block.num_tokens for block in kv) == length


def test_blocks_leave_while_later_ones_are_computed() -> None:
    _, _, outputs = prefilled(320)
    assert [len(output.kv) for output in outputs] == [2, 2, 1]
    assert [len(output.token_ids) for output in outputs] == [0, 0, 1]


def test_a_cached_prefix_is_exported_too() -> None:
    engine, steps = toy_engine()
    engine.add(request(200).sequence())
    run(engine)
    del steps[:]
    engine.add(request(200, exports_kv=True, sampling=SamplingParams(max_tokens=1)).sequence())
    _, kv, _ = run(engine)
    assert [block.digest for block in kv] == engine.exchange.names(request(200))
    assert steps == [200 - 192]


@pytest.mark.parametrize("lost", range(4))
def test_a_missing_block_costs_computing_from_there(lost: int) -> None:
    first, kv, _ = prefilled(200)
    engine, steps = toy_engine()
    some = tuple(block for i, block in enumerate(kv) if i != lost)
    engine.add(request(200, kv=some, output_ids=tuple(first)).sequence())
    tokens, _, _ = run(engine)
    assert first + tokens == oracle(request(200).prompt_ids, 20)
    assert sum(steps) == 19 + 200 - lost * BLOCK_SIZE


def test_a_full_pool_computes_again_instead() -> None:
    first, kv, _ = prefilled(200)
    runner = ToyRunner(num_blocks=8, vocab_size=VOCABULARY)
    engine = Engine(runner, EngineConfig(), model_key=b"toy")
    engine.add(request(400, id="other", sampling=SamplingParams(max_tokens=60)).sequence())
    engine.step()
    engine.add(request(200, kv=tuple(kv), output_ids=tuple(first)).sequence())
    outputs = run(engine)[2]
    tokens = [t for output in outputs if output.request_id == "r" for t in output.token_ids]
    assert first + tokens == oracle(request(200).prompt_ids, 20)
    check_pool(engine.pool)


def test_another_dtype_is_converted() -> None:
    first, kv, _ = prefilled(200)
    engine, steps = toy_engine(dtype="float32")
    engine.add(request(200, kv=tuple(kv), output_ids=tuple(first)).sequence())
    tokens, _, _ = run(engine)
    assert first + tokens == oracle(request(200).prompt_ids, 20)
    assert steps == [1] * 19


def test_another_tenant_cannot_use_the_blocks() -> None:
    first, kv, _ = prefilled(200)
    engine, steps = toy_engine()
    engine.add(
        request(200, cache_key=b"another", kv=tuple(kv[:-1]), output_ids=tuple(first)).sequence()
    )
    run(engine)
    assert sum(steps) == 19 + 200


def test_a_transcript_tells_its_full_blocks() -> None:
    said = tuple(oracle(request(100).prompt_ids, 60))
    engine, _ = toy_engine()
    asked = request(100, output_ids=said, exports_kv=True, sampling=SamplingParams(max_tokens=61))
    engine.add(asked.sequence())
    first, kv, _ = run(engine)
    assert [block.digest for block in kv] == engine.exchange.names(asked)
    assert [block.num_tokens for block in kv] == [BLOCK_SIZE, BLOCK_SIZE]
    engine, steps = toy_engine()
    engine.add(
        request(
            100, kv=tuple(kv), output_ids=(*said, *first), sampling=SamplingParams(max_tokens=80)
        ).sequence()
    )
    tokens, _, _ = run(engine)
    assert [*said, *first, *tokens] == oracle(asked.prompt_ids, 80)
    assert sum(steps) == 100 + 79 - 2 * BLOCK_SIZE


@pytest.mark.parametrize("wrong", [0, 2])
def test_a_block_that_the_runner_refuses_costs_computing_from_there(wrong: int) -> None:
    first, kv, _ = prefilled(200)
    data = kv[wrong].data
    assert isinstance(data, np.ndarray)
    kv[wrong] = replace(kv[wrong], data=data[:1])
    engine, steps = toy_engine()
    engine.add(request(200, kv=tuple(kv), output_ids=tuple(first)).sequence())
    tokens, _, _ = run(engine)
    assert first + tokens == oracle(request(200).prompt_ids, 20)
    assert sum(steps) == 19 + 200 - wrong * BLOCK_SIZE
    check_pool(engine.pool)


def test_what_arrives_does_not_push_out_what_stands_before_it() -> None:
    """Six blocks, all idle, the prompt's first two the oldest; three more of it arrive."""
    _, kv, _ = prefilled(320)
    runner = ToyRunner(num_blocks=6, vocab_size=VOCABULARY)
    engine = Engine(runner, EngineConfig(), model_key=b"toy")
    one_token = SamplingParams(max_tokens=1)
    engine.add(request(128, id="head", sampling=one_token).sequence())
    run(engine)
    other = tuple(range(250))
    engine.add(request(0, id="other", prompt_ids=other, sampling=one_token).sequence())
    run(engine)
    engine.add(request(320, kv=tuple(kv[2:]), sampling=one_token).sequence())
    run(engine)
    assert engine.statistics().cache_hit_tokens == 256
