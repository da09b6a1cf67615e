"""Groups of ranks behind one runner: engines, KV between unlike divisions, what ranks send."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.open_runners import open_on_torch
from tests.core.ranks.group_suite import RankThreads, open_group
from tests.core.runners.hand_batches import Piece, batch_of, teacher_forced
from tests.core.runners.runner_suite import (
    Sizes,
    answers_of,
    check_greedy,
    engine_over,
    random_tokens,
    reference,
    requests_that_outgrow_five_blocks,
    requests_with_shared_prefix,
    write_model,
)
from tests.core.triton.test_no_host_sync import styled

from skerry_core.batch import ForwardBatch, StepResult
from skerry_core.config import ConfigError, EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.page_checksums import KVChecksumError, page_checksums
from skerry_core.ranks import RankLost
from skerry_core.runner import BlockMover, ModelRunner, RunnerSizes, WantedSizes
from skerry_core.runners.rank_messages import (
    MessageKind,
    RankMessage,
    encode,
    step_message,
    step_of,
)
from skerry_core.runners.torch.opening import LoadedModel
from skerry_core.runners.torch.torch_group import TorchGroup

SIZES: Sizes = {"num_blocks": 16, "max_step_tokens": 512, "max_samples": 512}
DIVISIONS = {"two parts": (2, 1), "two stages": (1, 2), "two parts of two stages": (2, 2)}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models"), "qwen3")


@pytest.fixture(scope="module")
def runners(weights: Path) -> Iterator[dict[str, ModelRunner]]:
    """Deterministic ones, whose answers do not depend on what ran before."""
    opened: dict[str, ModelRunner] = {
        name: open_group(weights, tensor=tensor, pipeline=stages, deterministic=True, **SIZES)
        for name, (tensor, stages) in (DIVISIONS | {"four parts": (4, 1)}).items()
    }
    opened["whole"] = open_on_torch(weights, threads=1, device="cpu", deterministic=True, **SIZES)
    yield opened
    for runner in opened.values():
        runner.close()


@pytest.mark.parametrize("name", DIVISIONS)
def test_engines_answer_as_the_reference_does(
    runners: dict[str, ModelRunner], weights: Path, name: str
) -> None:
    requests = requests_with_shared_prefix()
    answers = answers_of(engine_over(runners[name], 64), requests)
    for request in requests:
        check_greedy(reference(weights), request, answers[request.id], atol=2e-5)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("two parts", marks=pytest.mark.slow),
        pytest.param("two stages", marks=pytest.mark.slow),
        "two parts of two stages",
    ],
)
def test_deterministic_answers_are_the_same_alone_and_together(
    runners: dict[str, ModelRunner], name: str
) -> None:
    requests = requests_that_outgrow_five_blocks(temperature=1.3, seed=3, logprobs=2)
    together = answers_of(engine_over(runners[name], 33), requests)
    for request in requests:
        assert answers_of(engine_over(runners[name]), [request]) == {
            request.id: together[request.id]
        }


def test_stages_answer_with_the_bits_of_the_whole(runners: dict[str, ModelRunner]) -> None:
    """The same logprobs too."""
    requests = requests_that_outgrow_five_blocks(temperature=1.3, seed=3, logprobs=2)
    stages, whole = (
        answers_of(engine_over(runners[name]), requests) for name in ("two stages", "whole")
    )
    assert stages == whole
    assert runners["two stages"].numeric_build == runners["whole"].numeric_build


@pytest.mark.parametrize(
    "name", ["two stages", pytest.param("two parts of two stages", marks=pytest.mark.slow)]
)
def test_stages_have_steps_under_way(
    runners: dict[str, ModelRunner], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each, and the same answers as one by one; those that tell logprobs of their prompts,
    or share blocks, too."""
    group = runners[name]
    assert isinstance(group, TorchGroup)
    requests = requests_with_shared_prefix()
    config = EngineConfig(max_step_tokens=64, max_draft_tokens=0)
    with monkeypatch.context() as patched:
        patched.setattr(group, "steps_ahead", 0)
        expected = answers_of(Engine(group, config, model_key=b"random"), requests)
    under_way, most = 0, 0

    def launch(batch: ForwardBatch) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        TorchGroup.launch(group, batch)

    def collect() -> StepResult:
        nonlocal under_way
        under_way -= 1
        return TorchGroup.collect(group)

    monkeypatch.setattr(group, "launch", launch)
    monkeypatch.setattr(group, "collect", collect)
    assert answers_of(Engine(group, config, model_key=b"random"), requests) == expected
    assert (most, under_way) == (2, 0)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("two parts", "whole"),
        ("whole", "two parts of two stages"),
        pytest.param("two stages", "four parts", marks=pytest.mark.slow),
        pytest.param("four parts", "two parts", marks=pytest.mark.slow),
    ],
)
def test_kv_goes_from_one_division_to_another(
    runners: dict[str, ModelRunner], weights: Path, prefill: str, decode: str
) -> None:
    tokens, split = random_tokens(200), 170
    there, here = runners[prefill], runners[decode]
    teacher_forced(there, tokens[:split], (100, 70), table=[4, 1, 3])
    assert isinstance(there, BlockMover)
    assert isinstance(here, BlockMover)
    data, checksums = there.export_blocks([4, 1, 3])
    assert checksums is None  # of a CPU's memory
    np.testing.assert_array_equal(data[1], there.export_block(1))
    here.admit_blocks([9, 8, 7], data, page_checksums(data))
    np.testing.assert_array_equal(here.export_blocks([9, 8, 7])[0], data)
    logits = teacher_forced(here, tokens[split:], (1,) * 30, table=[9, 8, 7, 6], start=split)
    expected = reference(weights).logits(tokens)[split:]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5)
    with pytest.raises(KVChecksumError, match="1 of 3 KV blocks were spoilt"):
        here.admit_blocks([9, 8, 7], data, page_checksums(data) + np.array([0, 1, 0], np.uint64))


