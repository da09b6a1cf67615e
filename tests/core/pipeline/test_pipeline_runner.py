"""A model in stages computes what it does in one process, bit for bit, and its blocks are the
same: of every family, cut anywhere. `test_runners` holds it to the runners' contract besides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.subjects.requests import Request, SamplingParams
from numpy.typing import NDArray
from tests.core.pipeline.stage_threads import StageThreads, open_pipeline
from tests.core.random_models import random_weights, write_safetensors
from tests.core.runners.family_table import FAMILIES
from tests.core.runners.hand_batches import (
    Piece,
    batch_of,
    check_same_bits_in_any_batch,
    teacher_forced,
)
from tests.core.runners.runner_suite import (
    CACHE,
    MODELS,
    answers_of,
    engine_over,
    open_numba,
    random_tokens,
    requests_with_shared_prefix,
)
from tests.core.runners.saved_family import TOKENS, Saved, save

from skerry_core.config import ConfigError, LayerConfig
from skerry_core.models.stages import ModelStage, stages_of
from skerry_core.page_checksums import KVChecksumError, page_checksums
from skerry_core.ranks import Parallel, RankLost
from skerry_core.runner import RunnerSetup, WantedSizes
from skerry_core.runners.numba_cpu import NumbaRunner
from skerry_core.runners.packing.packed import load_packed
from skerry_core.runners.pipeline.pipeline_runner import PipelineRunner

SIZES: dict[str, Any] = {"num_blocks": 22, "max_step_tokens": 256, "max_samples": 256}
LAYERS = (*[LayerConfig()] * 4, LayerConfig(rope=None))
MODEL = replace(MODELS["qwen3"], architecture="smollm3", layers=LAYERS, qk_norm=None)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_safetensors(folder, MODEL, random_weights(MODEL, seed=3))


@pytest.fixture(scope="module")
def whole(weights: Path) -> Iterator[NumbaRunner]:
    runner = open_numba(weights, **SIZES)
    assert isinstance(runner, NumbaRunner)
    yield runner
    runner.close()


@pytest.fixture(scope="module", params=[2, 3, 5])
def divided(request: pytest.FixtureRequest, weights: Path) -> Iterator[PipelineRunner]:
    runner = open_pipeline(weights, CACHE, request.param, **SIZES)
    assert len(runner.stages) == request.param
    yield runner
    runner.close()


def same(one: NDArray[Any], other: NDArray[Any]) -> None:
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


# Other families have no feature that none of these has.
FAST = (
    *("qwen2, windows in some layers", "qwen3", "smollm3", "gemma2", "gemma3", "granite", "olmo2"),
    *("phi3, a part of each head and LongRoPE", "gpt_oss"),
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[pytest.mark.slow] * (each not in FAST)) for each in FAMILIES],
)
def test_every_family_has_the_same_bits_in_stages(name: str, tmp_path: Path) -> None:
    saved: Saved = save(FAMILIES[name], tmp_path)
    whole = NumbaRunner.open(saved.folder, threads=1, cache_dir=CACHE, floats="keep", **SIZES)
    divided = open_pipeline(saved.folder, CACHE, whole.model.num_layers, **SIZES)
    assert divided.numeric_build == whole.numeric_build
    assert divided.kv_format == whole.kv_format
    same(
        teacher_forced(divided, TOKENS, (77, 1, 72), table=[8, 9, 4]),
        teacher_forced(whole, TOKENS, (150,), table=[5, 0, 3]),
    )
    same(divided.export_block(9), whole.export_block(0))
    whole.close()
    divided.close()


def test_any_batch_and_chunks(divided: PipelineRunner) -> None:
    check_same_bits_in_any_batch(divided)


def test_blocks_go_either_way(whole: NumbaRunner, divided: PipelineRunner) -> None:
    """From one process to stages and back, as failover has it."""
    alone = teacher_forced(whole, TOKENS, (150,), table=[5, 0, 3])
    for source, target in ((whole, divided), (divided, whole)):
        teacher_forced(source, TOKENS[:128], (100, 28), table=[5, 0])
        for here, there in ((5, 7), (0, 1)):
            target.admit_block(there, source.export_block(here))
            same(target.export_block(there), source.export_block(here))
        rest = teacher_forced(target, TOKENS[128:], (21, 1), table=[7, 1, 2], start=128)
        same(rest, alone[128:])


def test_many_blocks_at_once(whole: NumbaRunner, divided: PipelineRunner) -> None:
    blocks = [3, 0, 21]
    rng = np.random.default_rng(1)
    data = rng.standard_normal((3, *whole.kv_format.shape)).astype(np.float16)
    sums = page_checksums(data)
    divided.admit_blocks(blocks, data, sums)
    same(divided.export_blocks(blocks)[0], data)
    with pytest.raises(KVChecksumError):
        divided.admit_blocks(blocks, data[::-1].copy(), sums)
    with pytest.raises(ValueError, match="must be finite"):
        divided.admit_blocks([1], np.full_like(data[:1], np.inf))
    same(divided.export_blocks(blocks)[0], data)


def test_steps_follow_each_other(whole: NumbaRunner, divided: PipelineRunner) -> None:
    """Several are under way at once; what is exported meanwhile does not lose their results."""
    steps = [batch_of(Piece(random_tokens(5, seed=i), 0, [i])) for i in range(8)]
    expected = [whole.execute(step).token_ids.copy() for step in steps]
    for step in steps:
        divided.launch(step)
    block = divided.export_block(2)
    for tokens in expected:
        same(divided.collect().token_ids, tokens)
    same(block[:, :, :, :5].copy(), whole.export_block(2)[:, :, :, :5].copy())


def test_engines_give_the_same_answers(whole: NumbaRunner, divided: PipelineRunner) -> None:
    style = SamplingParams(
        temperature=1.2, top_p=0.9, seed=7, max_tokens=12, logprobs=3, frequency_penalty=0.5,
        logit_bias=((3, 4.0),),
    )  # fmt: skip
    sampled = Request(id="s", prompt_ids=tuple(random_tokens(90, seed=5)), sampling=style)
    requests = [*requests_with_shared_prefix(), sampled]
    expected = answers_of(engine_over(whole, 64), requests)
    assert answers_of(engine_over(divided, 64), requests) == expected


def test_a_stage_maps_its_own_tensors(weights: Path) -> None:
    def mapped(stage: ModelStage | None) -> int:
        model = load_packed(
            weights, group_rows=16, floats="keep", stage=stage, cache_dir=CACHE,
            progress=lambda what, share: None,
        )  # fmt: skip
        return sum(run.nbytes for run in model.mapped)

    parts = [mapped(stage) for stage in stages_of((1, 3, 4), 5)]
    vectors = 5 * 2 * 4 * 64  # of layers, which lie apart
    assert sum(parts) - mapped(None) <= 5 * 64 + vectors
    assert all(part < 0.4 * mapped(None) for part in parts)


def test_tied_embeddings_are_of_both_ends() -> None:
    names = [
        "token_embd.weight",
        "output_norm.weight",
        "blk.0.attn_q.weight",
        "blk.1.ffn_up.weight",
    ]
    first, last = stages_of((1,), 2)
    model = replace(MODELS["llama"], tied_embeddings=True)
    assert first.tensors(model, names) == {
        "token_embd.weight": "token_embd.weight", "blk.0.attn_q.weight": "blk.0.attn_q.weight",
    }  # fmt: skip
    assert last.tensors(model, names) == {
        "token_embd.weight": "token_embd.weight", "output_norm.weight": "output_norm.weight",
        "blk.0.ffn_up.weight": "blk.1.ffn_up.weight",
    }  # fmt: skip


def test_more_stages_than_layers_are_refused(weights: Path) -> None:
    with pytest.raises(ConfigError, match="a model of 5 layers has no 6 stages"):
        open_pipeline(weights, CACHE, 6, **SIZES)


def test_a_lost_rank_is_an_error_of_the_step(weights: Path) -> None:
    divided = open_pipeline(weights, CACHE, 2, **SIZES)
    divided._below.close()
    with pytest.raises(RankLost, match="rank 1 is lost"):
        divided.execute(batch_of(Piece([1], 0, [0])))
    divided.close()


def test_closing_ends_all_ranks(weights: Path) -> None:
    ranks = StageThreads()
    setup = RunnerSetup(
        weights=weights, vocab_size=1, max_context=1, sizes=WantedSizes(num_blocks=4), threads=1,
        cache_dir=CACHE, progress=lambda what, share: None, parallel=Parallel(pipeline=3),
        ranks=ranks,
    )  # fmt: skip
    runner = PipelineRunner.from_setup(setup)
    runner.close()
    for thread in ranks.threads:
        thread.join(60)
        assert not thread.is_alive()
