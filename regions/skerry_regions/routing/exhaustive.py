"""The cheapest placements in plain Python: what the compiled ranking means, and goes without numba.

All nodes are priced while there are few. When there are many, a sample: two random choices already
balance load (Mitzenmacher 2001), affinity is in the holders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random

from msgspec.structs import replace

from skerry_regions.routing.block_index import CachedPrefix
from skerry_regions.routing.bookings import Bookings
from skerry_regions.routing.costs import Costs, may_copy
from skerry_regions.routing.placement import Demand, Placement, RouterConfig
from skerry_regions.routing.prefixes import PrefixDirectory
from skerry_regions.routing.sessions import home_of, node_hash
from skerry_regions.routing.sides import (
    DecodeSide,
    Pair,
    PrefillSide,
    Surroundings,
    prompt_speed,
)
from skerry_regions.routing.traffic import Traffic
from skerry_regions.view import NodeState, View


class Exhaustive:
    """Prices by `Costs`."""

    def __init__(
        self, directory: PrefixDirectory, bookings: Bookings, rng: Random, config: RouterConfig
    ) -> None:
        self._directory, self._bookings = directory, bookings
        self._rng, self._config = rng, config

    def rank(
        self,
        view: View,
        demand: Demand,
        traffic: Traffic,
        told: Mapping[str, CachedPrefix],
        now: float,
    ) -> list[Placement]:
        """See `Router.rank`."""
        feasible = [node for node in view.nodes.values() if is_feasible(node, demand)]
        known = self._directory.match_all(demand.digests)
        cached = known | longer(known, told)
        sharing = [node for node in feasible if node.offers_prefill] or feasible
        home = home_of(demand.affinity, feasible, demand.origin)
        costs = Costs(
            self._config,
            view,
            demand,
            Surroundings(
                cached=cached,
                peers=self._peers(view, demand, now),
                stored_tokens={
                    node.id: self._directory.num_digests(node.id) * self._config.block_size
                    for node in feasible
                },
                arrivals_per_node=traffic.arrivals(now) / max(len(sharing), 1),
                mean_speed=sum(map(prompt_speed, sharing)) / max(len(sharing), 1),
                reuse=traffic.reuse,
                home=home,
            ),
        )
        priced = self._sample(feasible, cached, home)
        prefills, decodes = [], []
        for node in priced:
            load = self._bookings.load(node, view.link(demand.origin, node.region).rtt, now)
            prefills.append(costs.prefill(node, load))
            if node.can_decode or demand.any_role:
                decodes.append(costs.decode(node, load))
        ranked = self._cheapest_pairs(costs, prefills, decodes)
        if ranked:
            unpriced = _unpriced(view.nodes.values(), demand, len(feasible) - len(priced))
            ranked[0] = replace(ranked[0], unpriced=unpriced)
        return ranked

    def _peers(self, view: View, demand: Demand, now: float) -> list[tuple[NodeState, int]]:
        """Return the best holders and their blocks in memory: what they said, not what we expect.
        Of equal ones the idlest, which has the next step of its own soonest."""
        confirmed = self._directory.match_all(demand.digests, expected=False)

        def order(node: NodeState) -> tuple[int, float, int]:
            rtt = view.link(demand.origin, node.region).rtt
            busy_until = max(self._bookings.backlog(node, rtt).busy_until, now)
            return -confirmed[node.id].resident, busy_until, node_hash(node.id)

        holders = [
            node for id_ in confirmed if (node := view.nodes.get(id_)) and not node.is_region
        ]
        best = sorted(holders, key=order)[: self._config.num_peers]
        return [(node, confirmed[node.id].resident) for node in best]

    def _sample(
        self, nodes: list[NodeState], cached: Mapping[str, CachedPrefix], home: str | None
    ) -> list[NodeState]:
        """Return of few nodes all, of many some at random of each role, the best holders of the
        prefix, the session's home, and an edge of every other region."""
        config = self._config
        if config.candidates == "all" or len(nodes) <= config.exhaustive_nodes:
            return nodes
        count = config.sampled_nodes
        by_id = {node.id: node for node in nodes}
        held = sorted(cached.keys() & by_id.keys(), key=lambda id_: (-cached[id_].blocks, id_))
        chosen = {id_: by_id[id_] for id_ in held[:count]}
        if home is not None:
            chosen[home] = by_id[home]
        edges = [node for node in nodes if node.is_region]
        self._rng.shuffle(edges)
        one_each = {node.region: node for node in edges}
        chosen |= {node.id: node for node in one_each.values()}
        for role in ("prefill", "decode", "hybrid"):
            of_role = [node for node in nodes if node.role == role and not node.is_region]
            for node in self._rng.sample(of_role, min(count, len(of_role))):
                chosen[node.id] = node
        return list(chosen.values())

    def _cheapest_pairs(
        self, costs: Costs, prefills: list[PrefillSide], decodes: list[DecodeSide]
    ) -> list[Placement]:
        """Return pairs, best first: one node for both phases, then two.

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
    """The cheapest few pairs so far; foreign builds rank below all others."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ranked: list[tuple[tuple[bool, float, float], Pair]] = []

    def offer(self, pair: Pair, tie_break: float) -> None:
        key = (not pair.same_build, pair.seconds, tie_break)
        if len(self._ranked) == self._size and key > self._ranked[-1][0]:
            return
        self._ranked.append((key, pair))
        self._ranked.sort(key=lambda entry: entry[0])
        del self._ranked[self._size :]

    def beats(self, seconds: float) -> bool:
        """Return whether no pair that costs at least `seconds` can come in."""
        return len(self._ranked) == self._size and (False, seconds) > self._ranked[-1][0][:2]

    def pairs(self) -> list[Pair]:
        return [pair for _, pair in self._ranked]


def is_feasible(node: NodeState, demand: Demand) -> bool:
    """Return whether a request may run on a node at all."""
    return (
        node.model == demand.model
        and not node.draining
        and not node.away
        and node.id not in demand.exclude
        and demand.residency in (None, node.residency)
        and demand.only_region in (None, node.region)
    )


def longer(
    known: Mapping[str, CachedPrefix], told: Mapping[str, CachedPrefix]
) -> dict[str, CachedPrefix]:
    """Return, of what nodes reported, prefixes that are longer than what is known."""
    return {
        node: prefix
        for node, prefix in told.items()
        if node not in known or prefix.blocks > known[node].blocks
    }


def _unpriced(nodes: Iterable[NodeState], demand: Demand, left_out: int) -> dict[str, int]:
    """Count nodes that were not priced, by why."""
    why = Counter(
        "draining" if node.draining
        else "away" if node.away
        else "failed" if node.id in demand.exclude
        else "zone"
        for node in nodes
        if not is_feasible(node, demand)
    )  # fmt: skip
    return {"index": left_out, **why}
