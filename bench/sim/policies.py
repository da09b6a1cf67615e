"""Routing rules of published systems, simplified to their formulas.

All of them see the same exact, undelayed state, and know nothing of seconds. They prefill and
decode on one node, as the formulas were published for such nodes; on split pools the decode node
is the one with the fewest streams. Sources are named at each rule (read in 2026).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random

from bench.sim.cluster import Choice, Cluster
from bench.sim.node import SimNode
from bench.sim.traces import TraceRequest
from skerry_regions.routing.block_index import NOTHING_CACHED, CachedPrefix
from skerry_regions.speeds import StepSample

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
