"""Routing rules of published systems, simplified to their formulas, and Skerry's own router.

All of them see the same exact, undelayed state, and all but Skerry know nothing of seconds. They
prefill and decode on one node, as the formulas were published for such nodes; on split pools the
decode node is the one with the fewest streams. Sources are named at each rule (read in 2026).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random

from msgspec.structs import replace

from bench.sim.cluster import Choice, Cluster
from bench.sim.node import SimNode
from bench.sim.traces import TraceRequest
from skerry_regions.routing.bookings import Booking
from skerry_regions.routing.placement import Demand, RouterConfig
from skerry_regions.routing.prefixes import NOTHING_CACHED, CachedPrefix
from skerry_regions.routing.router import Router
from skerry_regions.speeds import NodeSpeed, SpeedBook, StepSample
from skerry_regions.view import NodeState, View

Cached = Mapping[str, CachedPrefix]


class _Rule:
    """A rule that picks the prefill node; the decode node is the same one where it can be."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(self, request: TraceRequest, cached: Cached, cluster: Cluster) -> Choice:
        nodes = [node for node in cluster.nodes.values() if node.role != "decode"]
        chosen = self.pick(nodes, request, cached, cluster)
        if chosen.role == "hybrid":
            return Choice(chosen.name, chosen.name)
        decoders = [node for node in cluster.nodes.values() if node.role != "prefill"]
        return Choice(chosen.name, self.least(decoders, lambda node: node.num_active).name)

    def pick(
        self, nodes: Sequence[SimNode], request: TraceRequest, cached: Cached, cluster: Cluster
    ) -> SimNode:
        raise NotImplementedError

    def finished(self, request_id: int) -> None:
        """Rules look at the nodes themselves."""

    def measured(self, node: str, sample: StepSample) -> None:
        """Rules know nothing of seconds."""

    def least(self, nodes: Sequence[SimNode], cost: Callable[[SimNode], float]) -> SimNode:
        """The node of the least cost; ties at random."""
        costs = [cost(node) for node in nodes]
        lowest = min(costs)
        return self._rng.choice([n for n, c in zip(nodes, costs, strict=True) if c == lowest])


class RoundRobin(_Rule):
    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._count = 0

    def pick(
        self, nodes: Sequence[SimNode], request: TraceRequest, cached: Cached, cluster: Cluster
    ) -> SimNode:
        self._count += 1
        return nodes[self._count % len(nodes)]


class LeastRequests(_Rule):
    def pick(
        self, nodes: Sequence[SimNode], request: TraceRequest, cached: Cached, cluster: Cluster
    ) -> SimNode:
        return self.least(nodes, lambda node: node.num_active)


class LeastTokens(_Rule):
    """Fewest uncached prompt tokens outstanding."""

    def pick(
        self, nodes: Sequence[SimNode], request: TraceRequest, cached: Cached, cluster: Cluster
    ) -> SimNode:
        return self.least(nodes, lambda node: node.outstanding_tokens())


class LongestPrefix(_Rule):
    """The best match, ties by fewest requests. Dies where all prompts share a first block."""

    def pick(
        self, nodes: Sequence[SimNode], request: TraceRequest, cached: Cached, cluster: Cluster
    ) -> SimNode:
        best = max(_blocks(cached, node) for node in nodes)
        holders = [node for node in nodes if _blocks(cached, node) == best]
        return self.least(holders, lambda node: node.num_active)


class SGLangCacheAware(_Rule):
    """SMG cache_aware.rs: imbalanced (max-min > 32 and max > 1.1 min) → least loaded; else a match
    above half of the prompt → best match; else the smallest tree."""

    def pick(
        self, nodes: Sequence[SimNode], request: TraceRequest, cached: Cached, cluster: Cluster
    ) -> SimNode:
        loads = [node.num_active for node in nodes]
        if max(loads) - min(loads) > 32 and max(loads) > 1.1 * min(loads):
            return self.least(nodes, lambda node: node.num_active)
        best = max(_blocks(cached, node) for node in nodes)
        if best > 0.5 * max(len(request.blocks), 1):
            holders = [node for node in nodes if _blocks(cached, node) == best]
            return self.least(holders, lambda node: node.num_active)
        return self.least(nodes, lambda node: len(node.cache))


class DynamoTwoTier(_Rule):
    """Dynamo two_tier_cost_fn.rs: as SGLang's, but a miss goes to the least loaded node."""

    def pick(
        self, nodes: Sequence[SimNode], request: TraceRequest, cached: Cached, cluster: Cluster
    ) -> SimNode:
        loads = [node.num_active for node in nodes]
        best = max(_blocks(cached, node) for node in nodes)
        balanced = max(loads) - min(loads) <= 32 or max(loads) <= 1.1 * min(loads)
        if balanced and best > 0.5 * max(len(request.blocks), 1):
            nodes = [node for node in nodes if _blocks(cached, node) == best]
        return self.least(nodes, lambda node: node.num_active)


