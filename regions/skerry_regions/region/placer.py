"""Places requests by their cost in seconds: the router, fed with what the nodes of a region say.

members, reports, pings ──▶ Observations ──▶ View ─┐
other regions' edges ─────▶ Summaries ───▶ nodes ──┤
prompt ──▶ digests ──▶ Demand ─────────────────────┴─▶ Router ──▶ placements ──▶ routes
                                                         ▲─────── bookings ───────┘
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from random import Random

from msgspec.structs import replace

from skerry_regions.digests import BLOCK_SIZE, full_block_digests
from skerry_regions.region.directory import Directory
from skerry_regions.region.observations import NO_PRIORS, PRIOR, Observations
from skerry_regions.region.routes import KVFetch, Past, Placer, Route
from skerry_regions.routing.bookings import Booking, CurrentLoad
from skerry_regions.routing.placement import Demand, Placement, RouterConfig, explain
from skerry_regions.routing.router import Router
from skerry_regions.routing.summaries import Summaries
from skerry_regions.speeds import LinkSpeed
from skerry_regions.view import NodeState, View
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.protocol import Report, Submit

logger = logging.getLogger(__name__)

CONFIG = RouterConfig(block_size=BLOCK_SIZE)
EXPECTED_OUTPUT = 256  # tokens of an answer, unless the request allows fewer
FETCH_LEASE = 0.2, 30.0  # seconds that fetched KV is waited for, at least and at most


class Routed:
    """`Placer` over a directory, whose changes and links it listens to from now on.

    `model_keys` are `ModelFiles.model_key` by catalog id, `links` priors by pair of regions.
    """

    def __init__(
        self,
        directory: Directory,
        region: str,
        model_keys: Mapping[str, bytes],
        rng: Random,
        *,
        links: Mapping[tuple[str, str], LinkSpeed] = NO_PRIORS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.observations = Observations(region, links=links)
        self.router = Router(self.observations.prefixes, rng, CONFIG)
        self._directory = directory
        self._model_keys = model_keys
        self.summaries = Summaries()
        self.clock = clock
        directory.on_change = self._refresh
        self._refresh()

    def _refresh(self) -> None:
        """Know the nodes that are there now, and listen to the new ones."""
        members = self._directory.members
        self.observations.know(member for member in members.values() if member.kind == "node")
        for edge in self.summaries.know(
            {id_: member for id_, member in members.items() if member.kind == "edge"}
        ):
            self.observations.prefixes.remove_node(edge)
        for link in self._directory.links():
            link.on_report = functools.partial(self._take, link)

    def place(self, submit: Submit, past: Past) -> Iterator[Route]:
        """See `Placer.place`. Nodes that failed the request come after all others, and at the very
        end prefill nodes are asked to decode."""
        view = self.observations.view(self.clock())
        speeds = (node.speed for node in view.nodes.values() if node.model == submit.model)
        if regions := self.summaries.nodes(submit.model, next(speeds, PRIOR)):
            view = view.with_nodes(*regions)
        return self._place(view, submit, past, self._out_of_reach(submit.model))

    def here(self) -> Placer:
        """A placer on the nodes of this edge's region alone."""
        return _Here(self)

    def place_here(self, submit: Submit, past: Past) -> Iterator[Route]:
        """As `place`, in this edge's region alone."""
        view = self.observations.view(self.clock())
        others = {
            node.id for node in view.nodes.values() if node.region != self.observations.region
        }
        return self._place(view, submit, past, self._out_of_reach(submit.model) | others)

    def _place(
        self, view: View, submit: Submit, past: Past, out_of_reach: frozenset[str]
    ) -> Iterator[Route]:
        demand = self._demand(submit, past)
        offered: set[str] = set()
        for nodes, avoided in (
            (view, out_of_reach | past.failed),
            (view, out_of_reach),
            (_all_may_decode(view), out_of_reach),
        ):
            while ranked := self._rank(nodes, replace(demand, exclude=avoided | offered)):
                for number, placement in enumerate(ranked):
                    if (route := self._route(view, ranked[number:], demand)) is not None:
                        self._say(submit, demand, placement)
                        yield route
                offered |= {placement.decode for placement in ranked}

    def _rank(self, view: View, demand: Demand) -> list[Placement]:
        told = self.summaries.cached(demand.model, demand.digests)
        return self.router.rank(view, demand, now=self.clock(), told=told)

    def _demand(self, submit: Submit, past: Past) -> Demand:
        done = len(submit.output_ids)
        return Demand(
            model=submit.model,
            origin=self.observations.region,
            prompt_tokens=max(len(submit.prompt_ids) + done, 1),
            digests=full_block_digests(
                self._model_keys.get(submit.model, b""),
                submit.cache_key,
                submit.prompt_ids,
                submit.output_ids,
                is_shared=self.observations.prefixes.knows,
            ),
            output_tokens=max(min(EXPECTED_OUTPUT, submit.sampling.max_tokens - done), 1),
            residency=submit.residency,
            affinity=submit.affinity,
            numeric_builds=past.numeric_builds,
            mixed_builds=submit.mixed_builds,
        )

    def _out_of_reach(self, model: str) -> frozenset[str]:
        """Nodes that cannot be given this model's streams now, whatever the registry says."""
        return frozenset(
            link.node
            for link in self._directory.links()
            if not link.is_up or model not in link.models
        )

    def _route(self, view: View, ranked: list[Placement], demand: Demand) -> Route | None:
        """The way of the first placement, explained by comparison; None when a node has gone."""
        placement = ranked[0]
        decode = self._directory.link(placement.decode)
        prefill = self._directory.link(placement.prefill) if placement.is_split else None
        if decode is None or (placement.is_split and prefill is None):
            return None
        return Route(
            decode=decode,
            prefill=prefill,
            kv_address=self._directory.transfer_address(placement.decode, placement.prefill),
            fetch=self._fetch(view, placement, demand),
            numeric_builds=frozenset(
                view.nodes[node].numeric_build for node in (placement.prefill, placement.decode)
            ),
            candidates=ranked,
            watcher=_Watch(self, placement, demand),
        )

    def _fetch(self, view: View, placement: Placement, demand: Demand) -> KVFetch | None:
        """What a peer is asked for; waited for no longer than computing it would take."""
        fetch = placement.fetch
        if fetch is None or fetch.source == placement.prefill:  # a node reads its file by itself
            return None
        source = self._directory.link(fetch.source)
        target = self._directory.members.get(placement.prefill)
        if source is None or target is None:
            return None
        first, last = (blocks * BLOCK_SIZE for blocks in (fetch.first, fetch.last))
        computing = view.nodes[placement.prefill].speed.prefill_seconds(last - first, first)
        least, most = FETCH_LEASE
        return KVFetch(
            source=source,
            digests=list(demand.digests[: fetch.last]),
            kv_address=self._directory.transfer_address(placement.prefill, fetch.source),
            lease_seconds=min(max(computing, least), most),
        )

    def _say(self, submit: Submit, demand: Demand, placement: Placement) -> None:
        if not placement.is_exact:
            how = "on a runner that is not batch-invariant"
            if not placement.same_build:
                how = f"and leaves its numeric build {', '.join(sorted(demand.numeric_builds))}"
            logger.warning(
                "request %s goes on after %d tokens %s: its text may change",
                submit.request_id, len(submit.output_ids), how,
            )  # fmt: skip
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("request %s: %s", submit.request_id, explain([placement]))

    def loads_here(self, model: str) -> list[tuple[NodeState, CurrentLoad]]:
        """The nodes of this edge's region that take the model's streams now, and their loads."""
        now, here = self.clock(), self.observations.region
        view, out_of_reach = self.observations.view(now), self._out_of_reach(model)
        return [
            (node, self.router.load(view, node, here, now=now))
            for node in view.nodes.values()
            if node.model == model and node.region == here and node.id not in out_of_reach
        ]

    def _take(self, link: NodeLink, report: Report) -> None:
        if (member := self._directory.members.get(link.node)) is None:
            return
        if link.rtt is not None:
            self.observations.reached(member.region, link.rtt)
        if report.region is not None:
            self.summaries.take(link.node, report.model, report.region, self.clock())
        elif self.observations.take(link.node, report, self.clock()):
            link.want_snapshot(report.model)


