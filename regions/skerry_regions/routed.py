"""Places requests by their cost in seconds: the router, fed with what the nodes of a region say.

members, reports, pings ──▶ Observations ──▶ View ─┐
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

from skerry_regions.bookings import Booking
from skerry_regions.digests import BLOCK_SIZE, full_block_digests
from skerry_regions.directory import Directory
from skerry_regions.node_link import NodeLink
from skerry_regions.observations import NO_PRIORS, Observations
from skerry_regions.placement import Demand, Placement, RouterConfig, explain
from skerry_regions.protocol import Report, Submit
from skerry_regions.remote import Route
from skerry_regions.router import Router
from skerry_regions.speeds import LinkSpeed
from skerry_regions.view import View

logger = logging.getLogger(__name__)

CONFIG = RouterConfig(block_size=BLOCK_SIZE, num_peers=0)  # nodes do not fetch from peers
EXPECTED_OUTPUT = 256  # tokens of an answer, unless the request allows fewer
MAX_REMEMBERED = 4096  # nodes that are gone, whose build is still known


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
        self.clock = clock
        self._builds: dict[str, str] = {}  # of nodes, also of those that are gone
        directory.on_change = self._refresh
        self._refresh()

    def _refresh(self) -> None:
        """Know the nodes that are there now, and listen to the new ones."""
        members = self._directory.members
        self.observations.know(members.values())
        for node, member in members.items():
            self._builds.pop(node, None)  # becomes the newest
            self._builds[node] = member.numeric_build
        for node in list(self._builds)[: len(self._builds) - len(members) - MAX_REMEMBERED]:
            del self._builds[node]
        for link in self._directory.links():
            link.on_report = functools.partial(self._take, link)

    def place(self, submit: Submit, failed: frozenset[str]) -> Iterator[Route]:
        """See `Placer.place`. Nodes that failed the request come after all others, and at the very
        end prefill nodes are asked to decode."""
        view = self.observations.view(self.clock())
        demand = self._demand(submit, failed)
        out_of_reach = self._out_of_reach(submit.model)
        offered: set[str] = set()
        for nodes, avoided in (
            (view, out_of_reach | failed),
            (view, out_of_reach),
            (_all_may_decode(view), out_of_reach),
        ):
            while ranked := self._rank(nodes, replace(demand, exclude=avoided | offered)):
                for number, placement in enumerate(ranked):
                    if (route := self._route(ranked[number:], demand)) is not None:
                        self._say(submit, demand, placement)
                        yield route
                offered |= {placement.decode for placement in ranked}

    def _rank(self, view: View, demand: Demand) -> list[Placement]:
        return self.router.rank(view, demand, now=self.clock())

    def _demand(self, submit: Submit, failed: frozenset[str]) -> Demand:
        done = len(submit.output_ids)
        builds = {self._builds[node] for node in failed if node in self._builds} if done else set()
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
            numeric_build=min(builds, default=None),
        )

    def _out_of_reach(self, model: str) -> frozenset[str]:
        """Nodes that cannot be given this model's streams now, whatever the registry says."""
        return frozenset(
            link.node
            for link in self._directory.links()
            if not link.is_up or model not in link.models
        )

    def _route(self, ranked: list[Placement], demand: Demand) -> Route | None:
        """The way of the first placement, explained by comparison; None when a node has gone."""
        placement = ranked[0]
        decode = self._directory.link(placement.decode)
        prefill = self._directory.link(placement.prefill) if placement.is_split else None
        if decode is None or (placement.is_split and prefill is None):
            return None
        return Route(
            decode=decode,
            prefill=prefill,
            kv_address=self._directory.members[decode.node].transfer_address,
            explanation=explain(ranked),
            watcher=_Watch(self, placement, demand),
        )

    def _say(self, submit: Submit, demand: Demand, placement: Placement) -> None:
        if not placement.same_build:
            logger.warning(
                "request %s leaves its numeric build %s after %d tokens: its text may change",
                submit.request_id, demand.numeric_build, len(submit.output_ids),
            )  # fmt: skip
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("request %s: %s", submit.request_id, explain([placement]))

    def _take(self, link: NodeLink, report: Report) -> None:
        if link.rtt is not None:
            self.observations.pinged(link.node, link.rtt)
        if self.observations.take(link.node, report, self.clock()):
            link.want_snapshot(report.model)


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
