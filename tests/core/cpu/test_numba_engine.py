"""One prompt, one seed, one answer, through the whole engine: logits bit for bit, whatever befell.

Each request has a seed of its own, so that the rows of a step can be told apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.subjects.requests import Reasoning, Request, SamplingParams
from tests.core.cpu.test_numba_exactness import CACHE, SMALL
from tests.core.random_models import quantize_matrices, random_weights, write_gguf
from tests.core.toy_oracle import run

from skerry_core.batch import Float32, ForwardBatch, StepResult
from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.engine.second_tier import open_file
from skerry_core.request import KVBlock
from skerry_core.runners.numba_cpu import NumbaRunner
from skerry_regions.models.model_files import ModelFiles

KEY = b"model"
NUM_BLOCKS = 24
Seen = dict[tuple[int, int], Float32]  # by seed and position


class SeeingRunner(NumbaRunner):
    """Keeps the logits of every sampled position."""

    seen: Seen

    def execute(self, batch: ForwardBatch) -> StepResult:
        result = super().execute(batch)
        samples = batch.sampling.samples
        keys = zip(samples["seed"].tolist(), samples["position"].tolist(), strict=True)
        self.seen |= dict(zip(keys, self.last_logits().copy(), strict=True))
        return result


@pytest.fixture(scope="module", params=["small", pytest.param("real", marks=pytest.mark.model)])
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "real":
        files: ModelFiles = request.getfixturevalue("default_model")
        return files.weights
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    return write_gguf(path, SMALL, random_weights(SMALL), quantize_matrices("Q4_1"))


def open_runner(weights: Path, num_blocks: int = NUM_BLOCKS) -> SeeingRunner:
    runner = SeeingRunner.open(weights, num_blocks=num_blocks, threads=2, cache_dir=CACHE)
    assert isinstance(runner, SeeingRunner)
    runner.seen = {}
    return runner


@pytest.fixture(scope="module")
def runner(weights: Path) -> Iterator[SeeingRunner]:
    opened = open_runner(weights)
    yield opened
    opened.close()


def engine_over(runner: NumbaRunner, step_tokens: int = 512) -> Engine:
    """A fresh engine, its cache empty, on a runner that was used before."""
    config = EngineConfig(max_step_tokens=step_tokens, max_gap_seconds=math.inf)
    return Engine(runner, config, model_key=KEY)  # its steps are the same on any machine


def request(seed: int, length: int = 150, **changes: object) -> Request:
    rng = np.random.default_rng(seed)
    prompt = tuple(int(t) for t in rng.integers(0, SMALL.vocab_size, length))
    style = SamplingParams(max_tokens=12, temperature=0.8, top_p=0.95, seed=seed)
    plain = Request(id=str(seed), prompt_ids=prompt, sampling=style)
    return replace(plain, **changes)  # type: ignore[arg-type]


REASONING = Reasoning(max_tokens=5, end_ids=(7, 8, 9))  # ends within each of the answers
REQUESTS = [
    request(seed, 50 + 33 * seed, reasoning=REASONING if seed % 2 else None) for seed in range(6)
]


@pytest.fixture(scope="module")
def alone(runner: SeeingRunner) -> tuple[Seen, dict[str, list[int]]]:
    """Logits and tokens of each request by itself, in one chunk, from an empty cache."""
    runner.seen = {}
    tokens: dict[str, list[int]] = {}
    for one in REQUESTS:
        engine = engine_over(runner)
        engine.add(one.sequence())
        tokens |= {id: answer.token_ids for id, answer in run(engine).items()}
    seen, runner.seen = runner.seen, {}
    assert len(seen) == 12 * len(REQUESTS)
    return seen, tokens


def check(engine: Engine, requests: list[Request], alone: tuple[Seen, dict[str, list[int]]]) -> int:
    """Run these together, compare everything; tokens found in caches."""
    runner = engine.runner
    assert isinstance(runner, SeeingRunner)
    runner.seen = {}
    for one in requests:
        engine.add(one.sequence())
    answers = run(engine)
    assert len(runner.seen) >= 12 * len(requests)
    for key, logits in runner.seen.items():
        np.testing.assert_array_equal(logits.view(np.int32), alone[0][key].view(np.int32))
    for one in requests:
        assert answers[one.id].token_ids == alone[1][one.id]
    return sum(a.usage.cached_tokens for a in answers.values() if a.usage is not None)


Alone = tuple[Seen, dict[str, list[int]]]


@pytest.mark.parametrize("step_tokens", [24, 512])
def test_all_at_once_in_chunks(runner: SeeingRunner, alone: Alone, step_tokens: int) -> None:
    assert check(engine_over(runner, step_tokens), REQUESTS, alone) == 0


def test_from_a_warm_prefix_cache(runner: SeeingRunner, alone: Alone) -> None:
    engine = engine_over(runner)
    for one in REQUESTS[:4]:
        assert check(engine, [one], alone) == 0
    cached = [(len(one.prompt_ids) - 1) // 64 * 64 for one in REQUESTS[:4]]
    assert check(engine, REQUESTS[:4], alone) == sum(cached) > 0


def test_after_preemption(weights: Path, alone: Alone) -> None:
    """Nine blocks for prompts that need eleven together, and their answers."""
    small = open_runner(weights, num_blocks=9)
    requests = [replace(one, tenant=one.id) for one in REQUESTS[1:5]]
    engine = engine_over(small, step_tokens=100)
    check(engine, requests, alone)
    assert engine.statistics().preemptions > 0
    small.close()


def test_from_the_file_tier(weights: Path, alone: Alone, tmp_path: Path) -> None:
    """Evicted blocks, read back in another process's life."""
    for is_first in (True, False):
        own = open_runner(weights)
        file = open_file(tmp_path / "kv", own, model_key=KEY, capacity_bytes=256 << 20)
        engine = Engine(own, EngineConfig(), model_key=KEY, file_tier=file)
        if is_first:
            check(engine, REQUESTS, alone)
            engine.save_cache(seconds=30.0)
        else:
            brought = []
            for one in REQUESTS:
                reading = engine.restore(one.sequence())
                kv: tuple[KVBlock, ...] = () if reading is None else reading.result(30)
                brought.append(replace(one, kv=kv))
            cached = [(len(one.prompt_ids) - 1) // 64 * 64 for one in REQUESTS]
            assert check(engine, brought, alone) == sum(cached)
            assert engine.statistics().restored_blocks == sum(cached) // 64
        engine.close()


def test_after_a_hand_over(runner: SeeingRunner, weights: Path, alone: Alone) -> None:
    """The prompt computed by one engine, in chunks; the rest by another, from its blocks."""
    one = REQUESTS[4]
    first = replace(one, exports_kv=True, sampling=replace(one.sampling, max_tokens=1))
    engine = engine_over(runner, step_tokens=70)
    engine.add(first.sequence())
    kv: list[KVBlock] = []
    made: list[int] = []
    while engine.has_work:
        for output in engine.step():
            kv += output.kv
            made += output.token_ids
    other = open_runner(weights)
    decoding = engine_over(other)
    decoding.add(replace(one, kv=tuple(kv), output_ids=tuple(made)).sequence())
    answers = run(decoding)
    assert made + answers[one.id].token_ids == alone[1][one.id]
    assert len(other.seen) == 11
    for key, logits in other.seen.items():
        np.testing.assert_array_equal(logits.view(np.int32), alone[0][key].view(np.int32))
    assert decoding.statistics().computed_tokens == 11
    other.close()


@pytest.mark.parametrize(
    "made", [pytest.param(3, marks=pytest.mark.slow), 6, pytest.param(9, marks=pytest.mark.slow)]
)
def test_resumed_in_its_reasoning_and_in_its_end(
    runner: SeeingRunner, alone: Alone, made: int
) -> None:
    """Where another node died: in the middle of the thought, of what ends it, and after that."""
    runner.seen = {}
    engine = engine_over(runner)
    limited = [one for one in REQUESTS if one.reasoning is not None]
    for one in limited:
        assert alone[1][one.id][5:8] == [7, 8, 9]
        resumed = replace(one, output_ids=tuple(alone[1][one.id][:made]))
        engine.add(resumed.sequence())
    answers = run(engine)
    for one in limited:
        assert answers[one.id].token_ids == alone[1][one.id][made:]
    for key, logits in runner.seen.items():
        np.testing.assert_array_equal(logits.view(np.int32), alone[0][key].view(np.int32))
