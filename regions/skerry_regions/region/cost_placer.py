"""Places requests by their cost in seconds: the router, fed with what the nodes of a region say.

members, reports, pings ──▶ ClusterState ──▶ View ─┐
prompt ──▶ digests ──▶ Demand ─────────────────────┴─▶ Router ──▶ placements ──▶ routes
                                                         ▲─────── bookings ───────┘
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from random import Random

from msgspec.structs import replace

from skerry_regions.digests import BLOCK_SIZE, full_block_digests
from skerry_regions.region.cluster_state import ClusterState
from skerry_regions.region.directory import Directory
from skerry_regions.region.placer import EarlierAttempts, KVFetch, Placer, Route
from skerry_regions.region.sent_requests import SentRequests
from skerry_regions.routing.bookings import Booking, CurrentLoad
from skerry_regions.routing.placement import Demand, Placement, RouterConfig, explain
from skerry_regions.routing.rental import Rental
from skerry_regions.routing.router import Router
from skerry_regions.view import NodeState, View
from skerry_regions.wire.protocol import Submit
from skerry_regions.wire.reports import SentRequest

logger = logging.getLogger(__name__)

CONFIG = RouterConfig(block_size=BLOCK_SIZE)
EXPECTED_OUTPUT = 256  # tokens of an answer, unless the request allows fewer
HEARD_SECONDS = 5.0  # older news of requests is no news: reports show them
NO_NODES: frozenset[str] = frozenset()
FETCH_LEASE = 0.2, 30.0  # seconds that fetched KV is waited for, at least and at most


class CostPlacer:
    """`Placer` over a directory, by what is known of the cluster.

    `model_keys` are `ModelFiles.model_key` by catalog id.
    """

    def __init__(
        self,
        directory: Directory,
        state: ClusterState,
        model_keys: Mapping[str, bytes],
        rng: Random,
        config: RouterConfig = CONFIG,
        load_index: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """`state` is the one that the directory reports to. `load_index` is called once, when there
        are many nodes; what it is given has the router use its index, once that can be had."""
        self.observations, self.summaries = state.observations, state.summaries
        self.clock = state.clock
        self.router = Router(self.observations.prefixes, rng, config)
        self._rental = Rental(config.block_size)
        self.sent = SentRequests(self.clock)
        state.call_when_sent(self._hear)
        self._load_index = load_index
        self._directory = directory
        self._model_keys = model_keys

    def here(self) -> Placer:
        """Return a placer on the nodes of this edge's region alone."""
        return _PlacerHere(self)

    def place(
        self, submit: Submit, earlier: EarlierAttempts, only_region: str | None = None
    ) -> Iterator[Route]:
        """See `Placer.place`. Nodes that failed the request come after all others, and at the very
        end prefill nodes decode too. With `only_region` the request does not leave that."""
        view = self.observations.view(submit.model)
        if self._load_index is not None and self.router.wants_index(view):
            load, self._load_index = self._load_index, None
            load(self.router.use_index)
        demand = replace(self._demand(submit, earlier), only_region=only_region)
        offered: set[str] = set()
        for avoided, any_role in (
            (earlier.failed, False),
            (NO_NODES, False),
            (NO_NODES, True),
        ):
            while ranked := self._rank(
                view, replace(demand, exclude=avoided | offered, any_role=any_role)
            ):
                for number, placement in enumerate(ranked):
                    if (route := self._route(view, ranked[number:], demand)) is not None:
                        self._log(submit, demand, placement)
                        yield route
                offered |= {placement.decode for placement in ranked}

    def _rank(self, view: View, demand: Demand) -> list[Placement]:
        cached, now = self.summaries.cached(demand.model, demand.digests), self.clock()
        ranked = self.router.rank(view, demand, now=now, told=cached)
        if not ranked or not self._rental.goes_far(ranked[0], demand, view.nodes):
            return ranked
        near = self.router.rank(view, replace(demand, only_region=demand.origin), now=now)[:1]
        if near and self._rental.has_paid(ranked[0], near[0], demand, view.nodes):
            return near + [each for each in ranked if each.path != near[0].path]
        return ranked

    def _demand(self, submit: Submit, earlier: EarlierAttempts) -> Demand:
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
            numeric_builds=earlier.numeric_builds,
            mixed_builds=submit.mixed_builds,
        )

    def _route(self, view: View, ranked: list[Placement], demand: Demand) -> Route | None:
        """Return the route of the first placement, explained by comparison; None when a node has
        gone."""
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
            watcher=_BookedRoute(self, placement, demand),
        )

    def _fetch(self, view: View, placement: Placement, demand: Demand) -> KVFetch | None:
        """Return what to request of a peer, within the time that computing it would take."""
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
            machine=target.machine,
        )

    def _log(self, submit: Submit, demand: Demand, placement: Placement) -> None:
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

    def book(self, placement: Placement, demand: Demand) -> Booking:
        """Count a request on its nodes, here and at the other edges of the region."""
        now = self.clock()
        self.sent.add(placement, demand, now)
        return self.router.book(placement, demand, now=now)

    def _hear(self, model: str, sent: SentRequest) -> None:
        """Count what another edge of the region sent, if it can be."""
        nodes = self.observations.view(model).nodes
        if sent.prefill in nodes and sent.decode in nodes and sent.age < HEARD_SECONDS:
            self.router.hear(
                model,
                sent.prefill,
                sent.decode,
                sent.prompt_tokens,
                min(sent.cached_tokens, sent.prompt_tokens),
                at=self.clock() - sent.age,
            )

    def loads_here(self, model: str) -> list[tuple[NodeState, CurrentLoad]]:
        """Return the nodes of this edge's region that take the model's streams now, and their
        loads."""
        now, here = self.clock(), self.observations.region
        view = self.observations.view(model)
        return [
            (node, self.router.load(view, node, here, now=now))
            for node in view.nodes.values()
            if node.region == here and not node.away
        ]


class _PlacerHere:
    """`Placer` in the edge's region."""

    def __init__(self, placer: CostPlacer) -> None:
        self._placer = placer

    def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
        """See `Placer.place`."""
        return self._placer.place(submit, earlier, self._placer.observations.region)


class _BookedRoute:
    """`RouteWatcher` of one attempt: counted on its nodes while it is there, and timed."""

    def __init__(self, placer: CostPlacer, placement: Placement, demand: Demand) -> None:
        self._placer, self._placement, self._demand = placer, placement, demand
        self._booking: Booking | None = None
        self._prefilled_at: float | None = None

    def started(self) -> None:
        self._booking = self._placer.book(self._placement, self._demand)

    def first_tokens(self, node: str) -> None:
        """Learn from a hand-over, which has two ends: a decode node passes the first token on once
        it has the KV. All other speeds are learned from what nodes measure themselves, step by
        step."""
        now = self._placer.clock()
        if node == self._placement.prefill:
            self._prefilled_at = now
        elif self._prefilled_at is not None:
            predicted = self._placement.terms["handover"]
            self._placer.observations.handed_over(node, now - self._prefilled_at, predicted, now)

    def ended(self) -> None:
        if self._booking is not None:
            self._placer.router.release(self._booking)