class Dynamo(_Rule):
    """Dynamo selector/default.rs: adjusted prefill blocks + decode blocks, in blocks of KV.

    `decay` is its option of predicted durations: what a running prefill has done no longer counts.
    """

    def __init__(self, rng: Random, *, decay: bool) -> None:
        super().__init__(rng)
        self._decay = decay

    def pick(
        self, nodes: Sequence[SimNode], request: TraceRequest, cached: Cached, cluster: Cluster
    ) -> SimNode:
        size = cluster.config.block_size

        def cost(node: SimNode) -> float:
            tokens = node.load().prefill_tokens if self._decay else node.outstanding_tokens()
            raw = (tokens + request.prompt_tokens) / size
            decode_blocks = node.context_tokens / size
            return max(raw - _blocks(cached, node), 0.0) + decode_blocks

        return self.least(nodes, cost)


class LlmD(_Rule):
    """llm-d scheduler defaults: prefix 3, queue 2, KV utilisation 2, each scored in [0, 1]."""

    def pick(
        self, nodes: Sequence[SimNode], request: TraceRequest, cached: Cached, cluster: Cluster
    ) -> SimNode:
        queues = [node.num_waiting for node in nodes]
        low, high = min(queues), max(queues)
        capacity = cluster.config.cache_blocks * cluster.config.block_size

        def cost(node: SimNode) -> float:
            prefix = _blocks(cached, node) / max(len(request.blocks), 1)
            queue = (high - node.num_waiting) / (high - low) if high > low else 1.0
            used = node.context_tokens + node.load().prefill_tokens
            return -(3 * prefix + 2 * queue + 2 * (1 - min(used / capacity, 1.0)))

        return self.least(nodes, cost)


class LlmDAffinity(_Rule):
    """llm-d prefix-cache-affinity filter: keep holders of 80 % of the prefix unless the best one's
    queue is predicted to add over 5 s at the calibrated peak; then the fewest tokens."""

    def pick(
        self, nodes: Sequence[SimNode], request: TraceRequest, cached: Cached, cluster: Cluster
    ) -> SimNode:
        wanted = 0.8 * len(request.blocks)
        holders = [node for node in nodes if 0 < wanted <= _blocks(cached, node)]
        peak = 1 / cluster.config.truth.per_token
        if holders:
            best = min(node.outstanding_tokens() for node in holders)
            if (best - min(n.outstanding_tokens() for n in nodes)) / peak <= 5.0:
                nodes = holders
        return self.least(nodes, lambda node: node.outstanding_tokens())


class AIBrix(_Rule):
    """AIBrix prefix_cache.go: spread > 16 → fewest requests; else by match, then requests, the
    first whose requests are within mean + 2 sigma."""

    def pick(
        self, nodes: Sequence[SimNode], request: TraceRequest, cached: Cached, cluster: Cluster
    ) -> SimNode:
        loads = [node.num_active for node in nodes]
        if max(loads) - min(loads) > 16:
            return self.least(nodes, lambda node: node.num_active)
        mean = sum(loads) / len(loads)
        sigma = math.sqrt(sum((load - mean) ** 2 for load in loads) / len(loads))
        order = sorted(nodes, key=lambda n: (-_blocks(cached, n), n.num_active, self._rng.random()))
        return next(node for node in order if node.num_active <= mean + 2 * sigma)


class PrebleE2(_Rule):
    """Preble (ICLR'25): exploit when more is cached than not: the least loaded best holder. Else
    explore: least of load in a window of 3 min + eviction cost + new prefill, in its seconds."""

    WINDOW = 180.0  # seconds

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._sent: dict[str, deque[tuple[float, float]]] = {}  # node → (time, seconds of work)
        self._load: dict[str, float] = {}

    def pick(
        self, nodes: Sequence[SimNode], request: TraceRequest, cached: Cached, cluster: Cluster
    ) -> SimNode:
        config, now = cluster.config, cluster.events.now
        truth, size = config.truth, config.block_size
        for node in nodes:
            self._forget(node.name, now)

        def load(node: SimNode) -> float:
            return self._load.get(node.name, 0.0)

        def missing(node: SimNode) -> float:
            held = min(_blocks(cached, node) * size, request.prompt_tokens - 1)
            return truth.prefill_seconds(request.prompt_tokens - held, held)

        def evicted(node: SimNode) -> float:
            """Seconds to recompute what must go, times the share of tokens that are ever hit."""
            new = len(request.blocks) - _blocks(cached, node)
            over = max(len(node.cache) + new - node.cache.capacity, 0)
            hits = 1 - node.computed_tokens / max(node.prompt_tokens, 1)
            return hits * over * size * truth.per_token

        best = max(_blocks(cached, node) for node in nodes)
        if 2 * best * size > request.prompt_tokens:
            holders = [node for node in nodes if _blocks(cached, node) == best]
            chosen = self.least(holders, load)
        else:
            chosen = self.least(nodes, lambda node: load(node) + evicted(node) + missing(node))
        work = missing(chosen) + request.output_tokens * truth.per_stream
        self._sent.setdefault(chosen.name, deque()).append((now, work))
        self._load[chosen.name] = load(chosen) + work
        return chosen

    def _forget(self, node: str, now: float) -> None:
        sent = self._sent.get(node)
        while sent and sent[0][0] < now - self.WINDOW:
            self._load[node] -= sent.popleft()[1]


