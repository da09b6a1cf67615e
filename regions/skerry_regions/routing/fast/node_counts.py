"""How many nodes may take a request, and which stand for other regions, without a look at each."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import zip_longest

from skerry_regions.routing.fast.arrays import Rows
from skerry_regions.routing.placement import Demand
from skerry_regions.routing.sides import prompt_speed
from skerry_regions.view import NodeState


class NodeCounts:
    """Counts of open nodes by zone, region and whether they prefill for everybody; of others by
    why they are closed."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeState] = {}  # as they stand in these counts
        self._open: Counter[tuple[str, str, bool]] = Counter()
        self._closed: Counter[str] = Counter()
        self._speeds: dict[str, float] = {}  # of each, and of the open ones together
        self._open_speeds: defaultdict[tuple[str, str, bool], float] = defaultdict(float)

    def __len__(self) -> int:
        """Return the number of nodes, open or closed."""
        return len(self._nodes)

    def put(self, node: NodeState) -> None:
        """Count a node as it is now, in place of how it was."""
        self.remove(node.id)
        self._nodes[node.id] = node
        self._speeds[node.id] = prompt_speed(node)
        self._add(node, 1)

    def remove(self, node_id: str) -> None:
        """Count a node no more, if it was."""
        if (node := self._nodes.pop(node_id, None)) is not None:
            self._add(node, -1)
            del self._speeds[node_id]

    def follow(self, node: NodeState) -> None:
        """Count a node as fast as it is now."""
        speed, before = prompt_speed(node), self._speeds[node.id]
        if speed == before:
            return
        self._speeds[node.id] = speed
        counted = self._nodes[node.id]
        if not (counted.draining or counted.away):  # speeds are such that sums of them are exact
            self._open_speeds[_key(counted)] += speed - before

    def sharing(self, demand: Demand) -> tuple[int, int, float, dict[str, int]]:
        """Count nodes that may take a request: those that prefill for everybody, and all; the
        prompt tokens that the former (if there are none, all) compute in a second; and those that
        may not, by why."""
        offering = total = outside = failed = 0
        speeds = [0.0, 0.0]  # of all, and of those that prefill for everybody
        for key, count in self._open.items():
            zone, region, offers = key
            if demand.residency in (None, zone) and demand.only_region in (None, region):
                offering += count if offers else 0
                total += count
                speeds[0] += self._open_speeds[key]
                speeds[1] += self._open_speeds[key] * offers
            else:
                outside += count
        for id_ in demand.exclude:
            node = self._nodes.get(id_)
            if node is None or node.draining or node.away:
                continue
            failed += 1
            if demand.residency in (None, node.residency) and (
                demand.only_region in (None, node.region)
            ):
                offering -= node.offers_prefill
                total -= 1
                speeds[0] -= self._speeds[id_]
                speeds[1] -= self._speeds[id_] * node.offers_prefill
            else:
                outside -= 1
        speed = speeds[1] if offering else speeds[0]
        return offering, total, speed, {"zone": outside, "failed": failed, **self._closed}

    def _add(self, node: NodeState, number: int) -> None:
        if node.draining or node.away:
            self._closed["draining" if node.draining else "away"] += number
        else:
            key = _key(node)
            self._open[key] += number
            self._open_speeds[key] += number * self._speeds[node.id]


def _key(node: NodeState) -> tuple[str, str, bool]:
    return node.residency, node.region, node.offers_prefill


class RegionEdges:
    """The slots of other regions' edges, each of which stands for its region."""

    def __init__(self) -> None:
        self._regions: dict[int, str] = {}  # by slot
        self._is_changed = False

    def put(self, slot: int, region: str) -> None:
        """Count in an edge."""
        self._regions[slot] = region
        self._is_changed = True

    def remove(self, slot: int) -> None:
        """Count an edge no more, if it was one."""
        self._is_changed |= self._regions.pop(slot, None) is not None

    def write(self, rows: Rows) -> None:
        """Write them down when they changed: an edge of each region, then another one of each."""
        if not self._is_changed:
            return
        self._is_changed = False
        by_region: dict[str, list[int]] = {}
        for slot, region in self._regions.items():
            by_region.setdefault(region, []).append(slot)
        turns = zip_longest(*by_region.values())
        slots = [slot for turn in turns for slot in turn if slot is not None]
        kept = slots[: len(rows.regions)]
        rows.regions[: len(kept)] = kept
        rows.counts[1] = len(kept)
