"""Nodes, links and one router policy: replays a trace and says what each request waited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from bench.sim.events import Events
from bench.sim.node import SimNode
from bench.sim.traces import MOONCAKE_BLOCK, TraceRequest
from bench.sim.work import Prefill
from skerry_regions.routing.block_index import CachedPrefix
from skerry_regions.routing.prefixes import PrefixDirectory
from skerry_regions.speeds import LinkSpeed, NodeSpeed, StepSample
from skerry_regions.view import Role

# A 70B model in FP8 on one 8-GPU node, roughly: 8,000 prompt tokens/s when prompts are short,
# attention as costly as the rest at 64k of context, 12 ms for a decode step of one short stream.
TRUTH = NodeSpeed(
    base=0.010,
    per_token=1 / 8000,
    per_pair=1 / 8000 / 65_536,
    per_stream=0.0003,
    per_context=4e-8,
    chunk_tokens=2048,  # also beside streams, as in the published systems
    gap_seconds=0.3,
)
FABRIC = LinkSpeed(rtt=0.0005, bandwidth=12.5e9)  # 100 Gbit/s


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """What is simulated; the same for every policy."""

    roles: tuple[Role, ...] = ("hybrid",) * 8
    truth: NodeSpeed = TRUTH
    node_factors: tuple[float, ...] = ()  # how much slower each node really is; empty: all equal
    block_size: int = MOONCAKE_BLOCK  # tokens
    cache_blocks: int = 2000  # per node
    kv_bytes_per_token: float = 163_840.0  # 80 layers x 8 KV heads x 128 x 2, FP8
    link: LinkSpeed = FABRIC  # between any two nodes
    noise: float = 0.0  # sigma of each step's lognormal time
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a policy sends a request."""

    prefill: str
    decode: str
    fetch_from: str | None = None  # peer whose copy of the prefix is fetched first
    fetch_blocks: int = 0  # leading blocks that the peer holds


class Policy(Protocol):
    """A routing rule under test."""

    def choose(
        self, request: TraceRequest, cached: dict[str, CachedPrefix], cluster: Cluster
    ) -> Choice: ...

    def finished(self, request_id: int) -> None:
        """The last token of the request with this number (in order of arrival) is out."""

    def measured(self, node: str, sample: StepSample) -> None:
        """A node reports how long its steps took."""


@dataclass
class Outcome:
    """What happened, per request in order of arrival; seconds."""

    ttft: list[float]
    latency: list[float]  # until the last token
    steps: list[tuple[float, int]] = field(default_factory=list)  # (seconds, tokens decoded)
    prompt_tokens: int = 0
    computed_tokens: int = 0
    num_split: int = 0

    @property
    def hit_share(self) -> float:
        return 1 - self.computed_tokens / max(self.prompt_tokens, 1)


class Cluster:
    """The simulated machines. Policies may look at everything here, without delay."""

    def __init__(self, config: ClusterConfig, measured: Callable[[str, StepSample], None]) -> None:
        self.config = config
        self.events = Events()
        self.directory = PrefixDirectory()
        rng = Random(config.seed)
        factors = config.node_factors or (1.0,) * len(config.roles)
        self.nodes = {
            f"n{i}": SimNode(
                f"n{i}",
                role,
                config.truth.scaled(factor),
                self.events,
                block_size=config.block_size,
                cache_blocks=config.cache_blocks,
                rng=Random(rng.randrange(2**63)),
                noise=config.noise,
                measured=partial(measured, f"n{i}"),
            )
            for i, (role, factor) in enumerate(zip(config.roles, factors, strict=True))
        }

    def publish(self) -> None:
        """Bring every node's cache events to the directory."""
        for node in self.nodes.values():
            while (delta := node.publisher.delta()) is not None:
                self.directory.apply(delta)

    def send(self, source: SimNode, num_bytes: float, *, started: float = 0.0) -> float:
        """When the bytes are there, if the first could leave at `started`: one transfer at a time
        per sender."""
        now, link = self.events.now, self.config.link
        begin = max(source.egress_free_at, started)
        source.egress_free_at = max(begin + num_bytes / link.bandwidth, now)
        return source.egress_free_at + link.rtt / 2