def test_ranks_refuse_what_a_model_does_not_divide_into(weights: Path) -> None:
    for division, message in (
        ((3, 1), "4 heads with 2 KV heads cannot be divided among 3"),
        ((1, 3), "a model of 2 layers has no 3 stages"),
    ):
        with pytest.raises((ConfigError, RankLost), match=message):
            open_group(weights, tensor=division[0], pipeline=division[1], **SIZES)


def test_ranks_take_the_least_that_any_has_room_for(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank has its own memory; here the others have less."""
    fitted = LoadedModel.fitted

    def less(loaded: LoadedModel, wanted: WantedSizes) -> RunnerSizes:
        sizes, is_first = fitted(loaded, wanted), threading.current_thread().name == "MainThread"
        return replace(sizes, max_samples=9) if is_first else replace(sizes, num_blocks=3)

    monkeypatch.setattr(LoadedModel, "fitted", less)
    group = open_group(weights, tensor=2, **SIZES)
    assert (group.num_blocks, group.max_step_tokens, group.max_samples) == (3, 512, 9)
    with pytest.raises(ValueError, match="there is no block 3"):
        group.export_block(3)
    group.close()


def test_threads_of_ranks_end_with_the_group(weights: Path) -> None:
    group = open_group(weights, tensor=2, **SIZES)
    ranks = group.ranks
    assert isinstance(ranks, RankThreads)
    group.close()
    ranks.threads[0].join(timeout=60)
    assert not ranks.threads[0].is_alive()


# --- messages ------------------------------------------------------------------------------------


def received(parts: list[Any]) -> RankMessage:
    """What the other end of a channel gets."""
    return RankMessage([memoryview(bytearray(part)) for part in parts])


def test_a_step_arrives_as_it_was_sent() -> None:
    for feeds in (None, np.array([[0, 1], [3, 0]], np.int32)):
        sent = styled(batch_of(Piece([5, 9], 0, [2]), Piece([7], 65, [4, 1])))
        sent.feeds = feeds
        arrived = step_of(received(step_message(sent)))
        for name in ("token_ids", "positions", "query_start", "block_tables", "sample_tokens"):
            np.testing.assert_array_equal(getattr(arrived, name), getattr(sent, name))
        for name in type(sent.sampling).__slots__:
            there, here = getattr(arrived.sampling, name), getattr(sent.sampling, name)
            np.testing.assert_array_equal(there, here)
            assert there.dtype == here.dtype
        assert (arrived.feeds is None) == (feeds is None)
        if feeds is not None:
            np.testing.assert_array_equal(arrived.feeds, feeds)


@pytest.mark.parametrize(
    "parts",
    [
        [b"\xc1"],
        [b""],
        encode(MessageKind.STEP)[:1],
        [*encode(MessageKind.STEP, [np.zeros(3, np.int32)])[:1], b"short"],
        [*encode(MessageKind.STEP), b"one more"],
    ],
)
def test_what_is_no_step_is_refused(parts: list[Any]) -> None:
    with pytest.raises(RankLost, match=r"came|to come"):
        step_of(received(parts))
