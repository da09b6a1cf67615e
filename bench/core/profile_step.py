"""Where a step's time goes: Python, and every phase of the compiled step against what bounds it.

    python -m bench.core.profile_step [--batch 32] [--context 64] [--tokens 1]

Phases run on one thread, each layer's the fastest of some steps, in processor time: their work
(bytes of weights and KV that they read, products that they make) over their time, as a share of
this machine's bandwidth and peaks, measured in the same run. Python's share is of the engine
thread's processor time while two threads decode.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.engine import THREADS
from bench.measuring import machine, peaks
from bench.subjects.engine_cases import make_prompts
from bench.subjects.models import default_model, home
from bench.subjects.requests import Request, SamplingParams
from bench.subjects.samples import samples_of
from skerry_core.batch import ForwardBatch
from skerry_core.blocks import blocks_for
from skerry_core.config import BLOCK_SIZE, EngineConfig, ModelConfig
from skerry_core.engine.engine import Engine
from skerry_core.kernels.matmul.layout import PackedLayout
from skerry_core.models.tensor_names import EMBEDDING, HEAD, layer_tensor
from skerry_core.runners import numba_cpu
from skerry_core.runners.compilation import _LINKED
from skerry_core.runners.numba_cpu import NumbaRunner

STEPS = 7
DECODED = 2 * BLOCK_SIZE  # tokens at most of each row whose decoding is profiled


@dataclass
class Work:
    """What a phase does in one step."""

    bytes: float = 0.0
    int8_products: float = 0.0
    float_products: float = 0.0


def works(runner: NumbaRunner, batch: ForwardBatch) -> dict[str, Work]:
    """Of the phases that read or multiply much."""
    packed, config = runner._packed, runner.model
    tokens, samples = batch.num_tokens, batch.num_samples

    def product(layout: PackedLayout, times: int, count: float) -> Work:
        products = layout.num_rows * layout.num_columns * count * times
        work = Work(bytes=layout.num_bytes * times)
        if layout.format.is_quantized:
            work.int8_products = products
        else:
            work.float_products = products
        return work

    def layer(*names: str, read: float = 1.0, count: float = tokens) -> Work:
        """Matrices of these names, of which this share is read, for so many tokens."""
        total = Work()
        for name in names:
            for index in range(config.num_layers):
                layout = packed.layouts.get(layer_tensor(index, name))
                if layout is None:
                    continue
                part = product(layout, 1, count)
                total.bytes += read * part.bytes
                total.int8_products += part.int8_products
                total.float_products += part.float_products
        return total

    experts = config.experts
    read, of_each = 0.0, 0.0  # share of experts that some token chose, tokens by experts
    if experts is not None:
        read = int(runner._step.owned[2]["busy_experts"][0]) / experts.count
        of_each = tokens * experts.used / experts.count

    head = EMBEDDING if config.tied_embeddings else HEAD
    pairs = float((batch.positions.astype(np.int64) + 1).sum())
    per_pair = 2 * config.num_layers * config.num_heads * config.head_dim
    return {
        "project": layer("attn_q", "attn_k", "attn_v"),
        "attend": Work(
            bytes=int(runner._step.views["visits"][0]) * runner.kv_format.block_bytes,
            float_products=pairs * per_pair,
        ),
        "add_output": layer("attn_output"),
        "feed_forward": layer("ffn_gate", "ffn_up"),
        "add_down": layer("ffn_down"),
        "route": layer("ffn_gate_inp"),
        "expert_feed_forward": layer("ffn_gate_exps", "ffn_up_exps", read=read, count=of_each),
        "expert_down": layer("ffn_down_exps", read=read, count=of_each),
        "compute_logits": product(packed.layouts[head], 1, samples),
    }


def make_batch(runner: NumbaRunner, rows: int, context: int, tokens: int) -> ForwardBatch:
    """Rows of so many tokens at the end of so long a context, each over blocks of its own."""
    per_row = -(-context // BLOCK_SIZE)
    tables = np.arange(rows * per_row, dtype=np.int32).reshape(rows, per_row)
    positions = np.tile(np.arange(context - tokens, context, dtype=np.int32), rows)
    ends = tokens * np.arange(rows + 1, dtype=np.int32)
    return ForwardBatch(
        token_ids=(positions * 7 + 100) % runner.model.vocab_size,
        positions=positions,
        query_start=ends,
        block_tables=tables,
        sample_tokens=ends[1:] - np.int32(1),
        sampling=samples_of(rows),
    )


EXPERTS = ("route", "choose_experts", "expert_feed_forward", "expert_down", "add_experts")


def phases(config: ModelConfig) -> Iterator[tuple[str, int]]:
    """Every phase of a step, and what it counts, in order; see `decoder_step`."""
    yield "prepare", 0
    for index, layer in enumerate(config.layers):
        yield "norm", 2 * index
        yield from ((name, index) for name in ("project", "attend", "add_output"))
        yield "norm", 2 * index + 1
        dense = ("feed_forward", "add_down")
        yield from ((name, index) for name in (EXPERTS if layer.has_experts else dense))
    yield "norm", 2 * config.num_layers
    yield "compute_logits", 0
    yield "sample", 0


def phase_seconds(runner: NumbaRunner, batch: ForwardBatch, steps: int = STEPS) -> dict[str, float]:
    """Seconds of every kind of phase in one step, on this thread."""
    step = runner._step
    fastest: dict[tuple[str, int], float] = {}
    for _ in range(steps):
        step.set_batch(batch)
        for name, index in phases(runner.model):
            kernel: Any = _LINKED[name][0]
            start = time.thread_time()
            kernel(runner._target, step.record, step.threads[0], index)
            seconds = time.thread_time() - start
            fastest[name, index] = min(seconds, fastest.get((name, index), seconds))
    totals: dict[str, float] = {}
    for (name, _), seconds in fastest.items():
        totals[name] = totals.get(name, 0.0) + seconds
    return totals


def phase_table(
    runner: NumbaRunner,
    batch: ForwardBatch,
    *,
    steps: int = STEPS,
    bandwidth: float | None = None,
) -> Table:
    """Every phase: its time, and the shares of bandwidth (by default that of a set of 96 MiB) and
    peaks that it reaches."""
    if bandwidth is None:
        bandwidth = machine.limits(1)["96 MiB set read, 1 threads, GB/s"]
    int8, floats = peaks.int8_peak(1), peaks.float_peak(1)
    seconds = phase_seconds(runner, batch, steps)
    table = Table(title=f"{batch.num_tokens} tokens, {batch.num_rows} rows, one thread")
    columns = ("phase", "ms", "of step", f"of {bandwidth} GB/s", f"of {int8} int8 GMAC/s")
    for column in (*columns, f"of {floats} fp32 GMAC/s"):
        table.add_column(column, justify="right")
    done = works(runner, batch)
    for name, taken in seconds.items():
        work = done.get(name, Work())
        rates = work.bytes / bandwidth, work.int8_products / int8, work.float_products / floats
        shares = [f"{rate / taken / 1e9:.0%}" if rate else "" for rate in rates]
        of_step = f"{taken / sum(seconds.values()):.1%}"
        table.add_row(name, f"{1e3 * taken:.3f}", of_step, *shares)
    return table


def python_share(runner: NumbaRunner, rows: int, context: int) -> float:
    """Share of the engine thread's processor time that decode steps spend outside compiled code."""
    compiled = 0.0
    run_thread, own_thread = numba_cpu.run_thread, threading.get_ident()

    def timed(*arguments: Any) -> Any:
        nonlocal compiled
        start = time.thread_time()
        result = run_thread(*arguments)
        if threading.get_ident() == own_thread:  # another one runs steps whenever it is woken
            compiled += time.thread_time() - start
        return result

    config = EngineConfig(max_running=rows, max_draft_tokens=0)
    engine = Engine(runner, config, model_key=b"bench")
    sampling = SamplingParams(temperature=0.0, max_tokens=DECODED)
    for index, prompt in enumerate(make_prompts(rows, context, 0)):
        engine.add(Request(id=str(index), prompt_ids=tuple(prompt), sampling=sampling).sequence())
    while any(not output.token_ids for output in engine.step()) or engine.load().prefill_tokens:
        pass
    numba_cpu.run_thread = timed
    try:
        start = time.thread_time()
        for _ in range(4 * STEPS):
            engine.step()
        total = time.thread_time() - start
    finally:
        numba_cpu.run_thread = run_thread
    engine.abort_all()
    return 1 - compiled / total


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=32, help="rows")
    parser.add_argument("--context", type=int, default=64, help="tokens of each row, the last ones")
    parser.add_argument("--tokens", type=int, default=1, help="of each row in the step")
    options = parser.parse_args()
    console = Console()
    console.print(" · ".join(f"{key} {value}" for key, value in machine.describe().items()))

    def open_runner(threads: int) -> NumbaRunner:
        runner = NumbaRunner.open(
            default_model()[1].weights,
            num_blocks=options.batch * blocks_for(options.context + DECODED),
            threads=threads,
            cache_dir=home() / "cache",
        )
        runner.warm_up(lambda _what, _share: None)
        return runner

    runner = open_runner(1)
    batch = make_batch(runner, options.batch, options.context, options.tokens)
    runner.execute(batch)
    console.print(phase_table(runner, batch))
    runner.close()
    runner = open_runner(THREADS)
    share = python_share(runner, options.batch, options.context)
    console.print(f"Python: {share:.1%} of a decode step, {options.batch} rows, {THREADS} threads")
    runner.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
