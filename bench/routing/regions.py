"""Which region a request goes to: by cost in seconds, always the nearest, or each in turn.

    python -m bench.routing.regions [--quick] [--only cost | faults] [--json FILE]

Three regions on this machine, a node of one thread and two edges in each, round trips of 98, 167
and 240 ms between them, as IBM measured between Washington, Frankfurt and Tokyo (`emulate` of the
topology: frames really wait). Each policy gets a platform of its own in every round, with empty
caches, and the same requests.

The load is made from mooncake_conversation: a request that shares blocks (but the first, which all
share) with an earlier one belongs to its conversation, and a slice is conversations of `TURNS`
requests or more, drawn at random. Lengths are divided as in `bench.kv.disagg`, arrivals are the
trace's own, stretched to `LOAD` of what the nodes did at once. Each conversation lives in one
region (half of them in fra, 30 % in iad, 20 % in nrt), and a request comes in at that region's
edge, but every fourth at another one's, as people travel and addresses move.

A request has a prefix home when earlier ones computed at least one block (64 tokens) of its prompt.
It reached it when at least half of those tokens were found in a cache.

At last, what clients notice of a frozen node, a slow one, and a way that gets longer: see
`bench/routing/region_faults.py`.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random

from rich.console import Console

from bench.kv.disagg import MAX_OUTPUT, Shape, prompt_ids
from bench.measuring import stats
from bench.measuring.load import StreamTimes
from bench.measuring.replay import complete, replay
from bench.measuring.run import Run, parser
from bench.routing import region_faults
from bench.routing.region_faults import AWAY, SHARES, topology
from bench.routing.sim.traces import TraceRequest, mooncake
from bench.subjects.models import default_model
from bench.subjects.platforms import of_topology

COST, NEAREST, IN_TURN = "cost", "nearest", "round-robin"
POLICIES = (COST, NEAREST, IN_TURN)
EDGES = 2  # of each region
TURNS = 3
LOAD = 0.5
BLOCK = 64  # tokens
SHAPE = Shape("mooncake_conversation", mooncake("conversation"), 32, 32)


@dataclass(frozen=True)
class Job:
    """One request of a slice."""

    at: float  # seconds after the first one
    region: str  # that it comes in at
    edge: int
    prompt: list[int]
    output: int  # tokens
    reusable: int  # tokens of the prompt in whole blocks that earlier requests had


@dataclass(frozen=True)
class Platform:
    """A running one."""

    urls: dict[str, list[str]]  # of completions, by region
    token: str


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured."""

    rounds: int
    requests: int  # of a slice


FULL = Scale(rounds=3, requests=48)
QUICK = Scale(rounds=1, requests=12)


@functools.cache
def conversations() -> list[list[TraceRequest]]:
    """Those with many turns, each in the order of arrival."""
    of_block: dict[bytes, int] = {}
    found: list[list[TraceRequest]] = []
    for request in SHAPE.trace:
        known = [of_block[block] for block in request.blocks[1:] if block in of_block]
        if not known:
            found.append([])
        number = known[-1] if known else len(found) - 1
        found[number].append(request)
        of_block |= dict.fromkeys(request.blocks[1:], number)
    return [turns for turns in found if len(turns) >= TURNS]


def drawn(count: int, rng: Random) -> list[tuple[TraceRequest, str]]:
    """So many requests of whole conversations, and where each comes in, in the order of arrival."""
    names, weights = list(SHARES), list(SHARES.values())
    entries: list[tuple[TraceRequest, str]] = []
    for turns in rng.sample(conversations(), len(conversations())):
        place = rng.choices(names, weights)[0]
        others = [name for name in names if name != place]
        for request in turns[: count - len(entries)]:
            entries.append((request, rng.choice(others) if rng.random() < AWAY else place))
    return sorted(entries, key=lambda entry: entry[0].arrival)


