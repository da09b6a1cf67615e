"""A model in two processes of one thread each against one process of one thread, on the CPU.

    python -m bench.core.stages [--rounds N] [--shape NAME --layers N] [--streams N]

Engines over both runners take turns, round by round. Beside the clock's time there is the processor
time of each process: a pipeline's pace, where each rank has a core of its own, is that of its
busiest rank, and other processes do not change it. What bounds it is the time of a step of half the
rows: two steps of 4 rows, each through half of the layers, take T(4) where one of 8 took T(8).
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.subjects.models import default_model, home
from bench.subjects.requests import Request, SamplingParams
from bench.subjects.shaped_files import SHAPES, shaped_file
from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.ranks import Parallel
from skerry_core.runner import ModelRunner, RunnerSetup, WantedSizes
from skerry_core.runners.numba_cpu import NumbaRunner
from skerry_core.runners.pipeline.pipeline_runner import PipelineRunner
from skerry_regions.node.ranks.channel import SocketChannel
from skerry_regions.node.ranks.children import LocalRanks

STEPS, PROMPT, LONG = 40, 20, 1024  # tokens
HOPS = 2000
Measure = Callable[[ModelRunner, list[int]], tuple[float, list[float]]]
_TICKS = os.sysconf("SC_CLK_TCK")


def rank_pids() -> list[int]:
    """Return child processes, which are ranks."""
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return [int(pid) for pid in path.read_text().split()]


def cpu_seconds(pids: list[int]) -> list[float]:
    """Return the processor time of this process and of others."""
    times = [time.process_time()]
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        times.append((int(fields[11]) + int(fields[12])) / _TICKS)
    return times


def memory(pid: int | str) -> float:
    """Return the memory that a process has touched, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def timed(
    runner: ModelRunner, prompts: int, length: int, steps: int, pids: list[int]
) -> tuple[float, list[float]]:
    """Return tokens per second, of answers or (`steps` 1) of prompts, and the processor seconds of
    each process meanwhile for each token."""
    engine = Engine(runner, EngineConfig(max_draft_tokens=0), model_key=os.urandom(8))
    rng = np.random.default_rng()
    style = SamplingParams(max_tokens=steps + 20 if steps > 1 else 1, temperature=1.0)
    for number in range(prompts):
        ids = rng.integers(100, runner.model.vocab_size, length).tolist()
        sampling = replace(style, seed=number)
        engine.add(Request(id=str(number), prompt_ids=tuple(ids), sampling=sampling).sequence())

    def run(tokens: int) -> int:
        made = 0
        while made < tokens:
            made += sum(len(output.token_ids) for output in engine.step())
        return made

    if steps > 1:
        run(8 * prompts)
    began, before = time.perf_counter(), cpu_seconds(pids)
    tokens = run(steps * prompts) if steps > 1 else run(prompts) * length
    seconds, after = time.perf_counter() - began, cpu_seconds(pids)
    engine.abort_all()
    while engine.has_work:
        engine.step()
    return tokens / seconds, [(b - a) / tokens for a, b in zip(before, after, strict=True)]


def hop_seconds() -> float:
    """Return the time of a message of 4 rows of 576 floats from one process to another."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        echo = SocketChannel(theirs, "bench", ended=lambda error: os._exit(0))
        while True:
            echo.send(*echo.receive())
    theirs.close()
    channel, parts = SocketChannel(ours, "echo"), [bytes(4 * 576 * 4), *[bytes(64)] * 14]
    times = []
    for _ in range(HOPS):
        began = time.perf_counter()
        channel.send(*parts)
        channel.receive()
        times.append((time.perf_counter() - began) / 2)
    channel.close()
    os.waitpid(pid, 0)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", choices=tuple(SHAPES))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8, 16])
    options = parser.parse_args()
    hop = hop_seconds()
    cache = home() / "cache"
    weights = (
        shaped_file(options.shape, cache, options.layers)
        if options.shape
        else default_model()[1].weights
    )
    setup = RunnerSetup(
        weights=weights, vocab_size=1, max_context=2048, sizes=WantedSizes(num_blocks=64),
        threads=1, cache_dir=cache, progress=lambda what, share: None,
    )  # fmt: skip
    one = NumbaRunner.from_setup(setup)
    one.warm_up(setup.progress)
    alone = memory("self")
    parts = replace(setup, parallel=Parallel(pipeline=2), ranks=LocalRanks("numba"))
    two = PipelineRunner.from_setup(parts)
    pids = rank_pids()
    table = Table("figure", "one process", "two", "ratio", "ratio by processor time")

    def row(name: str, measure: Measure) -> None:
        rounds = [(measure(one, []), measure(two, pids)) for _ in range(options.rounds)]
        single, double = (statistics.median(r[i][0] for r in rounds) for i in (0, 1))
        ratio = statistics.median(b[0] / a[0] for a, b in rounds)
        bound = statistics.median(a[1][0] / max(b[1]) for a, b in rounds)
        table.add_row(name, f"{single:.0f}", f"{double:.0f}", f"{ratio:.2f}", f"{bound:.2f}")

    for streams in options.streams:
        row(
            f"decode, {streams} streams, tok/s",
            lambda runner, of, n=streams: timed(runner, n, PROMPT, STEPS, of),
        )  # type: ignore[misc]
    row(f"prefill of {LONG}, tok/s", lambda runner, of: timed(runner, 1, LONG, 1, of))
    layers = ", ".join(f"{stage.first} to {stage.last - 1}" for stage in two.stages)
    table.add_row(
        "resident memory: the whole, and rank 1, MiB",
        f"{alone:.0f}",
        f"{memory(pids[0]):.0f}",
        "",
        "",
    )
    table.add_row("a hop, µs", "", f"{1e6 * hop:.0f}", "", "")
    Console().print(table, f"{weights.name}: layers {layers}", sep="\n")
    two.close()
    one.close()


if __name__ == "__main__":
    main()
