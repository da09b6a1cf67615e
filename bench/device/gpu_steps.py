"""Steps as an engine runs them, beside the least bytes and operations that they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import torch

from bench.device.gpu_batches import decoding, num_blocks, step
from bench.device.gpu_report import Figure
from bench.device.gpu_subject import Clock, Subject, in_form, weight_bytes
from skerry_core.batch import ForwardBatch
from skerry_core.kernels.torch.decoder import DecoderWeights
from skerry_core.kernels.torch.quantized import NarrowWeights
from skerry_core.runners.torch.torch_runner import Kernels, TorchRunner

BYTES, PRODUCTS = "bytes over bandwidth", "the matrix product's rate"
_FILLED = 32  # blocks that are filled at once


def step_seconds(clock: Clock, runner: TorchRunner, steps: Sequence[ForwardBatch]) -> float:
    """Return the median seconds of a step of those that follow one another."""
    return clock.seconds(partial(run_chain, runner, steps)) / len(steps)


def run_chain(runner: TorchRunner, steps: Sequence[ForwardBatch]) -> None:
    """Launch each step while the one before is computed, as the engine does."""
    runner.launch(steps[0])
    for following in steps[1:]:
        runner.launch(following)
        runner.collect()
    runner.collect()


def decode_figure(
    subject: Subject, runner: TorchRunner, name: str, contexts: Sequence[int], *,
    is_sampled: bool = False, wanted: float | None = None, weights: DecoderWeights | None = None,
) -> Figure:  # fmt: skip
    """Measure decoding rows of these contexts against the bytes of weights and KV."""
    steps = decoding(contexts, subject.sizes.chain, is_sampled=is_sampled)
    seconds = step_seconds(subject, runner, steps)
    tokens = sum(contexts) + len(contexts) * (len(steps) - 1) // 2  # on average
    num_bytes = weight_bytes(weights or subject.weights) + subject.kv_bytes(tokens)
    share = num_bytes / subject.copy_rate / seconds
    return Figure(f"decode, {name}", 1e3 * seconds, "ms", BYTES, share, wanted)


def decode(
    subject: Subject, kernels: Kernels = "triton", *, deterministic: bool = False
) -> list[Figure]:
    """Decode so many rows of one context, greedily and sampled."""
    runner = subject.runner(kernels=kernels, deterministic=deterministic)
    fill(subject, runner)
    label = _label(kernels, deterministic=deterministic)
    is_ours = kernels == "triton" and not deterministic
    figures = [
        decode_figure(
            subject, runner, f"{rows} rows{label}{', sampled' if is_sampled else ''}",
            [subject.sizes.context] * rows, is_sampled=is_sampled,
            wanted=(0.9 if rows == 1 else 0.8) if is_ours else None,
        )
        for rows, is_sampled in product(subject.sizes.batches, (False, True))
    ]  # fmt: skip
    runner.close()
    return figures


def prefill(
    subject: Subject, kernels: Kernels = "triton", *, deterministic: bool = False
) -> list[Figure]:
    """Compute a prompt in one step."""
    runner = subject.runner(kernels=kernels, deterministic=deterministic)
    is_ours = kernels == "triton" and not deterministic
    label = _label(kernels, deterministic=deterministic)
    figure = prefill_figure(subject, runner, label, wanted=0.7 if is_ours else None)
    runner.close()
    return [figure]


def prefill_figure(
    subject: Subject, runner: TorchRunner, label: str, of: str = PRODUCTS,
    wanted: float | None = None,
) -> Figure:  # fmt: skip
    """Measure a prompt against the operations of its products."""
    count = subject.sizes.prefill
    seconds = subject.seconds(partial(runner.execute, step(1, count, count)))
    share = subject.prefill_operations(count) / subject.product_rate / seconds
    return Figure(f"prefill of {count}{label}", count / seconds, "tok/s", of, share, wanted)


def quantized(subject: Subject, form: NarrowWeights) -> list[Figure]:
    """Decode by weights of fewer bits, and compute a prompt by those of fp8 and bf12."""
    s = subject.sizes
    weights = in_form(subject.weights, form)
    room = max(num_blocks([s.context + s.chain] * max(s.batches)), num_blocks([s.prefill]))
    runner = TorchRunner(
        s.model, weights, num_blocks=room, max_step_tokens=s.prefill, max_samples=max(s.batches),
        kernels="triton",
    )  # fmt: skip
    fill(subject, runner)
    figures = [
        decode_figure(subject, runner, f"{rows} rows, {form}", [s.context] * rows, weights=weights)
        for rows in s.batches
    ]
    if form in ("fp8", "bf12"):
        of = f"{PRODUCTS}, not in fp8" if form == "fp8" else PRODUCTS
        figures.append(prefill_figure(subject, runner, f", {form}", of))
    runner.close()
    return figures


def long_tail(subject: Subject) -> list[Figure]:
    """Decode one row of a long context among many of short ones."""
    s = subject.sizes
    contexts = [s.short_context] * (s.streams - 1) + [s.tail_context]
    model = replace(s.model, max_context=max(s.model.max_context, s.tail_context + s.chain))
    runner = TorchRunner(
        model, subject.weights, num_blocks=num_blocks([n + s.chain for n in contexts]),
        max_step_tokens=s.streams, max_samples=s.streams, kernels="triton",
    )  # fmt: skip
    fill(subject, runner)
    name = f"{s.streams - 1} rows of {s.short_context} and one of {s.tail_context}"
    figures = [
        decode_figure(subject, runner, f"{name}{label}", contexts, is_sampled=s_, wanted=0.87)
        for s_, label in ((False, ""), (True, ", sampled"))
    ]
    runner.close()
    return figures


def fill(subject: Subject, runner: TorchRunner) -> None:
    """Fill all blocks of a runner with keys and values of usual size: zeros take less power."""
    count = min(_FILLED, runner.num_blocks)
    dtype = subject.sizes.dtype
    values = torch.randn(count, *runner.kv_format.shape, device=subject.device).to(dtype).cpu()
    data = (values.view(torch.uint16) if dtype is torch.bfloat16 else values).numpy()
    for start in range(0, runner.num_blocks, count):
        blocks = np.arange(start, min(start + count, runner.num_blocks)).tolist()
        runner.admit_blocks(blocks, data[: len(blocks)])


def _label(kernels: Kernels, *, deterministic: bool) -> str:
    return f", {kernels}" * (kernels != "triton") + ", deterministic" * deterministic
