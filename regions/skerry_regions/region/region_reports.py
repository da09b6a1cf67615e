"""What an edge tells those of other regions about the nodes of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from skerry_regions.digests import BLOCK_SIZE
from skerry_regions.prefix_filter import MAX_NAMES, PrefixFilter
from skerry_regions.region.placer import Routed
from skerry_regions.routing.bookings import CurrentLoad
from skerry_regions.routing.summaries import summarise
from skerry_regions.view import NodeLoad, NodeState
from skerry_regions.wire.protocol import Report

SUMMARY_SECONDS = 0.5  # between summaries
FILTER_SECONDS = 2.0  # between filters, which take milliseconds to make


class RegionReports:
    """Makes a summary of each model, whenever it is called. See `summaries`."""

    def __init__(self, placer: Routed, models: Iterable[str], incarnation: int) -> None:
        """`incarnation` is the edge's."""
        self._placer = placer
        self._models = list(models)
        self._incarnation = incarnation
        self._seq = itertools.count(1)
        self._filters: dict[str, tuple[float, PrefixFilter]] = {}  # by model: when, what

    def __call__(self) -> list[Report]:
        seq = next(self._seq)
        return [self._report(model, seq) for model in self._models]

    def _report(self, model: str, seq: int) -> Report:
        nodes = self._placer.loads_here(model)
        seen = self._placer.observations
        summary = summarise(
            nodes,
            self._hot(model, nodes),
            incarnation=self._incarnation,
            seq=seq,
            stored_tokens={
                node.id: seen.prefixes.num_digests(node.id) * BLOCK_SIZE for node, _ in nodes
            },
            is_measured=any(seen.speeds.has_measured(node.id) for node, _ in nodes),
        )
        return Report(model=model, load=NodeLoad(), region=summary)

    def _hot(self, model: str, nodes: list[tuple[NodeState, CurrentLoad]]) -> PrefixFilter:
        """Of what each node holds, the newest."""
        now = self._placer.clock()
        made_at, made = self._filters.get(model, (-FILTER_SECONDS, PrefixFilter()))
        if nodes and now - made_at >= FILTER_SECONDS:
            prefixes, each = self._placer.observations.prefixes, MAX_NAMES // len(nodes)
            made = PrefixFilter.of(
                {name for node, _ in nodes for name in prefixes.newest(node.id, each)}
            )
            self._filters[model] = now, made
        return made
