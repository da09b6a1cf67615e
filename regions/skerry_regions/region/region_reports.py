"""What an edge reports to those of other regions about the nodes of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import blake2b

from skerry_regions.digests import BLOCK_SIZE
from skerry_regions.region.cost_placer import CostPlacer
from skerry_regions.registry import Member
from skerry_regions.routing.region_names import AdvertisedNames, NameNews
from skerry_regions.routing.summaries import summarise
from skerry_regions.view import NodeLoad
from skerry_regions.wire.reports import Report

SUMMARY_SECONDS = 0.5  # between summaries


class RegionReports:
    """Makes a summary of each model, whenever it is called. See `summaries`.

    All edges of a region report its load; the one with the highest hash of its id sends names of
    the blocks that its nodes hold.
    """

    def __init__(
        self,
        edge: str,
        placer: CostPlacer,
        models: Iterable[str],
        incarnation: int,
        edges: Callable[[], Collection[Member]] = tuple,
    ) -> None:
        """`incarnation` is the edge's; `edges` are those of all regions."""
        self._edge, self._edges = edge, edges
        self._placer = placer
        self._incarnation = incarnation
        self._seq = itertools.count(1)
        self._names = {model: AdvertisedNames() for model in models}
        for model, names in self._names.items():
            placer.observations.prefixes.listen(_OfModel(placer, model, names))

    def __call__(self) -> list[Report]:
        """Return what is sent now and then: changes of names."""
        now, speaks = self._placer.clock(), self._speaks()
        news = {model: names.news(now) for model, names in self._names.items()}
        return self._reports({model: each if speaks else None for model, each in news.items()})

    def snapshots(self) -> list[Report]:
        """Return what an edge is sent that has heard nothing yet, or missed something:
        all names."""
        speaks = self._speaks()
        return self._reports(
            {model: names.everything() if speaks else None for model, names in self._names.items()}
        )

    def _reports(self, news: dict[str, NameNews | None]) -> list[Report]:
        seq = next(self._seq)
        return [self._report(model, seq, names) for model, names in news.items()]

    def _speaks(self) -> bool:
        region = self._placer.observations.region
        speakers = {
            edge.id
            for edge in self._edges()
            if edge.region == region and edge.gateway and edge.state == "ready"
        }
        return max(speakers | {self._edge}, key=_weight) == self._edge

    def _report(self, model: str, seq: int, names: NameNews | None) -> Report:
        nodes = self._placer.loads_here(model)
        seen = self._placer.observations
        summary = summarise(
            nodes,
            names=names,
            incarnation=self._incarnation,
            seq=seq,
            stored_tokens={
                node.id: seen.prefixes.num_digests(node.id) * BLOCK_SIZE for node, _ in nodes
            },
            is_measured=any(seen.speeds.has_measured(node.id) for node, _ in nodes),
        )
        return Report(model=model, load=NodeLoad(), region=summary)


class _OfModel:
    """`PrefixListener` of the nodes of one model in this edge's region."""

    def __init__(self, placer: CostPlacer, model: str, names: AdvertisedNames) -> None:
        self._view = placer.observations.view(model)
        self._region = placer.observations.region
        self._names = names

    def told(self, node: str, digests: Sequence[bytes]) -> None:
        state = self._view.nodes.get(node)
        if state is not None and state.region == self._region:
            self._names.told(node, digests)

    def forgotten(self, node: str, digests: Sequence[bytes]) -> None:
        self._names.forgotten(node, digests)

    def cleared(self, node: str) -> None:
        self._names.cleared(node)


def _weight(edge: str) -> bytes:
    return blake2b(edge.encode(), digest_size=8).digest()
