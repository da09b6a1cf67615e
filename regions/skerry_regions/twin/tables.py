"""A scenario's tables, before its first event: how many nodes, edges and regions, and which."""

from __future__ import annotations

from math import inf
from random import Random

import numpy as np

from skerry_regions.routing.block_index import DirectoryLimits
from skerry_regions.routing.fast import arrays
from skerry_regions.routing.fast.compiled import Floats
from skerry_regions.routing.fast.index import CompiledIndex
from skerry_regions.routing.fast.laws import KV_BYTES, NUM_COLUMNS
from skerry_regions.routing.placement import RouterConfig
from skerry_regions.routing.sessions import node_hash
from skerry_regions.speeds import NodeSpeed
from skerry_regions.twin.kernel import state
from skerry_regions.twin.scenario import Scenario, SimulatedPool, node_names
from skerry_regions.twin.ways import Ways
from skerry_regions.twin.workload import Workload

ROLES = {"prefill": arrays.PREFILL, "decode": arrays.DECODE, "hybrid": arrays.HYBRID}
MAX_CHUNKS, MAX_NEWS, MAX_BOOKINGS, MAX_PAID = 64, 1 << 12, 1 << 9, 1 << 12
MAX_REGION_NEWS = 1 << 14
MAX_EXPECTATIONS = 1 << 14
LONG_AGO = -1e9  # seconds
AFTER_LAST = 3600.0  # seconds that nodes go on reporting behind the last arrival, if need be
CONFIG = RouterConfig()