def simulate(config: ClusterConfig, policy: Policy, trace: Sequence[TraceRequest]) -> Outcome:
    """Replay `trace`, open loop."""
    cluster = Cluster(config, policy.measured)
    replay = _Replay(cluster, policy, trace)
    for number, request in enumerate(trace):
        cluster.events.at(request.arrival, partial(replay.arrive, number))
    cluster.events.run()
    outcome = replay.outcome
    for node in cluster.nodes.values():
        outcome.steps += node.step_times
        outcome.prompt_tokens += node.prompt_tokens
        outcome.computed_tokens += node.computed_tokens
    return outcome


class _Replay:
    """The life of each request: arrive → prefill → hand over → decode → finish."""

    def __init__(self, cluster: Cluster, policy: Policy, trace: Sequence[TraceRequest]) -> None:
        self._cluster, self._policy, self._trace = cluster, policy, trace
        nothing = float("nan")
        self.outcome = Outcome([nothing] * len(trace), [nothing] * len(trace))

    def arrive(self, number: int) -> None:
        cluster, request = self._cluster, self._trace[number]
        cluster.publish()
        cluster.directory.expire(cluster.events.now)
        cached = cluster.directory.match_all(request.blocks)
        choice = self._policy.choose(request, cached, cluster)
        now, size = cluster.events.now, cluster.config.block_size
        for name in {choice.prefill, choice.decode}:
            cluster.directory.expect(name, request.blocks, now)
        node = cluster.nodes[choice.prefill]
        held = cached[choice.prefill].blocks if choice.prefill in cached else 0
        ready_at = now
        if choice.fetch_from is not None:
            ready_at, held = self._fetch(choice, request, held)
        self.outcome.num_split += choice.prefill != choice.decode
        node.prefill(
            Prefill(
                blocks=request.blocks,
                prompt_tokens=request.prompt_tokens,
                assumed_new=max(request.prompt_tokens - held * size, 1),
                ready_at=ready_at,
                done=partial(self._prefilled, number, choice, now),
            )
        )

    def _fetch(self, choice: Choice, request: TraceRequest, held: int) -> tuple[float, int]:
        """Copy what the peer really has: (when it is there, blocks that are then held)."""
        cluster, peer = self._cluster, self._cluster.nodes[choice.fetch_from or ""]
        blocks = min(peer.cache.match(request.blocks), choice.fetch_blocks)
        if blocks <= held:
            return cluster.events.now, held
        num_bytes = (blocks - held) * cluster.config.block_size * cluster.config.kv_bytes_per_token
        asked = cluster.events.now + cluster.config.link.rtt / 2
        there = cluster.send(peer, num_bytes, started=asked)
        target = cluster.nodes[choice.prefill].cache
        cluster.events.at(there, lambda: target.insert(request.blocks[:blocks]))
        return there, blocks

    def _prefilled(self, number: int, choice: Choice, began: float) -> None:
        cluster, request = self._cluster, self._trace[number]
        now = cluster.events.now
        if choice.prefill == choice.decode:
            self._decode(number, choice)
            return
        target = cluster.nodes[choice.decode]
        kv_bytes = cluster.config.kv_bytes_per_token
        held = target.cache.match(request.blocks) * cluster.config.block_size
        missing = max(request.prompt_tokens - held, 0)
        last = min(cluster.config.truth.chunk_tokens, missing) * kv_bytes
        # Sealed blocks leave while later chunks compute; the last chunk cannot.
        source = cluster.nodes[choice.prefill]
        early = cluster.send(source, missing * kv_bytes - last, started=began)
        arrival = cluster.send(source, last, started=max(now, early - cluster.config.link.rtt / 2))
        cluster.events.at(arrival, partial(self._handed_over, number, choice))

    def _handed_over(self, number: int, choice: Choice) -> None:
        self._cluster.nodes[choice.decode].cache.insert(self._trace[number].blocks)
        self._decode(number, choice)

    def _decode(self, number: int, choice: Choice) -> None:
        """The first token is there; the others are decoded."""
        cluster, request = self._cluster, self._trace[number]
        self.outcome.ttft[number] = cluster.events.now + cluster.config.link.rtt - request.arrival
        cluster.nodes[choice.decode].decode(
            request.prompt_tokens + 1, request.output_tokens - 1, partial(self._finish, number)
        )

    def _finish(self, number: int) -> None:
        now = self._cluster.events.now + self._cluster.config.link.rtt
        self.outcome.latency[number] = now - self._trace[number].arrival
        self._policy.finished(number)
