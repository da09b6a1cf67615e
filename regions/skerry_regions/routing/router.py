"""Which placement a request gets: the cheapest, by the seconds of `skerry_regions.routing.costs`.

The router looks at all pairs of nodes while there are few, and at a sample when there are many;
it keeps two small memories of its own: what it has sent where since the nodes last reported
(`Bookings`), and how often requests come and find their prefix cached.

Pure: view, time and randomness are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType

from skerry_regions.routing.bookings import Booking, Bookings, CurrentLoad
from skerry_regions.routing.costs import (
    Costs,
    DecodeSide,
    Pair,
    PrefillSide,
    Surroundings,
    may_copy,
)
from skerry_regions.routing.placement import Demand, Placement, RouterConfig
from skerry_regions.routing.prefixes import (
    NOTHING_CACHED,
    CachedPrefix,
    PrefixDirectory,
    longest_matches,
)
from skerry_regions.routing.sessions import home_of
from skerry_regions.view import NodeState, View

NOTHING_TOLD: Mapping[str, CachedPrefix] = MappingProxyType({})


class Router:
    """Ranks placements; remembers what it sent where. One per edge; not thread-safe."""

    def __init__(
        self, directory: PrefixDirectory, rng: Random, config: RouterConfig | None = None
    ) -> None:
        self._directory, self._rng = directory, rng
        self._config = config or RouterConfig()
        self._bookings = Bookings(self._config.booking_seconds, self._config.max_bookings)
        self._traffic: dict[str, _Traffic] = {}  # by model

    def rank(
        self,
        view: View,
        demand: Demand,
        *,
        now: float,
        told: Mapping[str, CachedPrefix] = NOTHING_TOLD,
    ) -> list[Placement]:
        """The best placements, cheapest first; empty when none is possible.

        `told` is what is known of caches beside the directory of blocks, by node.

        Suspect nodes and foreign builds come after everything else. Never leaves the residency.
        """
        self._bookings.expire(now)
        self._directory.expire(now)
        feasible = [node for node in view.nodes.values() if _feasible(node, demand)]
        cached = _longest(self._directory.match_all(demand.digests), told)
        traffic = self._of(demand.model)
        home = home_of(demand.affinity, feasible, demand.origin)
        costs = Costs(
            self._config,
            view,
            demand,
            Surroundings(
                cached=cached,
                peers=self._peers(view, demand),
                stored_tokens={
                    node.id: self._directory.num_digests(node.id) * self._config.block_size
                    for node in feasible
                },
                arrivals_per_node=traffic.arrivals(now) / max(_num_sharing(feasible), 1),
                reuse=traffic.reuse,
                home=home,
            ),
        )
        prefills, decodes = [], []
        for node in self._sample(feasible, cached, home):
            load = self.load(view, node, demand.origin, now=now)
            prefills.append(costs.prefill(node, load))
            if node.can_decode:
                decodes.append(costs.decode(node, load))
        return self._cheapest_pairs(costs, prefills, decodes)

    def load(self, view: View, node: NodeState, origin: str, *, now: float) -> CurrentLoad:
        """What a request sent now from region `origin` will find on a node."""
        return self._bookings.load(node, view.link(origin, node.region).rtt, now)

    def book(self, placement: Placement, demand: Demand, *, now: float) -> Booking:
        """Count this request on its nodes until they report it themselves, or it is released."""
        self._of(demand.model).count(now, demand.prompt_tokens, placement.cached_tokens)
        for node in {placement.prefill, placement.decode}:
            self._directory.expect(node, demand.digests, now)
        return self._bookings.add(placement, demand, now)

    def release(self, booking: Booking) -> None:
        """The request has ended or moved. Idempotent."""
        self._bookings.release(booking)

    def _of(self, model: str) -> _Traffic:
        config = self._config
        return self._traffic.setdefault(model, _Traffic(config.rate_seconds, config.reuse_tokens))

    def _peers(self, view: View, demand: Demand) -> list[tuple[NodeState, int]]:
        """Best holders and their blocks in memory: what they said, not what we expect."""
        confirmed = self._directory.match_all(demand.digests, expected=False)
        present = {id_: hit for id_, hit in confirmed.items() if id_ in view.nodes}
        best = longest_matches(present, self._config.num_peers)
        return [(view.nodes[id_], present[id_].resident) for id_ in best]

    def _sample(
        self, nodes: list[NodeState], cached: Mapping[str, CachedPrefix], home: str | None
    ) -> list[NodeState]:
        """Few nodes: all. Many: some at random of each role, the best holders of the prefix, the
        session's home, and every other region.

        Two random choices already balance load (Mitzenmacher 2001); affinity is in the holders.
        """
        if len(nodes) <= self._config.exhaustive_nodes:
            return nodes
        count = self._config.sampled_nodes
        by_id = {node.id: node for node in nodes}
        held = {id_: hit for id_, hit in cached.items() if id_ in by_id}
        chosen = {id_: by_id[id_] for id_ in longest_matches(held, count)}
        if home is not None:
            chosen[home] = by_id[home]
        chosen |= {node.id: node for node in nodes if node.is_region}
        for role in ("prefill", "decode", "hybrid"):
            of_role = [node for node in nodes if node.role == role and not node.is_region]
            for node in self._rng.sample(of_role, min(count, len(of_role))):
                chosen[node.id] = node
        return list(chosen.values())

    def _cheapest_pairs(
        self, costs: Costs, prefills: list[PrefillSide], decodes: list[DecodeSide]
    ) -> list[Placement]:
        """Best first over pairs: one node for both phases, then two.

        Two nodes cost at least their two sides and half a round trip between them. Sides are
        sorted, so once that exceeds the worst kept pair, the rest need not be looked at.
        """
        best = _Best(self._config.alternatives)
        by_node = {side.node.id: side for side in prefills}
        for decode in decodes:
            best.offer(costs.pair(by_node[decode.node.id], decode), self._rng.random())
        offering = [side for side in prefills if side.node.offers_prefill]
        offering.sort(key=lambda side: side.seconds)
        decodes.sort(key=lambda side: side.seconds)
        apart = costs.least_handover(offering, decodes)
        for decode in decodes:
            for prefill in offering:
                if best.beats(prefill.seconds + decode.seconds + apart):
                    break
                if prefill.node.id != decode.node.id and may_copy(
                    prefill.node, decode.node, costs.demand
                ):
                    best.offer(costs.pair(prefill, decode), self._rng.random())
        return [pair.placement() for pair in best.pairs()]


class _Best:
    """The cheapest few pairs so far; suspects and foreign builds rank below all others."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ranked: list[tuple[tuple[int, float, float], Pair]] = []

    def offer(self, pair: Pair, tie_break: float) -> None:
        key = (_last_resort(pair), pair.seconds, tie_break)
        if len(self._ranked) == self._size and key > self._ranked[-1][0]:
            return
        self._ranked.append((key, pair))
        self._ranked.sort(key=lambda entry: entry[0])
        del self._ranked[self._size :]

    def beats(self, seconds: float) -> bool:
        """Whether no pair that costs at least `seconds` can come in."""
        return len(self._ranked) == self._size and (0, seconds) > self._ranked[-1][0][:2]

    def pairs(self) -> list[Pair]:
        return [pair for _, pair in self._ranked]


