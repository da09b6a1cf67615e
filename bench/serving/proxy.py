"""Skerry's edge and LiteLLM's proxy, one process each, in front of the same back end.

    python -m bench.serving.proxy [--quick] [--json FILE]

The back end (`bench.workers.replay_node`) replays tokens at a fixed pace and computes nothing. It
speaks OpenAI's API, which LiteLLM proxies and which is asked directly to compare, and Skerry's
frames, which the edge needs.

Alike: the back end's process and its pace, the requests, the load generator, loopback, one worker
process each, an API key that is checked, streamed answers of an event per token, with usage.
Not alike: the edge also lays out the chat template, tokenises, detokenises, routes by cost and
writes its usage journal, none of which LiteLLM does here (it has no database, and its back end is
sent text). LiteLLM reads its tokens as JSON over one HTTP connection per stream, the edge reads
token ids from one connection for all. LiteLLM is set up in `bench.subjects.litellm`: uvloop,
logging of errors only, no telemetry, its limits of connections to the back end raised.

Added latency: first token through the proxy, less the median of asking directly in the same round,
one request at a time, in turns. CPU is of the proxy's process and its children; per core means per
second of it. CPU per token is the difference of two bursts that differ only in length.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from bench.edge import OURS, body, cpu_per_token
from bench.measuring import stats
from bench.measuring.load import StreamTimes, concurrent, stream
from bench.measuring.quiet import Watch
from bench.measuring.run import Run, parser
from bench.subjects.litellm import KEY, PEER, litellm
from bench.subjects.peers import Worker
from bench.subjects.served import Served, family

DIRECT = "back end directly"
STEP_SECONDS = 0.01
SLOW_STEP_SECONDS = 5.0  # so that open streams are not busy ones
PROMPT_WORDS = 60
CLIENTS = 32
OPEN_SECONDS = 300.0  # until so many streams all have a first token


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured."""

    rounds: int
    memory_rounds: int  # each with fresh processes
    latencies: int  # per round
    requests: int  # per round, of a token each
    bursts: tuple[tuple[int, int], ...]  # streams, tokens of each
    open_streams: int = 2000


FULL = Scale(
    rounds=4, memory_rounds=2, latencies=200, requests=1000, bursts=((32, 400), (256, 100))
)
QUICK = Scale(rounds=2, memory_rounds=1, latencies=50, requests=200, bursts=((32, 100), (256, 40)))


@contextlib.contextmanager
def systems(step_seconds: float) -> Generator[dict[str, Served]]:
    """The edge, LiteLLM and their back end, by name."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (home / "run").mkdir()
        workers = [sys.executable, "-m"]
        node = Worker(DIRECT, [*workers, "bench.workers.replay_node", str(step_seconds), str(home)])
        stack.callback(node.close)
        about = node.call()
        direct = Served(f"{about['url']}/v1/chat/completions", KEY, about["pid"])
        edge = Worker(OURS, [*workers, "bench.workers.linked_edge", str(home)])
        stack.callback(edge.close)
        told = edge.call()
        url = f"{told['url']}/client/v4/accounts/{told['account']}/ai/v1/chat/completions"
        ours = Served(url, told["token"], told["pid"])
        peer = stack.enter_context(litellm(about["url"], home))
        yield {OURS: ours, PEER: peer, DIRECT: direct}


def added_latencies(served: dict[str, Served], count: int, salt: int) -> dict[str, list[float]]:
    """Milliseconds to the first token beyond the direct way's median, one request at a time."""
    taken: dict[str, list[float]] = {name: [] for name in served}
    for number in range(count):
        for name, one in served.items():
            request = body(salt + number, PROMPT_WORDS, 1)
            [times] = asyncio.run(concurrent(one.url, one.token, [request]))
            taken[name].append(times.ttft * 1e3)
    base = statistics.median(taken[DIRECT])
    return {name: [value - base for value in values] for name, values in taken.items()} | {
        DIRECT: taken[DIRECT]
    }


