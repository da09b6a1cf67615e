"""Several edges of one region in front of the same nodes: each knows what nodes reported to it.

Every edge has a router of the product's, views that reports change in place, each at its own phase,
and what the others told it. The prefix directory is the region's and exact, speeds are learned by
all: what differs between edges is the age of loads, and whose requests they know of.
"""

from __future__ import annotations

from functools import partial
from random import Random

from msgspec.structs import replace

from bench.sim.cluster import Choice, Cluster
from bench.sim.node import SimNode
from bench.sim.traces import TraceRequest
from skerry_regions.region.speed_learning import SpeedBook
from skerry_regions.routing.block_index import CachedPrefix
from skerry_regions.routing.bookings import Booking
from skerry_regions.routing.placement import Demand, RouterConfig
from skerry_regions.routing.router import Router
from skerry_regions.speeds import NodeSpeed, StepSample
from skerry_regions.view import NodeState, View

END = 120.0  # seconds after the last arrival that nodes go on reporting


class SkerryEdges:
    """A `Policy`: so many edges, of which each request comes to one at random."""

    def __init__(
        self,
        rng: Random,
        prior: NodeSpeed,
        trace: list[TraceRequest],
        *,
        edges: int,
        report_seconds: float,
        told_seconds: float | None,
    ) -> None:
        """`told_seconds`: until the other edges know of a request; None: they never do."""
        self._rng, self._prior, self._trace = rng, prior, trace
        self._num_edges, self._report_seconds = edges, report_seconds
        self._told_seconds = told_seconds
        self._speeds = SpeedBook()
        self._views: list[View] = []
        self._routers: list[Router] = []
        self._booked: list[tuple[Router, Booking]] = []

    def choose(
        self, request: TraceRequest, cached: dict[str, CachedPrefix], cluster: Cluster
    ) -> Choice:
        """See `Policy.choose`."""
        if not self._routers:
            self._start(cluster)
        now, edge = cluster.events.now, self._rng.randrange(self._num_edges)
        router, view = self._routers[edge], self._views[edge]
        demand = Demand(
            model="m", origin="r", prompt_tokens=request.prompt_tokens, digests=request.blocks
        )
        best = router.rank(view, demand, now=now)[0]
        self._booked.append((router, router.book(best, demand, now=now)))
        if self._told_seconds is not None:
            for other in self._routers:
                if other is not router:
                    told = partial(
                        other.hear, "m", best.prefill, best.decode, request.prompt_tokens,
                        best.cached_tokens, at=now,
                    )  # fmt: skip
                    cluster.events.at(now + self._told_seconds, told)
        if best.fetch is None:
            return Choice(best.prefill, best.decode)
        return Choice(best.prefill, best.decode, best.fetch.source, best.fetch.last)

    def finished(self, request_id: int) -> None:
        """See `Policy.finished`."""
        router, booking = self._booked[request_id]
        router.release(booking)

    def measured(self, node: str, sample: StepSample) -> None:
        """See `Policy.measured`."""
        self._speeds.learn(node, sample)

    def _start(self, cluster: Cluster) -> None:
        config = RouterConfig(block_size=cluster.config.block_size)
        for name in cluster.nodes:
            self._speeds.add_node(name, "m", self._prior)
        for _ in range(self._num_edges):
            rng = Random(self._rng.getrandbits(32))
            self._routers.append(Router(cluster.directory, rng, config))
            nodes = [self._state(node, cluster) for node in cluster.nodes.values()]
            view = View(nodes, {("r", "r"): cluster.config.link})
            self._views.append(view)
            for node in cluster.nodes.values():
                first = cluster.events.now + self._rng.random() * self._report_seconds
                cluster.events.at(first, partial(self._report, view, node, cluster))

    def _report(self, view: View, node: SimNode, cluster: Cluster) -> None:
        """One node tells one edge its load, and will again."""
        now = cluster.events.now
        view.put(self._state(node, cluster))
        if now < self._trace[-1].arrival + END:
            cluster.events.at(
                now + self._report_seconds, partial(self._report, view, node, cluster)
            )

    def _state(self, node: SimNode, cluster: Cluster) -> NodeState:
        blank = NodeState(
            id=node.name, region="r", residency="", role=node.role, model="m", numeric_build="b",
            kv_format="k", kv_bytes_per_token=cluster.config.kv_bytes_per_token,
            cache_tokens=cluster.config.cache_blocks * cluster.config.block_size,
            speed=self._speeds.speed(node.name),
        )  # fmt: skip
        return replace(blank, load=node.load(), observed_at=cluster.events.now)