class _Here:
    """`Placer` in the edge's region."""

    def __init__(self, routed: Routed) -> None:
        self.place = routed.place_here


class _Watch:
    """`RouteWatcher` of one attempt: counted on its nodes while it is there, and timed."""

    def __init__(self, routed: Routed, placement: Placement, demand: Demand) -> None:
        self._routed, self._placement, self._demand = routed, placement, demand
        self._booking: Booking | None = None
        self._prefilled_at: float | None = None

    def started(self) -> None:
        now = self._routed.clock()
        self._booking = self._routed.router.book(self._placement, self._demand, now=now)

    def first_tokens(self, node: str) -> None:
        """Speeds are learned from what nodes measure themselves, step by step. Only a hand-over has
        two ends, and shows here: a decode node tells the first token as soon as it has the KV."""
        now = self._routed.clock()
        if node == self._placement.prefill:
            self._prefilled_at = now
        elif self._prefilled_at is not None:
            predicted = self._placement.terms["handover"]
            self._routed.observations.handed_over(node, now - self._prefilled_at, predicted, now)

    def ended(self) -> None:
        if self._booking is not None:
            self._routed.router.release(self._booking)


def _all_may_decode(view: View) -> View:
    prefills = [node for node in view.nodes.values() if not node.can_decode]
    return view.with_nodes(*(replace(node, role="hybrid") for node in prefills))