def jobs(count: int, seconds: float, salt: int) -> list[Job]:
    """A slice, arrivals stretched over `seconds`. Only requests of one `salt` share prefixes."""
    entries = drawn(count, Random(salt))
    begin, end = entries[0][0].arrival, entries[-1][0].arrival
    seen: set[tuple[int, ...]] = set()
    made = []
    for number, (request, entry) in enumerate(entries):
        prompt = prompt_ids(SHAPE, request, f"{salt}-{number}", salt)
        prefixes = [tuple(prompt[:size]) for size in range(BLOCK, len(prompt), BLOCK)]
        output = min(max(request.output_tokens // SHAPE.output_scale, 2), MAX_OUTPUT)
        reusable = max((len(each) for each in prefixes if each in seen), default=0)
        at = (request.arrival - begin) * seconds / (end - begin)
        made.append(Job(at, entry, number % EDGES, prompt, output, reusable))
        seen.update(prefixes)
    return made


@contextmanager
def platform(policy: str) -> Generator[Platform]:
    """Three regions, running."""
    with of_topology(topology(policy, EDGES)) as made:
        urls = {
            name: [made.route("v1/completions", edge["url"]) for edge in made.status["edges"]
                   if edge["region"] == name]
            for name in SHARES
        }  # fmt: skip
        yield Platform(urls, made.token)


async def ask(to: Platform, job: Job) -> StreamTimes:
    return await complete(to.urls[job.region][job.edge], to.token, job)


def figures(asked: Sequence[Job], times: Sequence[StreamTimes]) -> dict[str, float]:
    """Of one replay."""
    with_home = [(job, each) for job, each in zip(asked, times, strict=True) if job.reusable]
    reached = sum(2 * each.cached >= job.reusable for job, each in with_home)
    found = sum(min(each.cached, job.reusable) for job, each in with_home)
    ttft = [each.ttft for each in times]
    return {
        "reached home": 100 * reached / max(len(with_home), 1),
        "tokens found": 100 * found / max(sum(job.reusable for job, _ in with_home), 1),
        "TTFT p50": stats.percentile(ttft, 0.5) * 1e3,
        "TTFT p95": stats.percentile(ttft, 0.95) * 1e3,
        "TTFT p99": stats.percentile(ttft, 0.99) * 1e3,
    }


def seconds_at_once(count: int) -> float:
    """How long the nodes take for a slice that comes all at once, each region its own."""
    with platform(NEAREST) as to:
        asyncio.run(replay(jobs(6, 0.0, salt=0), partial(ask, to)))  # edges and nodes are warm
        start = time.perf_counter()
        asyncio.run(replay(jobs(count, 0.0, salt=1), partial(ask, to)))
        return time.perf_counter() - start


def measure(scale: Scale, console: Console) -> dict[str, stats.Cell]:
    """All policies on the same slices, in turns."""
    seconds = seconds_at_once(scale.requests) / LOAD
    console.print(f"{scale.requests} requests in {seconds:.1f} s a slice")
    cells: dict[str, stats.Cell] = {}
    for number in range(1, scale.rounds + 1):
        asked = jobs(scale.requests, seconds, salt=number + 1)
        order = POLICIES if number % 2 else tuple(reversed(POLICIES))
        for policy in order:
            with (
                console.status(f"round {number} of {scale.rounds}: {policy}"),
                platform(policy) as to,
            ):
                asyncio.run(replay(jobs(6, 0.0, salt=0), partial(ask, to)))
                times = asyncio.run(replay(asked, partial(ask, to)))
            for figure, value in figures(asked, times).items():
                unit = "ms" if figure.startswith("TTFT") else "%"
                cells.setdefault(figure, stats.Cell(figure, unit)).add(policy, value)
    return cells


def main() -> int:
    made = parser(__doc__, quick="1 round of 12 requests; faults by cost alone, to the frozen node")
    made.add_argument("--only", choices=("cost", "faults"), help="one of the two parts")
    given = made.parse_args()
    run = Run(given, threads=len(SHARES), min_width=120)
    default_model()
    cells: list[stats.Cell] = []
    found: dict[str, dict[str, dict[str, float]]] = {}
    if given.only != "faults":
        cells = list(measure(QUICK if run.is_quick else FULL, run.console).values())
        run.console.print(stats.table("Three regions", cells, COST, [NEAREST, IN_TURN]))
    if given.only != "cost":
        policies, seconds = ([COST], 45.0) if run.is_quick else (POLICIES, region_faults.SECONDS)
        with run.console.status("") as status:
            found = region_faults.measure(policies, seconds, status.update)
        for policy, phases in found.items():
            run.console.print(region_faults.table(policy, phases))
    run.write(cells, faults=found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
