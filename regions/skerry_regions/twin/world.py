"""A scenario's world: its tables, and what changes in them from outside the event loop."""

from __future__ import annotations

from typing import Any

import numpy as np

from skerry_regions.routing.fast import arrays
from skerry_regions.routing.fast.compiled import Floats, UInt64s
from skerry_regions.speeds import NodeSpeed
from skerry_regions.twin.kernel import state
from skerry_regions.twin.kernel.caches import mark_own
from skerry_regions.twin.kernel.entries import push_event, touch_slot
from skerry_regions.twin.scenario import Scenario
from skerry_regions.twin.tables import ROLES, Layout, law_row
from skerry_regions.twin.ways import Ways
from skerry_regions.twin.workload import Workload

LEAST_ROOM = 1 << 15  # more than one event of the loop adds (`loop.ROOM`)


class Built(Layout):
    """A world, and what Python keeps beside it."""

    def __init__(
        self, scenario: Scenario, workload: Workload, ways: Ways, *, placement: int | None = None
    ) -> None:
        """`placement`: instead of the scenario's."""
        super().__init__(scenario, workload, ways)
        self._wanted: set[int] = set()  # nodes that are to compute,
        self._broken: set[int] = set()  # and those that cannot
        self._apart: set[frozenset[int]] = set()  # pairs of regions with no way between them
        self.world = state.World(
            requests=workload.requests(self.base_way(workload)),
            names=_marked(workload.names),
            nodes=self.nodes(self.num_slots_used),
            caches=self.caches(),
            edges=self.edges(),
            rows=self.rows(),
            regions=self.regions(),
            clock=self.clock(),
            settings=self.settings(placement),
            index=self.index.arrays,
            weights=self.weights(),
            scratch=arrays.make_scratch(
                self.num_slots, arrays.MAX_CANDIDATES, 4, self.rng.getrandbits(62)
            ),
        )

    def begin(self) -> None:
        """Have nodes and edges know each other, and report from now on."""
        self.grow()
        for slot in range(self.num_nodes):
            self.set_up(slot, slot - self.first_of_pool(slot) < self.pools[slot].replicas)
        self.mark_regions()
        self._schedule()

    # ── what changes from outside ───────────────────────────────────────────────────────────────

    def set_up(self, slot: int, is_up: bool) -> None:
        """Have a node compute, as soon as it is whole, or not."""
        (self._wanted.add if is_up else self._wanted.discard)(slot)
        is_up &= slot not in self._broken
        self.world.nodes.up[slot] = is_up
        self.mark(slot, is_up)

    def break_down(self, slot: int) -> None:
        """Have a node compute nothing from now on, whatever is wanted of it."""
        nodes = self.world.nodes
        self._broken.add(slot)
        nodes.up[slot] = 0
        if nodes.step_id[slot] & 1:  # the step that runs never ends
            nodes.step_id[slot] += 1

    def repair(self, slot: int) -> None:
        """Have a node compute again, if it is still wanted."""
        self._broken.discard(slot)
        if slot in self._wanted:
            self.set_up(slot, True)

    def mark(self, slot: int, is_open: bool) -> None:
        """Have edges of its region believe that a node takes streams, or does not."""
        region = int(self.world.nodes.region[slot])
        self.world.rows.marks[region, slot] = self._marks(slot, region, is_open)
        touch_slot(self.world, region, slot)

    def part(self, one: int, other: int) -> None:
        """Cut the way between two regions: edges of neither believe that the other is open."""
        self._apart.add(frozenset((one, other)))
        self.mark_regions()

    def reunite(self, one: int, other: int) -> None:
        """Restore the way between two regions."""
        self._apart.discard(frozenset((one, other)))
        self.mark_regions()

    def mark_regions(self) -> None:
        """Have edges believe of other regions what there is to believe: those with a node that
        decodes take streams, where there is a way to them."""
        rows, nodes = self.world.rows, self.world.nodes
        for region in range(len(self.scenario.regions)):
            for other in range(len(self.scenario.regions)):
                slots = slice(*edges_of(self.world.regions.first_slot, other))
                flags = rows.marks[other, slots, arrays.FLAGS]
                live = rows.marks[other, slots, arrays.LIVE] == 1
                decodes = nodes.role[slots] != arrays.PREFILL
                is_open = bool((live & decodes & (flags & arrays.CLOSED == 0)).any())
                slot = self.num_nodes + other
                is_open &= frozenset((region, other)) not in self._apart
                rows.marks[region, slot] = (
                    0 if other == region else 1, arrays.DECODE, other, 0, 0, 0,
                    arrays.IS_REGION | (0 if is_open else arrays.CLOSED),
                )  # fmt: skip
                touch_slot(self.world, region, slot)
            own = slice(*edges_of(self.world.regions.first_slot, region))
            up = rows.marks[region, own, arrays.LIVE] == 1
            offers = up & (nodes.role[own] != arrays.DECODE)
            total = int(up.sum()) + len(self.scenario.regions) - 1
            rows.counts[region] = (
                self.num_slots_used,
                len(self.scenario.regions) - 1,
                max(int(offers.sum()) or total, 1),
            )

    @property
    def crossed(self) -> Floats:
        """Return the bytes that went from each region to each."""
        count = len(self.scenario.regions)
        return np.asarray(self.world.regions.crossed)[:count, :count]

    def forget_blocks(self, slot: int) -> None:
        """Empty a node's cache, and forget what it held."""
        caches, regions = self.world.caches, self.world.regions
        region = int(self.world.nodes.region[slot])
        held = caches.names[slot, 1 : int(caches.counts[slot, 0]) + 1]
        held = held[held & state.OWN == 0]
        told = int(regions.num_news[region])  # to others, with the next summary
        room = regions.news.shape[1] - told
        regions.news[region, told : told + min(len(held), room)] = held[:room]
        regions.num_news[region] = told + min(len(held), room)
        caches.keys[slot] = 0
        caches.counts[slot, 0] = caches.newer[slot, 0] = caches.older[slot, 0] = 0
        self.world.nodes.num_news[slot] = self.world.nodes.own_news[slot] = 0
        self.index.clear(slot)

    def believe(self, slot: int, speed: NodeSpeed) -> None:
        """Have edges think that a node is so fast."""
        pool, nodes = self.pools[slot], self.world.nodes
        nodes.believed[slot] = law_row(speed, pool)
        nodes.version[slot] += 1

    def grow(self) -> None:
        """Make more room for what the loop adds to."""
        self.index.arrays = self.world.index
        self.index.make_room(max(LEAST_ROOM, len(self.index.arrays.told.keys) // 2))
        clock = self.world.clock
        if 2 * int(clock.length[0]) > len(clock.events.times):
            events = state.make_table(state.ComingEvents, 2 * len(clock.events.times))
            np.asarray(events)[: len(clock.events.times)] = clock.events
            clock = clock._replace(events=events)
        self.world = self.world._replace(index=self.index.arrays, clock=clock)

    def _marks(self, slot: int, region: int, is_open: bool) -> tuple[int, ...]:
        flags = arrays.TAKES_KV | (0 if is_open else arrays.CLOSED)
        role = ROLES[self.pools[slot].role]
        if role == arrays.HYBRID and not self.scenario.router.split:
            role = arrays.DECODE
        return (1 if is_open else 0, role, region, 0, 0, 0, flags)

    def _schedule(self) -> None:
        """Have nodes report and regions say how they do, each at its own phase."""
        router, clock = self.scenario.router, self.world.clock
        for slot in range(self.num_nodes):
            at = self.rng.random() * router.report_seconds
            push_event(clock, at, state.REPORT, slot, 0)
        if len(self.scenario.regions) > 1:
            for region in range(len(self.scenario.regions)):
                at = self.rng.random() * router.summary_seconds
                push_event(clock, at, state.SUMMARY, region, 0)


def _marked(names: UInt64s) -> UInt64s:
    marked, room = names.copy(), 1 << (2 * len(names) + 1).bit_length()
    mark_own(marked, np.zeros(room, np.uint64), np.zeros(room, np.uint8))
    return marked


def edges_of(firsts: Any, number: int) -> tuple[int, int]:
    """Return where a region's slots or edges begin and end."""
    return int(firsts[number]), int(firsts[number + 1])