class _Traffic:
    """How often requests for one model come, and how often they find a stored token again."""

    def __init__(self, rate_seconds: float, reuse_tokens: float) -> None:
        self._rate_seconds, self._reuse_tokens = rate_seconds, reuse_tokens
        self._rate = 0.0  # arrivals per second, as of `_at`
        self._at = -math.inf
        self._cached = self._new = 0.0  # tokens, fading

    def count(self, now: float, prompt_tokens: int, cached_tokens: int) -> None:
        self._rate = self.arrivals(now) + 1 / self._rate_seconds
        self._at = now
        keep = math.exp(-prompt_tokens / self._reuse_tokens)
        self._cached = self._cached * keep + cached_tokens
        self._new = self._new * keep + prompt_tokens - cached_tokens

    def arrivals(self, now: float) -> float:
        """Per second, with exponential forgetting."""
        return self._rate * math.exp(-max(0.0, now - self._at) / self._rate_seconds)

    @property
    def reuse(self) -> float:
        """Times that a token, once stored, is found in a cache."""
        return self._cached / self._new if self._new else 0.0


def _longest(
    known: dict[str, CachedPrefix], told: Mapping[str, CachedPrefix]
) -> dict[str, CachedPrefix]:
    """By node, the longer of two prefixes."""
    better = {
        node: prefix
        for node, prefix in told.items()
        if prefix.blocks > known.get(node, NOTHING_CACHED).blocks
    }
    return known | better


def _num_sharing(nodes: Sequence[NodeState]) -> int:
    """Nodes that prefill for everybody, or if there are none, all."""
    return sum(node.offers_prefill for node in nodes) or len(nodes)


def _feasible(node: NodeState, demand: Demand) -> bool:
    return (
        node.model == demand.model
        and not node.draining
        and node.id not in demand.exclude
        and demand.residency in (None, node.residency)
    )


def _last_resort(pair: Pair) -> int:
    """0: normal. 1: leaves the transcript's build. 2: needs a suspect node. Beats any cost."""
    if pair.prefill.node.suspect or pair.decode.node.suspect:
        return 2
    return 0 if pair.same_build else 1
