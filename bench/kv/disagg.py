"""Prefill and decode apart, or not: three ways to use the same cores, on traces as they come.

    python -m bench.kv.disagg [--quick] [--json FILE]

Each arrangement is `skerry up --topology` of its own, asked over HTTP in turns, round by round:

    1 prefill + 1 decode   two nodes of one thread; the router may prefill on the decode node
    2 hybrid               two nodes of one thread; the router may split a request between them
    1 process              one node of two threads; there is nothing to choose

Requests are slices of public traces, with lengths divided so that they suit a small model, token
ids made up (equal where the trace shares prefixes), and the trace's own burstiness: arrivals are
stretched to `LOAD` of what one process computes when the whole slice comes at once. (Mooncake's
times are rounded to 3 s; its requests are spread within these.) The objective:
the first token within `SLACK` times what a request of mean length gets from one idle process, and
the mean time between tokens within `ITL_SECONDS`, which MLPerf Inference asks of its interactive
Llama 2 70B. Goodput is requests per minute that meet both.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count as count_from
from random import Random
from typing import Any

from rich.console import Console

from bench.engine import ATTEMPTS, undisturbed
from bench.measuring import stats
from bench.measuring.load import StreamTimes
from bench.measuring.replay import complete, replay
from bench.measuring.run import Run, parser
from bench.routing.sim.traces import (
    MOONCAKE_BLOCK,
    MOONCAKE_TICK,
    TraceRequest,
    azure,
    mooncake,
    spread,
)
from bench.subjects.models import MODEL, default_model
from bench.subjects.platforms import of_topology

THREADS = 2  # cores that every arrangement uses
LOAD = 0.5  # at 0.7 bursts make half of all requests late, wherever they go
SLACK = 5.0
ITL_SECONDS = 0.04  # 25 tokens/s, several times the pace of a reader
MAX_PROMPT, MAX_OUTPUT = 2048, 256  # tokens, after scaling
VOCABULARY = range(1000, 40_000)  # ids that are plain text in the model's tokenizer

SPLIT, HYBRID, WHOLE = "1 prefill + 1 decode", "2 hybrid", "1 process"
POOLS = {
    SPLIT: [("prefill", 1, 1), ("decode", 1, 1)],  # role, nodes, threads of each
    HYBRID: [("hybrid", 2, 1)],
    WHOLE: [("hybrid", 1, THREADS)],
}
AUTOMATIC = HYBRID  # where the router is free to choose for each request


@dataclass(frozen=True)
class Shape:
    """A trace, and what its lengths are divided by."""

    name: str
    trace: Sequence[TraceRequest]
    prompt_scale: int
    output_scale: int


@dataclass(frozen=True)
class Job:
    """One request of a slice."""

    at: float  # seconds after the first one
    prompt: list[int]
    output: int  # tokens


@dataclass(frozen=True)
class Objective:
    """What a reader expects. Seconds."""

    ttft: float
    itl: float  # mean of a request

    def is_met(self, times: StreamTimes) -> bool:
        return times.ttft <= self.ttft and mean_gap(times) <= self.itl


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured."""

    rounds: int
    requests: int  # of a slice
    attempts: int  # at a sample that others' work disturbs


FULL = Scale(rounds=8, requests=24, attempts=ATTEMPTS)
QUICK = Scale(rounds=2, requests=8, attempts=1)


@dataclass(frozen=True)
class Platform:
    """A running arrangement."""

    name: str
    url: str  # of its completions
    token: str
    pids: list[int]


def shapes() -> list[Shape]:
    conversation = mooncake("conversation")
    return [
        Shape("azure_llm_2023_code", azure("code"), 8, 1),
        Shape("mooncake_conversation", spread(conversation, Random(0), MOONCAKE_TICK), 32, 8),
    ]


