"""Batch by chunk by hand-over by preemption by speculation by threads: always the same bits.

Every position's logits are compared with those of its request alone, in one chunk, on one thread.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from bench.subjects.requests import Request, SamplingParams
from tests.core.cpu.test_numba_engine import Alone, SeeingRunner
from tests.core.cpu.test_numba_exactness import CACHE, SMALL
from tests.core.engine.drafting import draft_true_tokens, speculator_of
from tests.core.random_models import quantize_matrices, random_weights, write_gguf
from tests.core.toy_oracle import run

from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.request import KVBlock

TOKENS = 40  # of an answer
STYLES = (
    SamplingParams(temperature=0.8, top_p=0.95),
    SamplingParams(),
    SamplingParams(temperature=1.0, repetition_penalty=1.2, frequency_penalty=0.3),
    SamplingParams(presence_penalty=0.5, logprobs=2),
)


def requests() -> list[Request]:
    """Four styles, prompts of 40 to 139 tokens; the seed of each tells its rows apart."""
    rng = np.random.default_rng(3)
    return [
        Request(
            id=str(seed),
            prompt_ids=tuple(rng.integers(0, SMALL.vocab_size, 40 + 33 * seed).tolist()),
            sampling=replace(style, seed=seed, max_tokens=TOKENS),
            tenant=str(seed),
        )
        for seed, style in enumerate(STYLES)
    ]


def open_runner(weights: Path, threads: int, num_blocks: int) -> SeeingRunner:
    runner = SeeingRunner.open(weights, num_blocks=num_blocks, threads=threads, cache_dir=CACHE)
    assert isinstance(runner, SeeingRunner)
    runner.seen = {}
    return runner


def engine_over(runner: SeeingRunner, step_tokens: int = 512, drafts: int = 0) -> Engine:
    config = EngineConfig(
        max_step_tokens=step_tokens, max_gap_seconds=math.inf, max_draft_tokens=drafts
    )
    return Engine(runner, config, model_key=b"model")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    return write_gguf(path, SMALL, random_weights(SMALL), quantize_matrices("Q4_1"))


@pytest.fixture(scope="module")
def alone(weights: Path) -> Alone:
    runner = open_runner(weights, threads=1, num_blocks=8)
    tokens: dict[str, list[int]] = {}
    for one in requests():
        engine = engine_over(runner)
        engine.add(one.sequence())
        tokens |= {id: answer.token_ids for id, answer in run(engine).items()}
    assert len(runner.seen) == TOKENS * len(STYLES)
    runner.close()
    return runner.seen, tokens


def prefilled(runner: SeeingRunner, one: Request, step_tokens: int) -> Request:
    """The request as another node hands it on: its prompt's blocks and its first token."""
    engine = engine_over(runner, step_tokens)
    engine.add(
        replace(one, exports_kv=True, sampling=replace(one.sampling, max_tokens=1)).sequence()
    )
    kv: list[KVBlock] = []
    made: list[int] = []
    while engine.has_work:
        for output in engine.step():
            kv += output.kv
            made += output.token_ids
    return replace(one, kv=tuple(kv), output_ids=tuple(made))


@pytest.mark.parametrize(
    ("threads", "drafts", "step_tokens", "num_blocks", "is_split"),
    list(product((1, 2), (0, 3, 8), (24, 512), (6, 24), (False, True))),
)
def test_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
    weights: Path,
    alone: Alone,
    threads: int,
    drafts: int,
    step_tokens: int,
    num_blocks: int,
    is_split: bool,
) -> None:
    seen, tokens = alone
    draft_true_tokens(monkeypatch, tokens, SMALL.vocab_size, seed=step_tokens + num_blocks)
    runner = open_runner(weights, threads, num_blocks)
    asked = requests()
    if is_split:
        asked = [prefilled(runner, one, step_tokens) for one in asked]
    engine = engine_over(runner, step_tokens, drafts)
    for one in asked:
        engine.add(one.sequence())
    answers = run(engine)
    runner.close()
    for one in asked:
        assert list(one.output_ids) + answers[one.id].token_ids == tokens[one.id]
    assert runner.seen.keys() == seen.keys()
    for key, logits in runner.seen.items():
        np.testing.assert_array_equal(logits.view(np.int32), seen[key].view(np.int32))
    assert bool(engine.statistics().preemptions) == (num_blocks == 6)
    if drafts:
        speculator = speculator_of(engine)
        assert 0 < speculator.num_accepted < speculator.num_drafted
