"""Steps taken apart into kernels, for `bench.gpu_profile`."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from bench.device.gpu_batches import decoding, num_blocks, step
from bench.device.gpu_kernels import Kernel, busy_micros, gaps, kernels_of
from bench.device.gpu_report import Row
from bench.device.gpu_steps import fill, run_chain
from bench.device.gpu_subject import Subject
from skerry_core.batch import ForwardBatch
from skerry_core.runners.torch.torch_runner import TorchRunner

_ROWS = 20  # kernels that have a row of their own
_SHOWN = 60  # characters of a kernel's name: cuBLAS's differ in their tiles


@dataclass(frozen=True)
class StepRow:
    """A step; milliseconds."""

    name: str
    elapsed: float  # without the profiler
    least: float  # at the device's ceilings
    busy: float  # in which at least one kernel ran, by the profiler
    waiting: float  # in which none ran, from the first one to the last one
    host: float  # that the host computes to launch it

    def line(self) -> str:
        return (
            f"{self.name}: {self.elapsed:.3f} ms, {self.least / self.elapsed:.0%} of the roof; "
            f"kernels {self.busy:.3f}, nothing {self.waiting:.3f}, the host {self.host:.3f}"
        )


@dataclass(frozen=True)
class KernelRow:
    """All launches of a kernel in a step; microseconds."""

    name: str
    micros: float
    share: float  # of all kernels' time
    launches: float
    a_layer: float  # of these, if they were all of layers
    gap: float  # before it, in which nothing ran

    def line(self) -> str:
        return (
            f"  {self.micros:9.1f} us {self.share:4.0%} {self.launches:7.1f} launches, "
            f"{self.a_layer:5.2f} a layer, {self.gap:7.1f} us of gaps before: {self.name}"
        )


def profile_decode(subject: Subject, rows: int) -> list[Row]:
    s = subject.sizes
    contexts = [s.context] * rows
    room = num_blocks([s.context + s.chain] * rows)
    runner = _runner(subject, room, max_step_tokens=rows, max_samples=rows)
    fill(subject, runner)
    steps = decoding(contexts, s.chain, is_sampled=True)
    tokens = rows * (s.context + s.chain // 2)
    least = (subject.weight_bytes() + subject.kv_bytes(tokens)) / subject.copy_rate
    return _profiled(subject, runner, f"decode, {rows} rows", steps, least)


def profile_prefill(subject: Subject) -> list[Row]:
    count = subject.sizes.prefill
    runner = _runner(subject, num_blocks([count]), max_step_tokens=count, max_samples=1)
    least = subject.prefill_operations(count) / subject.product_rate
    steps = [step(1, count, count)]
    return _profiled(subject, runner, f"prefill of {count}", steps, least)


def _runner(subject: Subject, room: int, *, max_step_tokens: int, max_samples: int) -> TorchRunner:
    return TorchRunner(
        subject.sizes.model, subject.weights, num_blocks=room, max_step_tokens=max_step_tokens,
        max_samples=max_samples, kernels="triton",
    )  # fmt: skip


def _profiled(
    subject: Subject, runner: TorchRunner, name: str, steps: Sequence[ForwardBatch], least: float
) -> list[Row]:
    """Return the step, then its kernels, those that take longest first."""
    elapsed = subject.seconds(partial(run_chain, runner, steps)) / len(steps)
    host = _host_seconds(runner, steps) / len(steps)
    kernels = kernels_of(lambda: run_chain(runner, steps), subject.device)
    runner.close()
    waiting = sum(gap.micros for gap in gaps(kernels)) / len(steps)
    busy = busy_micros(kernels) / len(steps)
    first = StepRow(name, 1e3 * elapsed, 1e3 * least, busy / 1e3, waiting / 1e3, 1e3 * host)
    return [first, *kernel_rows(kernels, len(steps), subject.sizes.model.num_layers)]


def _host_seconds(runner: TorchRunner, steps: Sequence[ForwardBatch]) -> float:
    """Return what this thread computes to launch steps, which it does while one is computed."""
    seconds = 0.0
    for each in steps:
        begun = time.thread_time()
        runner.launch(each)
        seconds += time.thread_time() - begun
        runner.collect()
    return seconds


def kernel_rows(kernels: Sequence[Kernel], num_steps: int, num_layers: int) -> list[KernelRow]:
    """Sum launches by kernel, those that take longest first, and the rest in one row."""
    micros, launches, before = (defaultdict[str, float](float) for _ in range(3))
    for kernel in kernels:
        micros[_short(kernel.name)] += kernel.end - kernel.begin
        launches[_short(kernel.name)] += 1
    for gap in gaps(kernels):
        before[_short(gap.before)] += gap.micros
    whole = sum(micros.values())
    longest = sorted(micros, key=lambda name: -micros[name])
    groups = {name: [name] for name in longest[:_ROWS]}
    if others := longest[_ROWS:]:
        groups[f"{len(others)} others"] = others

    def a_step(counts: Mapping[str, float], names: Sequence[str]) -> float:
        return sum(counts[name] for name in names) / num_steps

    return [
        KernelRow(
            name, a_step(micros, group), num_steps * a_step(micros, group) / whole,
            a_step(launches, group), a_step(launches, group) / num_layers, a_step(before, group),
        )
        for name, group in groups.items()
    ]  # fmt: skip


def _short(name: str) -> str:
    """Return a kernel's name without its return type and arguments."""
    bare = re.sub(r"^(void|float|int) ", "", name)
    return re.sub(r"\(.*\)$", "", bare)[:_SHOWN]