class Layout:
    """Which slot is which node; makes the tables of a world."""

    def __init__(self, scenario: Scenario, workload: Workload, ways: Ways) -> None:
        self.scenario, self.workload, self.ways = scenario, workload, ways
        self.rng = Random(scenario.seed)
        self.pools = [  # by slot
            pool
            for region in scenario.names
            for pool in scenario.pools
            if pool.region == region
            for _ in range(pool.most)
        ]
        self.names = node_names(scenario)
        self.num_nodes = len(self.pools)
        self.speeds = [  # as they are
            pool.speed.as_speed().scaled(self.factor(slot)) for slot, pool in enumerate(self.pools)
        ]
        num_slots = self.num_nodes + len(scenario.regions)
        self.index = CompiledIndex(DirectoryLimits(max_nodes=max(num_slots, 1024)))
        self.index.reserve(num_slots - 1)
        self.num_slots = self.index.num_slots

    @property
    def num_slots_used(self) -> int:
        """Count nodes and regions."""
        return self.num_nodes + len(self.scenario.regions)

    def factor(self, slot: int) -> float:
        number = slot - self.first_of_pool(slot)
        factors = self.pools[slot].factors
        return factors[number] if number < len(factors) else 1.0

    def first_of_pool(self, slot: int) -> int:
        """Return the first slot of a slot's pool."""
        pool = self.pools[slot]
        return next(at for at, each in enumerate(self.pools) if each is pool)

    def base_way(self, workload: Workload) -> Floats:
        per_region = [region.client_rtt + region.edge_seconds for region in self.scenario.regions]
        return np.array(per_region)[workload.regions]

    def nodes(self, slots: int) -> state.Nodes:
        count, scenario = self.num_nodes, self.scenario
        places = {name: number for number, name in enumerate(scenario.names)}
        nodes = state.make_table(
            state.Nodes, slots, truth=NUM_COLUMNS, believed=NUM_COLUMNS, waiting=2,
            keys=state.MAX_STREAMS, streams=state.MAX_STREAMS, chunks=MAX_CHUNKS,
            chunk_tokens=MAX_CHUNKS, samples=state.NUM_SAMPLED,
            news=MAX_NEWS, gone=MAX_NEWS, reports=(2, state.NUM_REPORTED), booked=2,
            bookings=(MAX_BOOKINGS, state.NUM_BOOKED),
        )  # fmt: skip
        nodes.region[:] = [places[pool.region] for pool in self.pools] + list(places.values())
        nodes.role[:] = arrays.DECODE
        nodes.role[:count] = [ROLES[pool.role] for pool in self.pools]
        nodes.noise[:count] = [pool.noise for pool in self.pools]
        nodes.max_streams[:count] = [pool.max_streams for pool in self.pools]
        nodes.tokens_per_step[:] = 1.0
        nodes.tokens_per_step[:count] = [pool.tokens_per_step for pool in self.pools]
        for column in (nodes.head, nodes.tail, nodes.join_head, nodes.join_tail):
            column[:] = state.NONE
        nodes.factor[:], nodes.version[:], nodes.heard_by[:] = 1.0, 1, -inf
        learn_from = scenario.router.learn_from
        for slot, (speed, pool) in enumerate(zip(self.speeds, self.pools, strict=True)):
            prior = pool.speed.as_speed().scaled(learn_from) if learn_from else speed
            nodes.truth[slot], nodes.believed[slot] = law_row(speed, pool), law_row(prior, pool)
        for number, name in enumerate(scenario.names):
            own = [slot for slot, pool in enumerate(self.pools) if pool.region == name]
            nodes.believed[count + number] = nodes.believed[own[0] if own else 0]
            nodes.believed[count + number, KV_BYTES] = 0.0
        return nodes

    def caches(self) -> state.BlockCaches:
        rooms = [pool.cache_tokens // self.scenario.block_size for pool in self.pools]
        most = max(max(rooms), 1)
        count, entries = self.num_nodes, 1 << (2 * most).bit_length()
        counts = np.zeros((count, 2), np.int64)
        counts[:, 1] = rooms
        return state.BlockCaches(
            keys=np.zeros((count, entries), np.uint64),
            places=np.zeros((count, entries), np.int32),
            names=np.zeros((count, most + 1), np.uint64),
            newer=np.zeros((count, most + 1), np.int32),
            older=np.zeros((count, most + 1), np.int32),
            counts=counts,
        )

    def edges(self) -> state.Edges:
        edges = state.make_table(
            state.Edges, sum(region.edges for region in self.scenario.regions),
            seen=self.num_slots, active=self.num_slots, traffic=4, paid_names=MAX_PAID,
            paid=MAX_PAID,
        )  # fmt: skip
        edges.region[:] = [
            r for r, each in enumerate(self.scenario.regions) for _ in range(each.edges)
        ]
        edges.seen_at[:] = edges.traffic[:, 1] = LONG_AGO
        return edges

    def rows(self) -> state.EdgeRows:
        slots, regions = self.num_slots, len(self.scenario.regions)
        count = sum(region.edges for region in self.scenario.regions)
        hashes = np.zeros(slots, np.uint64)
        hashes[: self.num_nodes] = [node_hash(name) for name in self.names]
        others = np.zeros((regions, arrays.MAX_CANDIDATES), np.int64)
        for r in range(regions):
            others[r, : regions - 1] = [
                self.num_nodes + other for other in range(regions) if other != r
            ]
        return state.EdgeRows(
            numbers=np.zeros((count, slots, NUM_COLUMNS)),
            marks=np.zeros((regions, slots, arrays.NUM_MARKS), np.int32),
            hashes=hashes,
            trees=np.full((3, count, 2 * slots), inf),
            seen=np.zeros((count, slots), np.int64),
            active=np.zeros((count, slots), np.int64),
            others=others,
            counts=np.ones((regions, 3), np.int64),
        )

    def regions(self) -> state.Regions:
        scenario = self.scenario
        count = len(scenario.regions)
        nodes = [sum(pool.region == name for pool in self.pools) for name in scenario.names]
        most = state.MAX_REGIONS
        regions = state.make_table(
            state.Regions, count + 1, rtts=most, bandwidths=most, loss=most, crossed=most,
            news=MAX_REGION_NEWS, itl=state.ITL_BUCKETS,
        )  # fmt: skip
        regions.first_slot[:] = [0, *np.cumsum(nodes)]
        regions.first_edge[:] = [0, *np.cumsum([region.edges for region in scenario.regions])]
        regions.rtts[:count, :count], regions.loss[:count, :count] = self.ways.rtts, self.ways.loss
        regions.bandwidths[:] = 1.0
        regions.bandwidths[:count, :count] = self.ways.bandwidths
        regions.home[:] = np.arange(count + 1)
        return regions

    def clock(self) -> state.Clock:
        room = 1 << max(12, (4 * self.num_slots_used).bit_length())
        return state.Clock(
            events=state.make_table(state.ComingEvents, room), length=np.zeros(1, np.int64),
            numbers=np.array([0, 0, 0, 0, 0, -1, 0, 0, -1]),
            random=np.array([self.rng.getrandbits(62) | 1], np.uint64),
            asked=np.zeros(6, np.int64), expected=np.zeros((MAX_EXPECTATIONS, 3)),
            expectations=np.zeros(2, np.int64), queues=np.zeros(self.num_nodes + 1),
            placed=np.zeros(3),
        )  # fmt: skip

    def settings(self, placement: int | None) -> state.RunSettings:
        router = self.scenario.router
        names = ("cost", "nearest", "round-robin")
        return state.RunSettings(
            num_nodes=self.num_nodes,
            num_regions=len(self.scenario.regions),
            placement=names.index(router.placement) if placement is None else placement,
            report_seconds=router.report_seconds,
            summary_seconds=router.summary_seconds,
            told_seconds=-1.0 if router.told_seconds is None else router.told_seconds,
            expected_output=router.expected_output,
            rate_seconds=CONFIG.rate_seconds,
            reuse_tokens=CONFIG.reuse_tokens,
            patience=self.scenario.patience,
            indexed=self.num_slots_used > CONFIG.exhaustive_nodes,
            until=self.workload.last + AFTER_LAST,
        )

    def weights(self) -> arrays.Weights:
        router = self.scenario.router
        return arrays.Weights(
            block_size=float(self.scenario.block_size),
            decode=router.decode_weight,
            behind=router.behind_weight,
            evict=router.evict_weight,
            affinity_seconds=CONFIG.affinity_seconds,
            num_sources=CONFIG.num_peers if router.fetch else 0,
            num_holders=CONFIG.num_holders,
            num_least=CONFIG.num_least,
            num_random=CONFIG.num_random,
        )


def law_row(speed: NodeSpeed, pool: SimulatedPool) -> tuple[float, ...]:
    """Return a row of `routing.fast.laws` for a node without work."""
    return (
        *speed.coefficients, float(speed.chunk_tokens), speed.gap_seconds,
        0.0, 0.0, 0.0, inf, 0.0, 0.0, 0.0,
        pool.kv_bytes_per_token, float(pool.cache_tokens), 0.0, 0.0,
    )  # fmt: skip