def jobs(shape: Shape, first: int, count: int, seconds: float, salt: int) -> list[Job]:
    """A slice of the trace, its arrivals stretched over `seconds`.

    Only requests of one `salt` share prefixes.
    """
    requests = shape.trace[first : first + count]
    begin, span = requests[0].arrival, requests[-1].arrival - requests[0].arrival
    return [
        Job(
            at=(request.arrival - begin) * seconds / span if span else 0.0,
            prompt=prompt_ids(shape, request, f"{salt}-{number}", salt),
            output=min(max(request.output_tokens // shape.output_scale, 2), MAX_OUTPUT),
        )
        for number, request in enumerate(requests)
    ]


def prompt_ids(shape: Shape, request: TraceRequest, name: str, salt: int) -> list[int]:
    """Token ids of a prompt: those of a trace's block depend on the block alone."""
    length = min(max(request.prompt_tokens // shape.prompt_scale, 8), MAX_PROMPT)
    per_block = MOONCAKE_BLOCK // shape.prompt_scale
    ids: list[int] = []
    for block in request.blocks:
        ids += Random(f"{salt} {block.hex()}").choices(VOCABULARY, k=per_block)
    return (ids + Random(name).choices(VOCABULARY, k=length))[:length]


@contextmanager
def platform(name: str) -> Generator[Platform]:
    """The arrangement, running."""
    pools = [
        {"name": role, "region": "here", "role": role, "model": MODEL,
         "replicas": nodes, "threads": threads}
        for role, nodes, threads in POOLS[name]
    ]  # fmt: skip
    topology = {
        "regions": [{"name": "here", "coordinates": [0, 0]}],
        "pools": pools,
        "edges": [{"name": "edge", "region": "here", "port": 0}],
    }
    with of_topology(topology) as made:
        yield Platform(name, made.route("v1/completions"), made.token, made.pids)


def mean_gap(times: StreamTimes) -> float:
    return (times.events[-1] - times.ttft) / max(times.tokens - 1, 1)


UNITS = {"goodput": "requests/min", "in time": "%", "tok/s": "tok/s"}


def figures(times: Sequence[StreamTimes], seconds: float, slo: Objective) -> dict[str, float]:
    """Of one replay that took `seconds`. Latencies in milliseconds."""
    met = sum(map(slo.is_met, times))
    result = {
        "goodput": 60 * met / seconds,
        "in time": 100 * met / len(times),
        "tok/s": sum(each.tokens for each in times) / seconds,
    }
    ttft = [each.ttft for each in times]
    gaps = [gap for each in times for gap in each.gaps] or [0.0]
    for share in (0.5, 0.95, 0.99):
        result[f"TTFT p{100 * share:.0f}"] = stats.percentile(ttft, share) * 1e3
    for share in (0.5, 0.95, 0.99):
        result[f"ITL p{100 * share:.0f}"] = stats.percentile(gaps, share) * 1e3
    return result


def timed(to: Platform, asked: Sequence[Job]) -> tuple[list[StreamTimes], float]:
    start = time.perf_counter()
    times = asyncio.run(replay(asked, partial(complete, to.url, to.token)))
    return times, time.perf_counter() - start


def objective(to: Platform, shape: Shape) -> Objective:
    """The first token relative to what an idle platform needs for a request of mean lengths."""
    prompt = int(statistics.mean(r.prompt_tokens for r in shape.trace))
    output = int(statistics.mean(r.output_tokens for r in shape.trace))
    alone = []
    for number in range(4):
        request = TraceRequest(0.0, prompt, output)
        ids = prompt_ids(shape, request, f"alone {number}", 0)
        alone.append(timed(to, [Job(0.0, ids, max(output // shape.output_scale, 2))])[0][0])
    ttft = statistics.median(each.ttft for each in alone[1:])
    return Objective(SLACK * ttft, ITL_SECONDS)


def measure(
    shape: Shape, platforms: Sequence[Platform], scale: Scale, console: Console
) -> dict[str, stats.Cell]:
    """All arrangements on the same slices; the first slice warms up and finds the load."""
    count, rounds = scale.requests, scale.rounds
    whole = next(each for each in platforms if each.name == WHOLE)
    slo = objective(whole, shape)
    at_once = [timed(each, jobs(shape, 0, count, 0.0, 1))[1] for each in platforms]
    seconds = at_once[platforms.index(whole)] / LOAD
    console.print(
        f"{shape.name}: {count} requests in {seconds:.1f} s a slice; in time: TTFT within "
        f"{slo.ttft * 1e3:.0f} ms and mean ITL within {slo.itl * 1e3:.0f} ms"
    )
    cells: dict[str, stats.Cell] = {}
    salts = count_from(2)
    pids = [pid for each in platforms for pid in each.pids]
    for number in range(1, rounds + 1):
        first = number * len(shape.trace) // (rounds + 2)
        order = list(platforms) if number % 2 else list(reversed(platforms))

        def replayed(to: Platform, first: int = first) -> tuple[list[StreamTimes], float]:
            # A disturbed sample is taken again: the same prompts would be cached by then.
            return timed(to, jobs(shape, first, count, seconds, salt=next(salts)))

        with console.status(f"{shape.name}: round {number} of {rounds}"):
            for each in order:
                sample = partial(replayed, each)
                (times, taken), _ = undisturbed(sample, pids, attempts=scale.attempts)
                for figure, value in figures(times, taken, slo).items():
                    cell = cells.setdefault(figure, stats.Cell(figure, UNITS.get(figure, "ms")))
                    cell.add(each.name, value)
    return cells


def ratio_of_means(pairs: Sequence[tuple[float, float]]) -> float:
    """Of the first to the second: rounds of which little was in time count for little."""
    return sum(first for first, _ in pairs) / (sum(second for _, second in pairs) or 1.0)


def lower_bound(pairs: Sequence[tuple[float, float]], *, draws: int = 10_000) -> float:
    """One-sided 95 % bound of `ratio_of_means`, by bootstrap over the rounds."""
    rng = Random(0)
    ratios = sorted(ratio_of_means(rng.choices(pairs, k=len(pairs))) for _ in range(draws))
    return ratios[draws // 20]


def verdict(goodput: stats.Cell) -> tuple[str, dict[str, float]]:
    """Who wins, and what leaving the choice to the router costs against the best."""
    best = max(POOLS, key=lambda name: statistics.mean(goodput.samples[name]))
    pairs = list(zip(goodput.samples[AUTOMATIC], goodput.samples[best], strict=True))
    mean, bound = ratio_of_means(pairs), lower_bound(pairs)
    apart = goodput.ratio(SPLIT, WHOLE)
    text = (
        f"most goodput: {best}; prefill and decode apart reach {apart:.2f} of one process; "
        f"automatic ({AUTOMATIC}) / best: {mean:.2f}, at least {bound:.2f} (95 %)"
    )
    return text, {"automatic / best": mean, "lower bound": bound}


def main() -> int:
    arguments = parser(__doc__, quick="2 rounds of 8 requests, as they come")
    arguments.add_argument(
        "--only", metavar="TEXT", default="", help="traces whose name contains it"
    )
    options = arguments.parse_args()
    run = Run(options, threads=THREADS, min_width=120)
    scale, console = QUICK if run.is_quick else FULL, run.console
    default_model()
    rows: list[dict[str, Any]] = []
    ratios: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        platforms = [stack.enter_context(platform(name)) for name in POOLS]
        for shape in (each for each in shapes() if options.only in each.name):
            cells = measure(shape, platforms, scale, console)
            others = [name for name in POOLS if name != AUTOMATIC]
            console.print(stats.table(shape.name, list(cells.values()), AUTOMATIC, others))
            text, ratios[shape.name] = verdict(cells["goodput"])
            console.print(text + "\n")
            rows += [{"trace": shape.name, **row} for row in stats.rows(list(cells.values()))]
    run.write([], rows=rows, ratios=ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main())