class Skerry:
    """The router of `skerry_regions`. It fills unlike pools too: a decode node may prefill its own.

    Speeds are learned as it goes, from `prior`; with none it is an oracle that knows the truth.
    `report_seconds` makes node reports that old at worst; `narrow` leaves it only the choices
    that the published rules have: both phases on one hybrid node, or a prefill and a decode node,
    and no fetching from peers. No policy sees the real output length;
    this one expects 256 tokens.
    """

    def __init__(
        self,
        rng: Random,
        prior: NodeSpeed | None = None,
        *,
        config: RouterConfig | None = None,
        report_seconds: float = 0.0,
        narrow: bool = False,
    ) -> None:
        self._rng, self._prior = rng, prior
        self._narrow = narrow
        self._config = config or RouterConfig()
        self._report_seconds = report_seconds
        self._router: Router | None = None
        self._speeds = SpeedBook()
        self._bookings: list[Booking] = []
        self._view = View()
        self._reported_at = -math.inf

    def choose(self, request: TraceRequest, cached: Cached, cluster: Cluster) -> Choice:
        now, router = cluster.events.now, self._router or self._start(cluster)
        if now - self._reported_at >= self._report_seconds:
            self._view = self._observe(cluster, now)
            self._reported_at = now
        demand = Demand(
            model="m",
            origin="r",
            prompt_tokens=request.prompt_tokens,
            digests=request.blocks,
        )
        ranked = router.rank(self._view, demand, now=now)
        best = ranked[0]
        if self._narrow:
            best = next((placement for placement in ranked if placement.is_split), best)
        self._bookings.append(router.book(best, demand, now=now))
        if best.fetch is None:
            return Choice(best.prefill, best.decode)
        return Choice(best.prefill, best.decode, best.fetch.source, best.fetch.last)

    def finished(self, request_id: int) -> None:
        if self._router is not None:
            self._router.release(self._bookings[request_id])

    def measured(self, node: str, sample: StepSample) -> None:
        self._speeds.learn(node, sample)

    def speed(self, node: SimNode) -> NodeSpeed:
        """What it believes of a node now."""
        return self._speeds.speed(node.name) if self._prior else node.truth

    def _start(self, cluster: Cluster) -> Router:
        config = replace(self._config, block_size=cluster.config.block_size)
        if self._narrow:
            config = replace(config, num_peers=0, alternatives=len(cluster.nodes) ** 2)
        self._router = Router(cluster.directory, self._rng, config)
        if self._prior is not None:
            for name in cluster.nodes:
                self._speeds.add_node(name, "m", self._prior)
        return self._router

    def _observe(self, cluster: Cluster, now: float) -> View:
        return View(
            [
                NodeState(
                    id=node.name,
                    region="r",
                    residency="",
                    role="decode" if self._narrow and node.role == "hybrid" else node.role,
                    model="m",
                    numeric_build="b",
                    kv_format="k",
                    kv_bytes_per_token=cluster.config.kv_bytes_per_token,
                    cache_tokens=cluster.config.cache_blocks * cluster.config.block_size,
                    speed=self.speed(node),
                    load=node.load(),
                    observed_at=now,
                )
                for node in cluster.nodes.values()
            ],
            {("r", "r"): cluster.config.link},
        )


def _blocks(cached: Cached, node: SimNode) -> int:
    return cached.get(node.name, NOTHING_CACHED).blocks


RULES: dict[str, Callable[[Random], _Rule]] = {
    "round robin": RoundRobin,
    "least requests": LeastRequests,
    "least tokens": LeastTokens,
    "longest prefix": LongestPrefix,
    "SGLang cache-aware": SGLangCacheAware,
    "Dynamo two-tier": DynamoTwoTier,
    "Dynamo blocks": lambda rng: Dynamo(rng, decay=False),
    "Dynamo blocks, decayed": lambda rng: Dynamo(rng, decay=True),
    "llm-d 3:2:2": LlmD,
    "llm-d affinity filter": LlmDAffinity,
    "AIBrix prefix-cache": AIBrix,
    "Preble E2": PrebleE2,
}
