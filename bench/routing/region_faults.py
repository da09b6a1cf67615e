"""What clients of three regions notice of a frozen node, a slow one, and a way that gets longer.

Part of `python -m bench.routing.regions`: real edges and nodes as processes, three of each in each
region; nodes of the toy model that sleep by a law, so that their speed is not this machine's. Round
trips between regions are those that IBM measured (`bench/data`), and change as the bench runs.

Conversations live in a region and ask again with all that was said before; every fourth request
comes in at another region's edge. Every edge of a region gets its share.
"""

from __future__ import annotations

import asyncio
import csv
import itertools
import json
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich.table import Table

from bench.measuring import stats
from bench.measuring.load import StreamTimes, stream
from bench.subjects.models import MODEL
from bench.subjects.platforms import Platform, of_topology, sleeping_nodes

CITIES = {"iad": "Washington DC", "fra": "Frankfurt", "nrt": "Tokyo"}
MATRIX = Path(__file__).parents[1] / "data" / "ibm_vpc_inter_region_rtt_2024-03.csv"
SHARES = {"fra": 0.5, "iad": 0.3, "nrt": 0.2}  # of conversations
AWAY = 0.25  # of requests: come in at another region's edge
EDGES, NODES = 3, 3  # of each region
LAW = (0.020, 3e-4, 0.0, 1e-3, 0.0)  # step, prompt token, pair, stream, context token
RATE = 10.0  # requests per second
BLOCK, SHARED, GROUPS = 64, 384, 12  # tokens; of a shared prefix; how many of these
OUTPUT = 12  # tokens

STRUCK = "fra-a-0"
FREEZE, SLOW, LONGER = "a node frozen", "a node half as fast", "fra-iad three times as long"
PHASES = (  # seconds from the start, and what is so until the next
    (0.0, "undisturbed"), (25.0, FREEZE), (35.0, "5 s after it"), (40.0, "later"),
    (55.0, SLOW), (75.0, "after it"), (90.0, LONGER), (110.0, "as before"), (125.0, ""),
)  # fmt: skip
SECONDS = PHASES[-1][0]
SLICE = 0.05  # seconds that a slow node runs, and as long not


@dataclass(frozen=True)
class Call:
    """One request."""

    at: float
    region: str
    edge: int
    prompt: list[int]
    reusable: int  # tokens of the prompt in whole blocks that earlier requests had


@dataclass(frozen=True)
class Answered:
    """What came of it; without `times` it was refused or broke off."""

    call: Call
    times: StreamTimes | None


def rtts() -> dict[tuple[str, str], float]:
    """Seconds, the mean of both directions."""
    with MATRIX.open(newline="") as file:
        rows = {row["from"]: row for row in csv.DictReader(file)}
    return {
        (a, b): (float(rows[CITIES[a]][CITIES[b]]) + float(rows[CITIES[b]][CITIES[a]])) / 2e3
        for a, b in itertools.combinations(CITIES, 2)
    }


def topology(policy: str, edges: int, **pool: Any) -> dict[str, Any]:
    """Three regions with so many edges each, and a pool of nodes with a thread each."""
    pool = {"name": "a", "role": "hybrid", "model": MODEL, "threads": 1} | pool
    return {
        "regions": [{"name": name, "iata": name.upper()} for name in CITIES],
        "pools": [pool | {"region": name} for name in CITIES],
        "edges": [
            {"name": f"edge-{name}-{number}", "region": name, "placement": policy}
            for name in CITIES for number in range(edges)
        ],
        "links": [{"between": list(pair), "rtt": rtt} for pair, rtt in rtts().items()],
        "emulate": {"rtt": "links"},
    }  # fmt: skip


def calls(seed: int, seconds: float) -> list[Call]:
    """Poisson arrivals; each continues a conversation or begins one."""
    rng, now, made = Random(seed), 0.0, []
    shared = [[rng.randrange(1000, 40_000) for _ in range(SHARED)] for _ in range(GROUPS)]
    open_ones: list[tuple[str, list[int]]] = []
    seen: set[tuple[int, ...]] = set()
    while (now := now + rng.expovariate(RATE)) < seconds:
        if open_ones and rng.random() < 0.6:
            home, said = open_ones.pop(rng.randrange(len(open_ones)))
        else:
            home, said = rng.choices([*SHARES], [*SHARES.values()])[0], rng.choice(shared)
        prompt = said + [rng.randrange(1000, 40_000) for _ in range(rng.randrange(60, 300))]
        if len(prompt) < 4 * SHARED:
            open_ones.append((home, prompt))
        others = [name for name in CITIES if name != home]
        region = rng.choice(others) if rng.random() < AWAY else home
        prefixes = [tuple(prompt[:size]) for size in range(BLOCK, len(prompt), BLOCK)]
        reusable = max((len(each) for each in prefixes if each in seen), default=0)
        seen.update(prefixes)
        made.append(Call(now, region, rng.randrange(EDGES), prompt, reusable))
    return made


@contextmanager
def running(policy: str) -> Generator[Platform]:
    with (
        sleeping_nodes(LAW),
        of_topology(topology(policy, EDGES, runner="toy", replicas=NODES, kv_blocks=256)) as made,
    ):
        yield made


