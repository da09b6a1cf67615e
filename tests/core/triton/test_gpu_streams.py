"""The closed loop of `bench.gpu`, and what it says of a device that waits."""

from __future__ import annotations

import statistics

import pytest
import torch

pytest.importorskip("triton")

from bench.device.gpu_kernels import Gap, Kernel, busy_micros, gaps, idle_share, kernels_of
from bench.device.gpu_profiles import KernelRow, kernel_rows
from bench.device.gpu_sizes import TINY
from bench.device.gpu_streams import ClosedLoop, lengths
from bench.device.random_weights import random_weights

from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.runners.torch.torch_runner import TorchRunner

pytestmark = pytest.mark.triton

TWO_STREAMS = [
    Kernel("c", 30.0, 40.0),
    Kernel("a", 0.0, 10.0),
    Kernel("inside a", 2.0, 4.0),
    Kernel("b", 8.0, 15.0),
    Kernel("d", 40.0, 50.0),
]


def test_what_runs_at_once_is_busy_once() -> None:
    assert busy_micros(TWO_STREAMS) == 35.0
    assert idle_share(TWO_STREAMS) == pytest.approx(15 / 50)
    assert gaps(TWO_STREAMS) == [Gap(15.0, "b", "c")]


def test_a_kernel_over_others_hides_their_gaps() -> None:
    kernels = [Kernel("long", 0.0, 9.0), Kernel("x", 1.0, 2.0), Kernel("y", 5.0, 6.0)]
    assert busy_micros(kernels) == 9.0
    assert idle_share(kernels) == 0.0
    assert gaps(kernels) == []


def test_a_profile_sums_launches_by_kernel_and_gaps_by_what_ends_them() -> None:
    kernels = [
        Kernel("void one<int>(float*)", 0.0, 4.0), Kernel("two", 5.0, 6.0),
        Kernel("void one<int>(float*)", 6.0, 9.0), Kernel("two", 11.0, 13.0),
    ]  # fmt: skip
    assert kernel_rows(kernels, num_steps=2, num_layers=1) == [
        KernelRow("one<int>", 3.5, 0.7, 1.0, 1.0, 0.0),
        KernelRow("two", 1.5, 0.3, 1.0, 1.0, 1.5),
    ]
    many = [Kernel(f"k{i}", 2.0 * i, 2.0 * i + 1) for i in range(22)]
    last = kernel_rows(many, num_steps=1, num_layers=2)[-1]
    assert last == KernelRow("2 others", 2.0, 2 / 22, 2.0, 1.0, 2.0)


def test_a_profiler_that_saw_nothing_is_no_busy_device() -> None:
    assert gaps([]) == []
    with pytest.raises(ValueError, match="saw no kernel"):
        idle_share([])


def test_operators_stand_for_kernels_on_a_cpu() -> None:
    a = torch.ones(4, 4)
    kernels = kernels_of(lambda: (a @ a).sum(), torch.device("cpu"))
    assert [kernel.name for kernel in kernels] == ["aten::matmul", "aten::sum"]
    assert all(kernel.begin < kernel.end for kernel in kernels)


def test_lengths_have_the_means_of_the_published_requests() -> None:
    drawn = lengths(1600)
    prompts, answers = zip(*drawn, strict=True)
    assert statistics.mean(prompts) == pytest.approx(215, abs=1)
    assert statistics.mean(answers) == pytest.approx(206, abs=1)
    assert min(*prompts, *answers) >= 1
    assert max(prompts) == max(answers) == 1024
    assert drawn == lengths(1600)
    assert abs(statistics.correlation(prompts, answers)) < 0.05


def test_a_stream_that_ends_is_followed_by_the_next() -> None:
    weights = random_weights(TINY, torch.device("cpu"), torch.float32)
    runner = TorchRunner(TINY, weights, num_blocks=16)
    engine = Engine(runner, EngineConfig(max_running=3), model_key=b"test")
    wanted = [(5, 3), (70, 1), (2, 4), (9, 2), (1, 5)]
    loop = ClosedLoop(engine, wanted, streams=3, vocabulary=TINY.vocab_size, seed=0)
    seen: list[tuple[int, int]] = []
    while loop.step():
        seen.append((loop.running, loop.ended))
    # Answers of 3, 1 and 4 tokens; the second is followed by 2, and that by 5, and so on.
    assert seen == [(2, 1), (3, 1), (1, 3), (1, 4), (1, 4), (1, 4), (1, 4), (0, 5)]
    assert loop.prompt_tokens == sum(prompt for prompt, _ in wanted)
    assert loop.answer_tokens == sum(answer for _, answer in wanted)
