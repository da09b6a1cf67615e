"""What routing rules are compared on: requests, and the nodes that they go to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from bench.routing.sim.traces import MOONCAKE_BLOCK, MOONCAKE_TICK, azure, chats, mooncake
from skerry_regions.twin.scenario import (
    Law,
    Routing,
    Scenario,
    SimulatedPool,
    SimulatedRegion,
    SimulatedTraffic,
)
from skerry_regions.twin.traces import RequestTrace, TraceRequest, spread
from skerry_regions.twin.workload import Workload, of_trace
from skerry_regions.view import Role

SPEED = 8000  # prompt tokens per second of a node
SLOWER_PRIOR = 3.0  # how many times too slow the router first thinks that nodes are
HERE = "r"


def law(speed: float) -> Law:
    """A 70B model in FP8 on one 8-GPU node, roughly: attention as costly as the rest at 64k of
    context, 12 ms for a decode step of one short stream."""
    return Law(
        base=0.010,
        per_token=1 / speed,
        per_pair=1 / speed / 65_536,
        per_stream=0.0003,
        per_context=4e-8,
        chunk_tokens=2048,  # also beside streams, as in the published systems
        gap_seconds=0.3,
    )


def as_it_came(rng: Random, name: str) -> list[TraceRequest]:
    """One of Mooncake's traces, with its 3 s ticks spread."""
    return spread(mooncake(name), rng, MOONCAKE_TICK)


def _first(rng: Random, limit: int) -> list[TraceRequest]:
    return as_it_came(rng, "conversation")[:limit]


def _azure(rng: Random, name: str, by: float) -> list[TraceRequest]:
    """5,000 requests in a row, from anywhere."""
    trace = azure(name)
    start = rng.randrange(len(trace) - 5000)
    came = trace[start : start + 5000]
    return [replace(each, arrival=(each.arrival - came[0].arrival) / by) for each in came]


def _chats(rng: Random, rate: float, groups: int) -> list[TraceRequest]:
    return chats(rng, requests=3000, rate=rate, groups=groups)


def _bimodal(rng: Random) -> list[TraceRequest]:
    return [
        replace(each, output_tokens=rng.choice((20, 20, 20, 2000)))
        for each in as_it_came(rng, "synthetic")
    ]


@dataclass(frozen=True)
class Setting:
    """Requests by seed, for which the name stands, and a region's nodes."""

    name: str
    requests: Callable[[Random], list[TraceRequest]] = field(repr=False, compare=False)
    prefill: int = 0  # nodes of their own
    decode: int = 0
    hybrid: int = 8
    speed: float = SPEED
    factors: tuple[float, ...] = ()  # how much slower nodes are
    noise: float = 0.0
    cache_blocks: int = 2000  # of each node

    def scenario(self, seed: int, edges: int, router: Routing) -> Scenario:
        counts: dict[Role, int] = {
            "prefill": self.prefill,
            "decode": self.decode,
            "hybrid": self.hybrid,
        }
        pools = [
            SimulatedPool(
                name=role, region=HERE, role=role, replicas=count, speed=law(self.speed),
                factors=list(self.factors), noise=self.noise, kv_bytes_per_token=163_840.0,
                cache_tokens=self.cache_blocks * MOONCAKE_BLOCK,
            )
            for role, count in counts.items() if count
        ]  # fmt: skip
        return Scenario(
            seed=seed,
            block_size=MOONCAKE_BLOCK,
            regions=[SimulatedRegion(name=HERE, edges=edges, bandwidth=12.5e9)],
            pools=pools,
            traffic=[TRAFFIC],
            router=router,
        )

    def workload(self, seed: int) -> Workload:
        trace = RequestTrace(self.requests(Random(seed)), MOONCAKE_BLOCK)
        return of_trace(trace, TRAFFIC, [HERE], seed)


TRAFFIC = SimulatedTraffic(regions={HERE: 1.0}, trace="given")


def mooncakes(speeds: Sequence[int]) -> Iterator[Setting]:
    """Mooncake's traces over equal nodes: the lower their speed, the higher the load."""
    for trace in ("conversation", "synthetic"):
        for split in (False, True):
            for speed in speeds:
                pools = "8 prefill + 4 decode" if split else "8 hybrid"
                yield Setting(
                    f"{trace}, {pools}, {speed} tokens/s",
                    partial(as_it_came, name=trace),
                    prefill=8 * split,
                    decode=4 * split,
                    hybrid=8 * (not split),
                    speed=speed,
                )


def others() -> Iterator[Setting]:
    """Regimes in which a rule may do better than what it costs."""
    yield Setting("light load", partial(_first, limit=4000), speed=20_000)
    yield Setting("Azure code x 8", partial(_azure, name="code", by=8))
    yield Setting("Azure conversation x 6", partial(_azure, name="conv", by=6))
    yield Setting("one hot prefix", partial(_chats, rate=10.0, groups=1))
    yield Setting("caches thrash", partial(_chats, rate=6.0, groups=400), cache_blocks=300)
    yield Setting("outputs of 20 or 2,000", _bimodal, speed=20_000)
    yield Setting(
        "unlike nodes, noise",
        partial(as_it_came, name="synthetic"),
        speed=10_000,
        factors=(0.5, 0.5, 1, 1, 1, 1, 2, 3),
        noise=0.3,
    )
    yield Setting("overload", partial(_first, limit=5000), speed=5000)
