"""Skerry's own router as a policy of the simulator."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
from skerry_regions.view import NodeState, Role, View


class Skerry:
    """The router of `skerry_regions`. It fills unlike pools too: a decode node may prefill its own.

    Speeds are learned as it goes, from `prior`; with none it is an oracle that knows the truth.
    `report_seconds` makes node reports that old at worst; `narrow` leaves it only the choices
    that the published rules have: both phases on one hybrid node, or a prefill and a decode node,
    and no fetching from peers. No policy sees the real output length;
    this one expects 256 tokens.
    """

    def __init__(
        self,
        rng: Random,
        prior: NodeSpeed | None = None,
        *,
        config: RouterConfig | None = None,
        report_seconds: float = 0.0,
        narrow: bool = False,
    ) -> None:
        self._rng, self._prior = rng, prior
        self._narrow = narrow
        self._config = config or RouterConfig()
        self._report_seconds = report_seconds
        self._router: Router | None = None
        self._speeds = SpeedBook()
        self._bookings: list[Booking] = []
        self._view = View()
        self._reported_at = -math.inf

    def choose(
        self, request: TraceRequest, cached: Mapping[str, CachedPrefix], cluster: Cluster
    ) -> Choice:
        now, router = cluster.events.now, self._router or self._start(cluster)
        if now - self._reported_at >= self._report_seconds:
            self._view = self._observe(cluster, now)
            self._reported_at = now
        demand = Demand(
            model="m",
            origin="r",
            prompt_tokens=request.prompt_tokens,
            digests=request.blocks,
        )
        ranked = router.rank(self._view, demand, now=now)
        best = ranked[0]
        if self._narrow:
            best = next((placement for placement in ranked if placement.is_split), best)
        self._bookings.append(router.book(best, demand, now=now))
        if best.fetch is None:
            return Choice(best.prefill, best.decode)
        return Choice(best.prefill, best.decode, best.fetch.source, best.fetch.last)

    def finished(self, request_id: int) -> None:
        if self._router is not None:
            self._router.release(self._bookings[request_id])

    def measured(self, node: str, sample: StepSample) -> None:
        self._speeds.learn(node, sample)

    def speed(self, node: SimNode) -> NodeSpeed:
        """What it believes of a node now."""
        return self._speeds.speed(node.name) if self._prior else node.truth

    def _start(self, cluster: Cluster) -> Router:
        config = replace(self._config, block_size=cluster.config.block_size)
        if self._narrow:
            config = replace(config, num_peers=0, alternatives=len(cluster.nodes) ** 2)
        self._router = Router(cluster.directory, self._rng, config)
        if self._prior is not None:
            for name in cluster.nodes:
                self._speeds.add_node(name, "m", self._prior)
        return self._router

    def _role(self, node: SimNode) -> Role:
        return "decode" if self._narrow and node.role == "hybrid" else node.role

    def _observe(self, cluster: Cluster, now: float) -> View:
        return View(
            [
                NodeState(
                    id=node.name,
                    region="r",
                    residency="",
                    role=self._role(node),
                    model="m",
                    numeric_build="b",
                    kv_format="k",
                    kv_bytes_per_token=cluster.config.kv_bytes_per_token,
                    cache_tokens=cluster.config.cache_blocks * cluster.config.block_size,
                    speed=self.speed(node),
                    load=node.load(),
                    observed_at=now,
                )
                for node in cluster.nodes.values()
            ],
            {("r", "r"): cluster.config.link},
        )
