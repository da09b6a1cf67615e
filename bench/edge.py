"""What the edge costs: added latency, CPU per streamed token, memory per open stream.

    python -m bench.edge [--quick] [--json FILE]

The edge process is the real one (server, application, tokenizer, chat template), in front of a
region that answers at once and then replays a token per stream and step; so what is measured is
the edge and nothing else. The client's own share of the latency is in the figures too.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from bench.measuring import stats
from bench.measuring.load import concurrent
from bench.measuring.quiet import Watch
from bench.measuring.run import Run, parser
from bench.subjects.models import MODEL
from bench.subjects.peers import Worker
from bench.subjects.served import Served

OURS = "skerry edge"
STEP_SECONDS = 0.01
SLOW_STEP_SECONDS = 0.5  # so that thousands of streams are open at once, and not busy
WORDS = [
    "sea",
    "wind",
    "stone",
    "river",
    "light",
    "winter",
    "garden",
    "paper",
    "music",
    "bread",
    "horse",
    "window",
    "summer",
]
MEMORY_STREAMS = 2000


@contextmanager
def edge_process(step_seconds: float) -> Generator[Served]:
    command = [sys.executable, "-m", "bench.workers.edge_replay", str(step_seconds)]
    worker = Worker(OURS, command)
    try:
        about = worker.call()
        base = f"{about['url']}/client/v4/accounts/{about['account']}"
        yield Served(f"{base}/ai/v1/chat/completions", about["token"], about["pid"])
    finally:
        worker.close()


def body(salt: int, words: int, tokens: int) -> dict[str, Any]:
    """A prompt of about `words` tokens that nobody sent before."""
    text = " ".join(WORDS[(salt * 5 + i * i) % len(WORDS)] for i in range(words))
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{salt}: {text}"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": tokens,
    }


def added_latency(edge: Served, words: int, count: int, salt: int) -> list[float]:
    """Milliseconds from the request to the first token, one request at a time."""
    result: list[float] = []
    for number in range(count):
        [times] = asyncio.run(concurrent(edge.url, edge.token, [body(salt + number, words, 4)]))
        result.append(times.ttft * 1e3)
    return result


def cpu_per_token(edge: Served, streams: int, tokens: int, salt: int) -> tuple[float, float]:
    """Microseconds of the edge's CPU per streamed token, requests' own costs taken out; tok/s.

    Two bursts that differ only in length: what a request costs besides its tokens cancels out.
    """
    spent: list[float] = []
    rate = 0.0
    for length in (tokens // 4, tokens):
        bodies = [body(salt + i, 20, length) for i in range(streams)]
        cpu, start = edge.cpu_seconds, time.perf_counter()
        times = asyncio.run(concurrent(edge.url, edge.token, bodies))
        spent.append(edge.cpu_seconds - cpu)
        rate = sum(t.tokens for t in times) / (time.perf_counter() - start)
    return (spent[1] - spent[0]) / (streams * (tokens - tokens // 4)) * 1e6, rate


async def memory_per_stream(edge: Served) -> float:
    """KiB of resident memory per open stream, with all of them streaming."""
    before = edge.resident
    bodies = [body(i, 20, 24) for i in range(MEMORY_STREAMS)]
    load = asyncio.create_task(concurrent(edge.url, edge.token, bodies))
    peak = before
    while not load.done():
        await asyncio.sleep(0.1)
        peak = max(peak, edge.resident)
    await load
    return (peak - before) / MEMORY_STREAMS / 1024


def measure(edge: Served, rounds: int, console: Console) -> tuple[list[stats.Cell], bool]:
    cells: dict[str, stats.Cell] = {}

    def add(name: str, unit: str, value: float) -> None:
        cells.setdefault(name, stats.Cell(name, unit)).add(OURS, value)

    added_latency(edge, 60, 20, 0)
    with Watch([edge.pid]) as watch:
        for number in range(1, rounds + 1):
            with console.status(f"round {number} of {rounds}"):
                for words in (60, 1000):
                    latencies = added_latency(edge, words, 50, number * 1_000_000)
                    add(f"first token, prompt of {words}, p50", "ms", statistics.median(latencies))
                    add(f"first token, prompt of {words}, p99", "ms", max(latencies))
                for streams, tokens in ((1, 400), (32, 400), (256, 200)):
                    cpu, rate = cpu_per_token(edge, streams, tokens, number * 1000)
                    add(f"CPU per token, {streams} streams", "µs", cpu)
                    add(f"delivered, {streams} streams", "tok/s", rate)
    return list(cells.values()), watch.quiet


def main() -> int:
    run = Run(parser(__doc__, quick="2 rounds instead of 5").parse_args())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    with edge_process(STEP_SECONDS) as edge:
        cells, quiet = measure(edge, 2 if run.is_quick else 5, run.console)
    memory = stats.Cell(f"memory per stream, {MEMORY_STREAMS} open", "KiB")
    with run.console.status(memory.name), edge_process(SLOW_STEP_SECONDS) as edge:
        memory.add(OURS, asyncio.run(memory_per_stream(edge)))
    cells.append(memory)
    run.console.print(stats.table("the edge alone, medians of rounds", cells, OURS, []))
    if not quiet:
        run.console.print("other processes used the machine meanwhile")
    run.write(cells, disturbed=not quiet, ratios={})
    return 0


if __name__ == "__main__":
    sys.exit(main())
