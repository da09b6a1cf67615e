"""A view as rows, kept up to date by what changes in it, and rankings of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import numpy as np
from msgspec.structs import replace

from skerry_regions.routing.block_index import CachedPrefix
from skerry_regions.routing.bookings import Bookings
from skerry_regions.routing.fast import arrays
from skerry_regions.routing.fast.arrays import (
    NOBODY,
    SEVERAL,
    TERMS,
    Ask,
    Rows,
    Weights,
    make_rows,
    make_scratch,
)
from skerry_regions.routing.fast.codes import Codes
from skerry_regions.routing.fast.index import CompiledIndex, names_of
from skerry_regions.routing.fast.laws import NUM_COLUMNS
from skerry_regions.routing.fast.node_counts import NodeCounts, RegionEdges
from skerry_regions.routing.fast.ranking import rank
from skerry_regions.routing.fast.rows import write_row
from skerry_regions.routing.placement import Demand, Fetch, Placement, RouterConfig
from skerry_regions.routing.prefixes import PrefixDirectory
from skerry_regions.routing.sessions import node_hash, session_hash
from skerry_regions.routing.sides import lineage
from skerry_regions.routing.traffic import Traffic
from skerry_regions.view import NodeState, View

MAX_REGIONS = 64
SEED_MASK = (1 << 63) - 1
ROLES = {"prefill": arrays.PREFILL, "decode": arrays.DECODE, "hybrid": arrays.HYBRID}
NO_SLOTS = np.zeros(0, np.int64)
NOTHING_TOLD = np.zeros((0, 2), np.int64)


class NodeTable:
    """`ViewWatcher`: one view, as a request from region `origin` finds it."""

    def __init__(
        self,
        view: View,
        origin: str,
        directory: PrefixDirectory,
        bookings: Bookings,
        config: RouterConfig,
    ) -> None:
        index = directory.index
        assert isinstance(index, CompiledIndex)
        self._index = index
        self._view, self._origin = view, origin
        self._directory, self._bookings, self._config = directory, bookings, config
        self._rows: Rows = make_rows(index.num_slots, 4)
        self._ids: dict[int, str] = {}  # by slot
        self._words: dict[int, tuple[str | bool, ...]] = {}  # by slot: what its marks say
        self._slots: dict[str, int] = {}
        self._regions, self._zones = Codes(), Codes()
        self._builds, self._formats = Codes(), Codes()
        self._counts, self._edges = NodeCounts(), RegionEdges()
        self._numbers = np.zeros(NUM_COLUMNS)
        self._weights = Weights(
            block_size=float(config.block_size),
            decode=config.decode_weight,
            behind=config.behind_weight,
            evict=config.evict_weight,
            affinity_seconds=config.affinity_seconds,
            num_sources=min(config.num_peers, arrays.MAX_SOURCES),
            num_holders=config.num_holders,
            num_least=config.num_least,
            num_random=config.num_random,
        )
        self.seed(1)
        self._region(origin)
        for node in view.nodes:
            self.node_changed(node)
        view.watch(self)

    def seed(self, seed: int) -> None:
        """Start the randomness of ties and samples."""
        candidates = arrays.MAX_CANDIDATES
        if self._config.candidates == "all":
            candidates = max(candidates, self._index.num_slots)
        self._scratch = make_scratch(
            self._index.num_slots, candidates, self._config.alternatives, seed
        )

    def serves(self, demand: Demand) -> bool:
        """Return whether the rows are what this request would find."""
        return demand.origin == self._origin and len(self._regions) <= MAX_REGIONS

    # ── what changes ────────────────────────────────────────────────────────────────────────────

    def node_changed(self, node_id: str) -> None:
        """See `ViewWatcher`."""
        node, slot = self._view.nodes[node_id], self._slots.get(node_id)
        if slot is None:
            if (slot := self._directory.slot(node_id)) is None:
                return
            self._index.reserve(slot)
            self._grow()
            self._slots[node_id], self._ids[slot] = slot, node_id
            self._rows.counts[0] = max(self._rows.counts[0], slot + 1)
            self._rows.hashes[slot] = node_hash(node_id)
            if node.is_region:
                self._edges.put(slot, node.region)
        words = (
            node.role, node.region, node.residency, node.numeric_build, node.kv_format,
            node.draining, node.away, node.takes_kv,
        )  # fmt: skip
        if self._words.get(slot) != words:  # a report changes none of them
            self._words[slot] = words
            self._mark(slot, node)
        self._write(slot, node)

    def node_removed(self, node_id: str) -> None:
        """See `ViewWatcher`."""
        if (slot := self._slots.pop(node_id, None)) is None:
            return
        self._counts.remove(node_id)
        del self._ids[slot], self._words[slot]
        self._rows.marks[slot] = 0
        write_row(self._rows, slot, self._rows.numbers[slot], self._weights.decode)
        self._edges.remove(slot)

    def link_changed(self, source: str, target: str) -> None:
        """See `ViewWatcher`."""
        if source in self._regions and target in self._regions:
            self._write_link(source, target)

    def load_changed(self, node_id: str) -> None:
        """Take in that a node's bookings are others than before."""
        if (slot := self._slots.get(node_id)) is not None:
            self._write(slot, self._view.nodes[node_id])

    def _grow(self) -> None:
        """Have a row for each slot of the index."""
        if len(self._rows.marks) == self._index.num_slots:
            return
        old = self._rows
        self._rows = make_rows(self._index.num_slots, 1)._replace(
            rtts=old.rtts, bandwidths=old.bandwidths, regions=old.regions, counts=old.counts
        )
        slots = len(old.marks)
        self._rows.marks[:slots], self._rows.hashes[:slots] = old.marks, old.hashes
        for slot in self._ids:
            write_row(self._rows, slot, old.numbers[slot], self._weights.decode)
        self.seed(int(self._scratch.random[0]) & SEED_MASK)

    def _mark(self, slot: int, node: NodeState) -> None:
        flags = arrays.CLOSED if node.draining or node.away else 0
        flags |= arrays.TAKES_KV if node.takes_kv else 0
        flags |= arrays.IS_REGION if node.is_region else 0
        self._rows.marks[slot] = (
            1,
            ROLES[node.role],
            self._region(node.region),
            self._zones.of(node.residency),
            self._builds.of(node.numeric_build),
            self._formats.of(node.kv_format),
            flags,
        )
        self._counts.put(node)

    def _write(self, slot: int, node: NodeState) -> None:
        speed, load = node.speed, node.load
        self._counts.follow(node)
        rtt = self._view.link(self._origin, node.region).rtt
        backlog = self._bookings.backlog(node, rtt)
        self._numbers[:] = (
            *speed.coefficients,
            speed.chunk_tokens,
            speed.gap_seconds,
            backlog.busy_until,
            backlog.streams,
            backlog.context,
            inf if backlog.free_tokens is None else backlog.free_tokens,
            load.prefill_tokens,
            load.streams,
            load.context_tokens,
            node.kv_bytes_per_token,
            inf if node.cache_tokens is None else node.cache_tokens,
            node.file_bandwidth,
            node.handover_lag,
        )
        write_row(self._rows, slot, self._numbers, self._weights.decode)

    def _region(self, word: str) -> int:
        """Return the number of a region, whose links are written down the first time."""
        known = len(self._regions)
        code = self._regions.of(word)
        if code == known and code < MAX_REGIONS:
            if code >= len(self._rows.rtts):
                size = 2 * len(self._rows.rtts)
                self._rows = self._rows._replace(
                    rtts=np.zeros((size, size)), bandwidths=np.ones((size, size))
                )
            for source in self._regions:
                for target in self._regions:
                    self._write_link(source, target)
        return min(code, MAX_REGIONS - 1)

    def _write_link(self, source: str, target: str) -> None:
        a, b = self._regions[source], self._regions[target]
        if max(a, b) < len(self._rows.rtts):
            link = self._view.link(source, target)
            self._rows.rtts[a, b] = self._rows.rtts[b, a] = link.rtt
            self._rows.bandwidths[a, b] = self._rows.bandwidths[b, a] = link.bandwidth

    # ── rankings ────────────────────────────────────────────────────────────────────────────────

    def rank(
        self, demand: Demand, traffic: Traffic, told: Mapping[str, CachedPrefix], now: float
    ) -> list[Placement]:
        """See `Router.rank`."""
        if not self._counts:
            return []
        self._grow()  # nodes of other models are in the index, too
        self._edges.write(self._rows)
        offering, total, speed, outside = self._counts.sharing(demand)
        sharing = max(offering or total, 1)
        config = self._config
        is_indexed = config.candidates == "indexed" and total > config.exhaustive_nodes
        builds = demand.numeric_builds
        before = self._builds.get(next(iter(builds)), SEVERAL) if len(builds) == 1 else SEVERAL
        ask = Ask(
            now=now,
            prompt_tokens=float(demand.prompt_tokens),
            output_tokens=float(demand.output_tokens),
            arrivals=traffic.arrivals(now) / sharing,
            mean_speed=speed / sharing,
            reuse=traffic.reuse,
            origin=self._regions[demand.origin],
            only_region=self._regions.find(demand.only_region),
            residency=self._zones.find(demand.residency),
            before=before if builds else NOBODY,
            mixed_builds=demand.mixed_builds,
            any_role=demand.any_role,
            affinity=np.uint64(session_hash(demand.affinity) if demand.affinity else 0),
            indexed=is_indexed,
        )
        slots = self._slots
        excluded = NO_SLOTS
        if demand.exclude:
            excluded = np.array([slots[id_] for id_ in demand.exclude if id_ in slots], np.int64)
        longer = NOTHING_TOLD
        if told:
            pairs = [(slots[id_], each.blocks) for id_, each in told.items() if id_ in slots]
            longer = np.array(pairs, np.int64).reshape(-1, 2)
        scratch = self._scratch
        count = rank(
            self._rows, self._index.arrays, ask, self._weights, names_of(demand.digests),
            excluded, longer, scratch,
        )  # fmt: skip
        chosen, terms = scratch.chosen[:count].tolist(), scratch.terms[:count].tolist()
        ranked = [
            self._placement(numbers, seconds, demand)
            for numbers, seconds in zip(chosen, terms, strict=True)
        ]
        if ranked:
            why = {"index": total - int(scratch.found[0]), **outside}
            ranked[0] = replace(ranked[0], unpriced=why)
        return ranked

    def _placement(self, chosen: list[int], terms: list[float], demand: Demand) -> Placement:
        prefill_slot, decode_slot, cached, source, first, last = chosen
        prefill, decode = self._ids[prefill_slot], self._ids[decode_slot]
        nodes = self._view.nodes
        same_build, is_exact, is_mixed = lineage(
            demand.numeric_builds, nodes[prefill], nodes[decode]
        )
        fetch = None
        if source != NOBODY:
            fetch = Fetch(source=self._ids[source], first=first, last=last)
        return Placement(
            prefill=prefill,
            decode=decode,
            fetch=fetch,
            cached_tokens=cached,
            terms=dict(zip(TERMS, terms, strict=True)),
            seconds=sum(terms),
            same_build=same_build,
            is_exact=is_exact,
            is_mixed=is_mixed,
        )
