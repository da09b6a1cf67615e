"""What an edge knows of the cluster: nodes by observation, other regions by their summaries."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from skerry_regions.region.observations import NO_PRIORS, PRIOR, Observations
from skerry_regions.registry import Member
from skerry_regions.routing.summaries import RegionSummary, Summaries
from skerry_regions.speeds import LinkSpeed, NodeSpeed
from skerry_regions.view import View
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.reports import EngineWork, Report, SentRequest


class ClusterState:
    """`DirectoryListener` of an edge in `region`. `links` are priors by pair of regions."""

    def __init__(
        self,
        region: str,
        *,
        links: Mapping[tuple[str, str], LinkSpeed] = NO_PRIORS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.observations = Observations(region, links=links)
        self.summaries = Summaries()
        self.clock = clock
        self.work: dict[str, EngineWork] = {}  # by node, as it last reported it
        self.summarised: dict[tuple[str, str], RegionSummary] = {}  # by edge and model
        self._hearing: list[Callable[[str, SentRequest], None]] = []
        self._models_of: dict[str, set[str]] = {}  # by edge: views that it stands in

    def call_when_sent(self, hear: Callable[[str, SentRequest], None]) -> None:
        """Call `hear` from now on with the model and what another edge of the region sent."""
        self._hearing.append(hear)

    def members_changed(self, members: Mapping[str, Member]) -> None:
        """Follow the nodes and edges that are there now, and no others."""
        self.observations.know(member for member in members.values() if member.kind == "node")
        self.work = {node: work for node, work in self.work.items() if node in members}
        self.summarised = {key: each for key, each in self.summarised.items() if key[0] in members}
        for edge in self.summaries.know(
            {id_: member for id_, member in members.items() if member.kind == "edge"}
        ):
            self.observations.prefixes.remove_node(edge)
            self.observations.link_is_gone(edge)
            for model in self._models_of.pop(edge, ()):
                self.observations.view(model).remove(edge)

    def link_changed(self, link: NodeLink) -> None:
        """See `DirectoryListener`."""
        self.observations.link_takes(link.node, link.models if link.is_up else frozenset())

    def peer_sent(self, report: Report) -> None:
        """See `DirectoryListener`."""
        for sent in report.sent:
            for hear in self._hearing:
                hear(report.model, sent)

    def reported(self, link: NodeLink, member: Member, report: Report) -> None:
        """Take in a report of a node, or of an edge that stands for its region."""
        if link.rtt is not None:
            self.observations.reached(member.region, link.rtt)
        if report.region is not None:
            self._summarised(link, report.model, report.region)
            return
        if report.work is not None and member.model == report.model:
            self.work[link.node] = report.work
        if self.observations.take(link.node, report, self.clock()):
            link.want_snapshot(report.model)

    def _summarised(self, link: NodeLink, model: str, summary: RegionSummary) -> None:
        view = self.observations.view(model)
        region = self.summaries.take(
            link.node, model, summary, self.clock(), _any_speed(view, self.observations.region)
        )
        if region is not None:
            self.summarised[link.node, model] = summary
        if region is not None and not summary.num_nodes:
            view.remove(link.node)
        elif region is not None:
            self._models_of.setdefault(link.node, set()).add(model)
            view.put(replace(region, away=self.observations.is_away(link.node, model)))
        news = summary.names
        if news is not None and not self.summaries.learn_names(link.node, model, news):
            link.want_snapshot(model)


def _any_speed(view: View, region: str) -> NodeSpeed:
    """Return what to assume of a region that has measured nothing: what one of our own
    nodes does."""
    return next((node.speed for node in view.nodes.values() if node.region == region), PRIOR)
