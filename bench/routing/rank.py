"""What choosing a node costs an edge: time, memory and bytes, against nodes, edges and prefixes.

    python -m bench.routing.rank [--quick] [--json FILE]

    rank       one ranking of a prompt of 128 blocks: all nodes hold its first 64 (also: in a
               session); nobody holds any; or the processor's caches are cold (32 MB written before)
    plain      the same ranking in plain Python, which samples beyond 64 nodes
    report     a node's report taken in: decoded, its speed learned, its row written
    booking    a request counted on its node, and counted off
    loss       how much dearer the chosen placement is than the cheapest of all nodes, in the mean
    memory     bytes of the index for each (block, node), by how many nodes share a block
    edge       CPU of an edge for each request at 100 and at 1,000 a second, with the reports of its
               1,000 nodes, four a second each
    gossip     bytes a second into an edge of ten regions of ten edges: what the others' nodes hold
               and how busy they are, at 100 and at 1,000 requests a second and region

One process, one thread; the median over calls. Nodes are of three roles, with random load.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import gettempdir
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from bench.measuring import machine, stats
from skerry_cli.composition.routing.kernels import load_routing_kernels
from skerry_regions.prefix_news import PrefixDelta
from skerry_regions.region.observations import Observations
from skerry_regions.registry import Member
from skerry_regions.routing.block_index import DirectoryLimits
from skerry_regions.routing.fast.index import CompiledIndex
from skerry_regions.routing.placement import Demand, RouterConfig
from skerry_regions.routing.prefixes import PrefixDirectory
from skerry_regions.routing.region_names import AdvertisedNames
from skerry_regions.routing.router import Router
from skerry_regions.routing.summaries import RegionSummary
from skerry_regions.speeds import LinkSpeed, NodeSpeed, StepSample
from skerry_regions.view import NodeLoad, NodeState, Role, View
from skerry_regions.wire.reports import Report

NODES = (4, 64, 1_000, 10_000)
BLOCKS, SHARED = 128, 64  # of a prompt, and of these held by all
REQUESTS = (100.0, 1_000.0)  # a second, of one edge
REPORTS = 4.0  # a second, of each node
SPEED = NodeSpeed(
    base=0.01, per_token=1 / 8000, per_pair=1 / 8000 / 65_536, per_stream=3e-4, per_context=4e-8,
    chunk_tokens=2048, gap_seconds=0.3,
)  # fmt: skip
ROLES: tuple[Role, ...] = ("prefill", "decode", "hybrid")
MODEL = "m"
CACHE = Path(gettempdir()) / "skerry-bench-kernels"


class Fleet:
    """So many nodes, which hold a shared prefix and some blocks of their own."""

    def __init__(
        self, count: int, *, compiled: bool, candidates: Any = "indexed", share: float = 0.9
    ) -> None:
        """`share` of the nodes hold all of the shared prefix, the others some of it."""
        rng = self.rng = Random(count)
        self.shared = tuple(rng.randbytes(16) for _ in range(SHARED))
        self.directory = PrefixDirectory()
        config = RouterConfig(candidates=candidates)
        self.router = Router(self.directory, Random(1), config)
        if compiled:
            self.router.use_index()
        nodes = [self._node(f"n{i}") for i in range(count)]
        for node in nodes:
            own = tuple(rng.randbytes(16) for _ in range(20))
            few = self.shared if rng.random() < share else self.shared[: rng.randrange(SHARED)]
            self.directory.apply(
                PrefixDelta(node=node.id, incarnation=1, seq=1, sealed=(*few, *own))
            )
        self.view = View(nodes, {("r", "r"): LinkSpeed(rtt=0.0005, bandwidth=12.5e9)})

    def _node(self, name: str) -> NodeState:
        rng, tokens = self.rng, self.rng.expovariate(1 / 20_000)
        streams = rng.randrange(24)
        return NodeState(
            id=name, region="r", residency="", role=rng.choice(ROLES), model=MODEL,
            numeric_build="b", kv_format="k", kv_bytes_per_token=163_840.0, cache_tokens=1_000_000,
            speed=SPEED.scaled(rng.choice([0.8, 1.0, 1.3])), handover_lag=0.005,
            load=NodeLoad(
                prefill_tokens=tokens, prefill_pairs=tokens * 3000, streams=streams,
                context_tokens=streams * rng.randrange(500, 12_000),
            ),
        )  # fmt: skip

    def demand(self, held: int = SHARED) -> Demand:
        own = tuple(self.rng.randbytes(16) for _ in range(BLOCKS - held))
        digests = self.shared[:held] + own
        return Demand(model=MODEL, origin="r", prompt_tokens=64 * BLOCKS + 9, digests=digests)

    def rank(self, demand: Demand) -> float:
        return self.router.rank(self.view, demand, now=0.05)[0].seconds


def microseconds(
    call: Callable[[], object], calls: int, before: Callable[[], object] = lambda: None
) -> list[float]:
    call()
    taken = []
    for _ in range(calls):
        before()
        began = time.perf_counter()
        call()
        taken.append((time.perf_counter() - began) * 1e6)
    return sorted(taken)


def rankings(count: int, calls: int) -> dict[str, dict[str, float]]:
    """Rank, book and compare among so many nodes."""
    fleet = Fleet(count, compiled=True)
    held, cold = fleet.demand(), fleet.demand(0)
    flood = np.zeros(4 << 20)

    def flush() -> None:
        np.add(flood, 1.0, out=flood)

    def booked() -> None:
        fleet.router.release(fleet.router.book(best, held, now=0.05))

    best = fleet.router.rank(fleet.view, held, now=0.05)[0]
    of_session = replace(held, affinity=b"a session")
    cases = {
        "held by all": microseconds(lambda: fleet.rank(held), calls),
        "of a session": microseconds(lambda: fleet.rank(of_session), calls),
        "held by nobody": microseconds(lambda: fleet.rank(cold), calls),
        "held by all, cold": microseconds(lambda: fleet.rank(held), calls // 4, flush),
        "booking": microseconds(booked, calls),
    }
    if count <= 1000:
        plain = Fleet(count, compiled=False)
        asked = plain.demand()
        cases["plain, held by all"] = microseconds(lambda: plain.rank(asked), max(calls // 50, 5))
    return {
        name: {"p50": stats.percentile(taken, 0.5), "p99": stats.percentile(taken, 0.99)}
        for name, taken in cases.items()
    }


def loss(count: int, decisions: int) -> dict[str, float]:
    """How much dearer single decisions among candidates are than among all nodes."""
    few, every = (
        Fleet(count, compiled=True, candidates=each, share=0.02) for each in ("indexed", "all")
    )
    losses = []
    for _ in range(decisions):
        held = few.rng.randrange(SHARED + 1)
        demand = few.demand(held)
        losses.append(100 * (few.rank(demand) / every.rank(demand) - 1))
    return {"mean": sum(losses) / len(losses), "p99": stats.percentile(losses, 0.99)}


def memory(nodes: int, blocks: int, holders: int) -> float:
    """Bytes for each (block, node), when each block has so many holders."""
    index = CompiledIndex(DirectoryLimits())
    rng = np.random.default_rng(1)
    distinct = max(nodes * blocks // holders, 1)
    pool = rng.bytes(16 * distinct)
    for node in range(nodes):
        first = node * blocks // holders
        names = [(first + i) % distinct for i in range(blocks)]
        index.tell(node, [pool[16 * name : 16 * name + 16] for name in names], "memory")
    return index.num_bytes / (nodes * blocks)


def report_cost(count: int, calls: int) -> float:
    """Microseconds of one report, from its bytes on."""
    seen = Observations("r")
    seen.know(
        Member(
            id=f"n{i}", kind="node", region="r", incarnation=1, model=MODEL, runner="toy",
            numeric_build="b", kv_format="k", kv_bytes_per_token=10.0, cache_tokens=1 << 20,
            state="ready", role="hybrid",
        )
        for i in range(count)
    )  # fmt: skip
    router = Router(seen.prefixes, Random(1))
    router.use_index()
    router.rank(seen.view(MODEL), Demand(model=MODEL, origin="r", prompt_tokens=9), now=0.0)
    rng, seqs = Random(2), dict.fromkeys(range(count), 0)
    decoder = msgspec.msgpack.Decoder(Report)
    made: list[tuple[str, bytes]] = []
    for _ in range(calls):
        i = rng.randrange(count)
        seqs[i] += 1
        report = Report(
            model=MODEL,
            load=NodeLoad(prefill_tokens=rng.uniform(0, 9000), streams=3, context_tokens=9000),
            sample=StepSample(steps=20, seconds=0.3, new_tokens=900, attended=1e6, streams=60,
                              context=2e5),
            prefixes=PrefixDelta(
                node=f"n{i}", incarnation=1, seq=seqs[i],
                sealed=tuple(rng.randbytes(16) for _ in range(4)),
            ),
        )  # fmt: skip
        made.append((f"n{i}", msgspec.msgpack.encode(report)))
    began = time.process_time()
    for number, (node, data) in enumerate(made):
        seen.take(node, decoder.decode(data), now=number / (REPORTS * count))
    return (time.process_time() - began) * 1e6 / calls


def gossip(requests: float) -> dict[str, float]:
    """Bytes per second from one region to one listener: names and summaries."""
    rng, names, seconds = Random(3), AdvertisedNames(), 30
    sessions = [[rng.randbytes(16) for _ in range(40)] for _ in range(400)]
    told = 0
    for tick in range(2 * seconds):
        for _ in range(int(requests / 2)):
            session = rng.choice(sessions)
            grown = [rng.randbytes(16) for _ in range(rng.randrange(60))]
            session += grown
            names.told(f"n{rng.randrange(64)}", grown)
            if len(session) > 400:  # it ends, and another one begins
                names.forgotten(f"n{rng.randrange(64)}", session)
                session[:] = [rng.randbytes(16) for _ in range(40)]
        summary = RegionSummary(incarnation=1, seq=tick, num_nodes=64, names=names.news(tick / 2))
        if tick >= seconds:
            told += len(
                msgspec.msgpack.encode(Report(model=MODEL, load=NodeLoad(), region=summary))
            )
    load = RegionSummary(
        incarnation=1,
        seq=1,
        num_nodes=64,
        residual=(0.1, 0.2, 0.3),
        speed=(0.1, 0.1, 0.1, 0.1, 0.1),
    )
    summary_bytes = len(msgspec.msgpack.encode(Report(model=MODEL, load=NodeLoad(), region=load)))
    each = told / (seconds / 2)
    return {
        "names of a region": each,
        "into an edge, 10 x 10": 9 * each + 81 * 2 * summary_bytes,
        "level": float(names.news(1e9).level),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer calls")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(argv)
    calls = 200 if options.quick else 2000
    load_routing_kernels(CACHE, lambda what, share: None)
    console, report = Console(), {"machine": machine.describe()}
    ranked = {str(count): rankings(count, calls) for count in NODES}
    table = Table(title="microseconds, p50 and p99")
    table.add_column("nodes")
    columns = list(ranked["4"])
    for column in columns:
        table.add_column(column, justify="right")
    for count, cases in ranked.items():
        cells = [f"{c['p50']:.0f} {c['p99']:.0f}" if (c := cases.get(x)) else "" for x in columns]
        table.add_row(count, *cells)
    console.print(table)
    losses = {str(count): loss(count, calls // 10) for count in (64, 1_000, 10_000)}
    shares = {
        f"{nodes} nodes x {blocks} blocks, {holders} holders each": memory(nodes, blocks, holders)
        for nodes, blocks, holders in (
            (1_000, 2_000, 1), (1_000, 2_000, 20), (1_000, 500, 1_000), (10_000, 100, 10_000),
        )
    }  # fmt: skip
    reports = {str(count): report_cost(count, 5 * calls) for count in (64, 1_000)}
    rank = ranked["1000"]
    each = rank["held by all"]["p50"] + rank["booking"]["p50"]
    edge = {
        f"{requests:,.0f} requests/s": each + reports["1000"] * REPORTS * 1_000 / requests
        for requests in REQUESTS
    }
    told = {f"{requests:.0f} requests/s": gossip(requests) for requests in (100.0, 1000.0)}
    for name, figures in (
        ("loss of a decision, %", losses), ("bytes for each (block, node)", shares),
        ("a report, microseconds", reports), ("of an edge's CPU per request, microseconds", edge),
        ("bytes a second", told),
    ):  # fmt: skip
        console.print(name, figures)
        report[name] = figures
    stats.write(options.json, report | {"microseconds": ranked})


if __name__ == "__main__":
    main()
