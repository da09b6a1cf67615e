"""A JAX runner that chooses on the device, as on a GPU: its tokens are those that the host chooses,
and the step after is launched before they are known."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from bench.subjects.samples import samples_of
from tests.core.open_runners import open_on_jax
from tests.core.runners.hand_batches import Piece, batch_of
from tests.core.runners.runner_suite import (
    CACHE,
    answers_of,
    engine_over,
    random_tokens,
    requests_that_outgrow_five_blocks,
    write_model,
)
from tests.core.xla.compilations import compilations

from skerry_core.runner import OverlappingRunner
from skerry_core.runners.jax import jax_runner
from skerry_core.runners.jax.jax_runner import JaxRunner
from skerry_core.runners.jax.jax_sampler import Place


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models"), "llama")


def open_runner(path: Path, chooses: Place, max_samples: int = 4) -> JaxRunner:
    return open_on_jax(
        path, cache_dir=CACHE, threads=1, num_blocks=8, max_step_tokens=64,
        max_samples=max_samples, chooses=chooses,
    )  # fmt: skip


def test_a_cpu_chooses_on_the_host_unless_forced(llama: Path) -> None:
    runner = open_on_jax(llama, cache_dir=CACHE, threads=1, num_blocks=1)
    assert isinstance(runner, OverlappingRunner)
    assert runner.steps_ahead == 0
    assert open_runner(llama, "device").steps_ahead == 1


def test_elsewhere_it_chooses_on_the_device_and_keeps_bfloat16(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax_runner, "is_cpu", lambda: False)
    runner = open_on_jax(llama, cache_dir=CACHE, threads=1, num_blocks=1)
    assert (runner.steps_ahead, runner.kv_format.dtype) == (1, "bfloat16")


def test_warm_up_compiles_what_choosing_needs(llama: Path) -> None:
    runner = open_runner(llama, "device", max_samples=1)
    runner.warm_up(lambda what, share: None)
    batch, one = batch_of(Piece([3], 0, [4])), np.array([0, 1], np.int32)
    batch.sampling = samples_of(
        1, temperature=1, top_p=0.9, top_k=3, typical_p=0.9, num_logprobs=5, presence_penalty=1,
        history_start=one, history_ids=one[1:], history_counts=one[1:], bias_start=one,
        bias_ids=one[1:], bias_values=np.ones(1, np.float32),
        allowed=np.full((1, 5), 1 << 31, np.uint32),
    )  # fmt: skip
    with compilations() as more:
        runner.execute(batch)
    assert more == []


def test_a_step_takes_what_the_one_before_it_makes(llama: Path) -> None:
    """Two rows that decode, then one of them beside a chunk that ends with the other's token."""
    runner = open_runner(llama, "device")
    first = batch_of(Piece([3], 0, [4]), Piece([9], 0, [7]))
    second = batch_of(Piece([0], 1, [7]), Piece([5, 8, 0], 1, [4]))
    second.feeds = np.array([[0, 1], [3, 0]], np.int32)
    runner.launch(first)
    runner.launch(second)
    for array in astuple(first)[:5] + astuple(second)[:5]:
        array[...] = 0  # as soon as it is launched
    made = [runner.collect().token_ids for _ in range(2)]
    logits = runner.last_logits()

    host = open_runner(llama, "host")
    first = batch_of(Piece([3], 0, [4]), Piece([9], 0, [7]))
    second = batch_of(Piece([made[0][1]], 1, [7]), Piece([5, 8, made[0][0]], 1, [4]))
    np.testing.assert_array_equal(host.execute(first).token_ids, made[0])
    np.testing.assert_array_equal(host.execute(second).token_ids, made[1])
    np.testing.assert_array_equal(host.last_logits(), logits)


def test_a_sequence_without_a_possible_token_is_fed_any(llama: Path) -> None:
    runner = open_runner(llama, "device")
    first, second = batch_of(Piece([3], 0, [4])), batch_of(Piece([0], 1, [4]))
    first.sampling.allowed = np.zeros((1, 5), np.uint32)
    second.feeds = np.array([[0, 0]], np.int32)
    runner.launch(first)
    runner.launch(second)
    assert runner.collect().token_ids == [-1]
    runner.collect()
    assert np.isfinite(runner.last_logits()).all()


def test_a_step_that_samples_nothing_is_a_step(llama: Path) -> None:
    runner, tokens = open_runner(llama, "device"), random_tokens(40)
    batch = batch_of(Piece(tokens[:39], 0, [2]))
    batch.sample_tokens, batch.sampling = np.zeros(0, np.int32), samples_of(0)
    assert len(runner.execute(batch).token_ids) == 0
    assert runner.last_logits().shape == (0, 131)


@pytest.mark.parametrize(
    "style",
    [
        {"temperature": 1.3, "seed": 3, "logprobs": 2},
        {"temperature": 0.9, "top_p": 0.8, "top_k": 20, "frequency_penalty": 0.5},
    ],
)
def test_an_engine_gives_the_tokens_that_the_host_chooses(
    llama: Path, style: dict[str, float]
) -> None:
    """Each request alone: its steps then have the same shapes, and so the same bits."""
    requests = requests_that_outgrow_five_blocks(**style)[:2]
    engines = [engine_over(open_runner(llama, chooses)) for chooses in ("device", "host")]
    for request in requests:
        ours, theirs = (answers_of(engine, [request]) for engine in engines)
        assert ours == theirs
        assert len(ours[request.id].token_ids) == 25