async def play(on: Platform, asked: Sequence[Call]) -> list[Answered]:
    """Send all when their time has come, while nodes and ways are struck."""
    urls = {
        each["id"].rpartition("-")[0]: on.route("v1/completions", each["url"])
        for each in on.status["edges"]
    }
    pid = next(int(each["pid"]) for each in on.status["nodes"] if each["id"] == STRUCK)

    async def one(call: Call) -> Answered:
        await asyncio.sleep(call.at)
        body = {
            "model": MODEL, "prompt": call.prompt, "max_tokens": OUTPUT, "temperature": 0,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
            "logprobs": 0,
        }  # fmt: skip
        url = urls[f"edge-{call.region}-{call.edge}"]
        try:
            given = await stream(url, on.token, body, content=b'"token_logprobs":[', explained=True)
        except (OSError, RuntimeError):
            return Answered(call, None)
        return Answered(call, given if given.events else None)

    striking = asyncio.create_task(_strike(on, pid))
    try:
        return await asyncio.gather(*map(one, asked))
    finally:
        striking.cancel()
        os.kill(pid, signal.SIGCONT)


async def _strike(on: Platform, pid: int) -> None:
    """Do what `PHASES` say."""
    begins = {name: at for at, name in PHASES}
    ends = {name: PHASES[number + 1][0] for number, (_, name) in enumerate(PHASES[:-1])}
    start = asyncio.get_running_loop().time()

    async def until(at: float) -> None:
        await asyncio.sleep(start + at - asyncio.get_running_loop().time())

    await until(begins[FREEZE])
    os.kill(pid, signal.SIGSTOP)
    await until(ends[FREEZE])
    os.kill(pid, signal.SIGCONT)
    await until(begins[SLOW])
    while asyncio.get_running_loop().time() < start + ends[SLOW]:
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(SLICE)
        os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(SLICE)
    (file,) = on.home.rglob("*.relays")  # the plan that relays follow
    plan = json.loads(file.read_bytes())
    for at, longer in ((begins[LONGER], 3.0), (ends[LONGER], 1.0)):
        await until(at)
        rtts = [(a, b, rtt * (longer if {a, b} == {"fra", "iad"} else 1.0))
                for a, b, rtt in plan["rtts"]]  # fmt: skip
        file.write_text(json.dumps(plan | {"rtts": rtts}))


def figures(answered: Sequence[Answered]) -> dict[str, float]:
    """Of one phase of one run."""
    done = [(each.call, each.times) for each in answered if each.times is not None]
    again = [(call, times) for call, times in done if call.reusable]
    first = [1e3 * times.ttft for _, times in done]
    here = [times.placed for call, times in done if call.region == STRUCK[:3]]
    return {
        "requests": len(answered),
        "failed": len(answered) - len(done),
        "p50": stats.percentile(first, 0.5),
        "p95": stats.percentile(first, 0.95),
        "p99": stats.percentile(first, 0.99),
        "home": 100 * sum(2 * t.cached >= c.reusable for c, t in again) / max(len(again), 1),
        "hits": 100 * sum(min(t.cached, c.reusable) for c, t in again)
        / max(sum(c.reusable for c, _ in again), 1),
        "struck": 100 * sum(STRUCK in each for each in here) / max(len(here), 1),
    }  # fmt: skip


def by_phase(answered: Sequence[Answered]) -> Iterator[tuple[str, dict[str, float]]]:
    """Figures of what was sent in each phase."""
    for (begin, name), (end, _) in itertools.pairwise(PHASES):
        own = [each for each in answered if begin <= each.call.at < end]
        if own:
            yield name, figures(own)


def measure(
    policies: Sequence[str], seconds: float, status: Callable[[str], None]
) -> dict[str, dict[str, dict[str, float]]]:
    """By policy and phase; the same requests for each."""
    found = {}
    for policy in policies:
        status(f"faults: {policy}")
        with running(policy) as on:
            asyncio.run(play_quietly(on))
            answered = asyncio.run(play(on, calls(1, seconds)))
        found[policy] = dict(by_phase(answered))
    return found


async def play_quietly(on: Platform) -> None:
    """Have edges and nodes warm, and nodes' speeds learned."""
    urls = [on.route("v1/completions", each["url"]) for each in on.status["edges"]]
    rng = Random(0)
    for _ in range(4):
        await asyncio.gather(*(
            stream(url, on.token, {
                "model": MODEL, "prompt": [rng.randrange(1000, 40_000) for _ in range(size)],
                "max_tokens": OUTPUT, "temperature": 0, "stream": True,
            })
            for url in urls for size in (80, 400)
        ))  # fmt: skip


def table(policy: str, phases: dict[str, dict[str, float]]) -> Table:
    result = Table(title=f"{policy}: three edges and nodes in each of three regions")
    for column in (
        "phase", "requests", "failed", "TTFT p50 ms", "p95", "p99", "reached home %",
        "tokens found %", f"of fra's to {STRUCK} %",
    ):  # fmt: skip
        result.add_column(column, justify="right")
    for name, row in phases.items():
        result.add_row(name, *(f"{value:.0f}" for value in row.values()))
    return result
