"""Server against server over HTTP with the OpenAI API: `skerry up` and llama.cpp's own server.

    python -m bench.server [--quick] [--json FILE]

At 1, 8 and 32 concurrent streams: time to first token, inter-token latency, tokens per second.
Both servers run two threads on the same GGUF file and are loaded in turns, round by round.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.engine import THREADS, undisturbed
from bench.measuring import stats
from bench.measuring.load import StreamTimes, concurrent
from bench.measuring.run import Run, parser
from bench.subjects.engine_cases import OURS
from bench.subjects.models import MODEL, default_model
from bench.subjects.peers import ROOT, Worker, python_of
from bench.subjects.platforms import platform

PEER = "llama.cpp server"
STREAMS = (1, 8, 32)
OUTPUT_TOKENS = 64
CONTEXT = 1024  # tokens per stream
TEXT = (
    "sea wind stone river light winter garden paper music bread horse window summer letter "
    "mountain silver quiet morning road bridge"
)
WORDS = TEXT.split()


@dataclass(frozen=True)
class Server:
    name: str
    url: str  # of its chat completions
    token: str
    pid: int
    home: Path | None = None  # its state, if it is Skerry


@contextmanager
def skerry_server() -> Generator[Server]:
    """`skerry up` on a free port."""
    with platform("--port", "0", "--threads", str(THREADS)) as made:
        pid = int(made.status["edges"][0]["pid"])
        yield Server(OURS, made.route("v1/chat/completions"), made.token, pid, made.home)


@contextmanager
def peer_server(model: Path) -> Generator[Server]:
    script = str(ROOT / "bench/workers/llama_cpp_server.py")
    arguments = [str(model), str(THREADS), str(max(STREAMS)), str(CONTEXT)]
    worker = Worker(PEER, [str(python_of("xllamacpp")), script, *arguments])
    try:
        url = str(worker.call()["url"])
        yield Server(PEER, f"{url}/v1/chat/completions", "none", worker.pid)
    finally:
        worker.close()


def body(salt: int, stream: int, sampling: dict[str, Any]) -> dict[str, Any]:
    """A request of about sixty prompt tokens that shares no prefix block with another."""
    words = " ".join(WORDS[(salt * 7 + stream * 3 + i * i) % len(WORDS)] for i in range(40))
    text = f"{salt}-{stream}: tell me about {words}"
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": OUTPUT_TOKENS,
        "ignore_eos": True,
        **sampling,
    }


SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "top_p 0.95": {"temperature": 1.0, "top_p": 0.95, "seed": 7},
}


UNITS = {"tok/s": "tok/s", "ttft p50": "ms", "ttft p99": "ms", "itl p50": "ms", "itl p99": "ms"}


def figures(times: list[StreamTimes], seconds: float) -> dict[str, float]:
    """Throughput of the whole burst, and latencies over all its streams."""
    ttft = [t.ttft for t in times]
    gaps = [gap for t in times for gap in t.gaps]
    return {
        "tok/s": sum(t.tokens for t in times) / seconds,
        "ttft p50": statistics.median(ttft) * 1e3,
        "ttft p99": stats.percentile(ttft, 0.99) * 1e3,
        "itl p50": statistics.median(gaps) * 1e3,
        "itl p99": stats.percentile(gaps, 0.99) * 1e3,
    }


def sample(server: Server, streams: int, sampling: str, salt: int) -> dict[str, float]:
    bodies = [body(salt, i, SAMPLINGS[sampling]) for i in range(streams)]
    start = time.perf_counter()
    times = asyncio.run(concurrent(server.url, server.token, bodies))
    return figures(times, time.perf_counter() - start)


def measure(servers: list[Server], rounds: int, console: Console) -> list[stats.Cell]:
    cells: dict[str, stats.Cell] = {}
    pids = [server.pid for server in servers]
    salt = 0
    for number in range(rounds + 1):
        order = servers if number % 2 else servers[::-1]
        with console.status(f"round {number} of {rounds} (round 0 warms up)"):
            for streams, sampling, server in itertools.product(STREAMS, SAMPLINGS, order):
                salt += 1
                take = functools.partial(sample, server, streams, sampling, salt)
                result, _ = undisturbed(take, pids)
                if number:
                    for figure, value in result.items():
                        name = f"{streams} streams, {sampling}, {figure}"
                        cell = cells.setdefault(name, stats.Cell(name, UNITS[figure]))
                        cell.add(server.name, value)
    return list(cells.values())


def main() -> int:
    run = Run(parser(__doc__, quick="2 rounds instead of 7").parse_args(), threads=THREADS)
    with skerry_server() as ours, peer_server(default_model()[1].weights) as peer:
        cells = measure([ours, peer], 2 if run.is_quick else 7, run.console)
    run.console.print(stats.table("server against server, medians", cells, OURS, [PEER]))
    run.console.print("ratio: tok/s above 1 and latencies below 1 are ours ahead")
    run.write(cells, ratios={PEER: {c.name: round(c.ratio(OURS, PEER), 3) for c in cells}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