async def requests(served: Served, count: int, salt: int) -> float:
    """Seconds that so many requests of one token take `CLIENTS` clients."""
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            await stream(served.url, served.token, body(salt + number, PROMPT_WORDS, 1))

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return time.perf_counter() - start


async def memory_per_stream(served: Served, count: int) -> float:
    """KiB of resident memory per stream when all are open and each has had its first token.

    Raises TimeoutError.
    """
    before = served.resident
    opened = [StreamTimes() for _ in range(count)]
    load = [
        asyncio.create_task(stream(served.url, served.token, body(number, 20, 4096), times=times))
        for number, times in enumerate(opened)
    ]
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            while not all(times.events for times in opened):
                if failed := [task for task in load if task.done()]:
                    failed[0].result()
                await asyncio.sleep(0.2)
        return (served.resident - before) / count / 1024
    finally:
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)


class Bench:
    """The cells that rounds fill."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.cells: dict[str, stats.Cell] = {}

    def add(self, name: str, unit: str, system: str, value: float) -> None:
        self.cells.setdefault(name, stats.Cell(name, unit)).add(system, value)

    def round(self, served: dict[str, Served], salt: int) -> None:
        latencies = added_latencies(served, self.scale.latencies, salt)
        for name in (OURS, PEER):
            self.add("added latency, p50", "ms", name, statistics.median(latencies[name]))
            self.add("added latency, p99", "ms", name, stats.percentile(latencies[name], 0.99))
        self.add("first token, p50", "ms", DIRECT, statistics.median(latencies[DIRECT]))
        self.add("first token, p99", "ms", DIRECT, stats.percentile(latencies[DIRECT], 0.99))
        for name in (OURS, PEER):
            one, count = served[name], self.scale.requests
            cpu = one.cpu_seconds
            seconds = asyncio.run(requests(one, count, salt + count))
            self.add(f"requests, {CLIENTS} clients", "1/s", name, count / seconds)
            self.add("requests per core", "1/s", name, count / (one.cpu_seconds - cpu))
        for (streams, tokens), name in itertools.product(self.scale.bursts, (OURS, PEER)):
            micros, rate = cpu_per_token(served[name], streams, tokens, salt + 2 * count)
            self.add(f"delivered, {streams} streams", "tok/s", name, rate)
            self.add(f"streamed per core, {streams} streams", "tok/s", name, 1e6 / micros)

    def memory(self) -> None:
        count = self.scale.open_streams
        with systems(SLOW_STEP_SECONDS) as served:
            for name in (OURS, PEER):
                asyncio.run(requests(served[name], 2 * CLIENTS, count))  # past its first requests
                value = asyncio.run(memory_per_stream(served[name], count))
                self.add(f"memory per stream, {count} open", "KiB", name, value)


def main() -> int:
    run = Run(parser(__doc__, quick="2 short rounds instead of 4").parse_args())
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192), most))
    bench = Bench(QUICK if run.is_quick else FULL)
    with systems(STEP_SECONDS) as served:
        Bench(QUICK).round(served, 0)  # warms up
        with Watch([pid for one in served.values() for pid in family(one.pid)]) as watch:
            for number in range(1, bench.scale.rounds + 1):
                with run.console.status(f"round {number} of {bench.scale.rounds}"):
                    bench.round(served, number * 1_000_000)
    for number in range(1, bench.scale.memory_rounds + 1):
        with run.console.status(f"memory, round {number} of {bench.scale.memory_rounds}"):
            bench.memory()
    cells = list(bench.cells.values())
    compared = [cell for cell in cells if OURS in cell.samples]
    run.console.print(stats.table("in front of the same back end, medians", compared, OURS, [PEER]))
    for cell in cells:
        if DIRECT in cell.samples:
            run.console.print(f"{DIRECT}: {cell.name} {cell.median(DIRECT):.2f} {cell.unit}")
    if not watch.quiet:
        run.console.print("other processes used the machine meanwhile")
    run.write(
        cells,
        disturbed=not watch.quiet,
        ratios={PEER: {c.name: round(c.ratio(OURS, PEER), 3) for c in compared}},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
