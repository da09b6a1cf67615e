"""Which placement a request gets: the cheapest, by the seconds of `skerry_regions.routing.costs`.

The router keeps two small memories of its own: what was sent where since the nodes last reported,
by itself and by the other edges of its region (`Bookings`), and how often requests come and find
their prefix cached (`Traffic`). It prices in plain Python (`exhaustive`) until `use_index`: from
then on, wherever nodes are more than a few, compiled (`fast.table`).

Pure: view, time and randomness are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from skerry_regions.routing.block_index import CachedPrefix
from skerry_regions.routing.bookings import Booking, Bookings, CurrentLoad
from skerry_regions.routing.exhaustive import Exhaustive
from skerry_regions.routing.placement import Demand, Placement, RouterConfig
from skerry_regions.routing.prefixes import PrefixDirectory
from skerry_regions.routing.traffic import Traffic
from skerry_regions.view import NodeState, View

if TYPE_CHECKING:
    from skerry_regions.routing.fast.table import NodeTable

NOTHING_TOLD: Mapping[str, CachedPrefix] = MappingProxyType({})


class Router:
    """Ranks placements; remembers what was sent where. One per edge; not thread-safe."""

    def __init__(
        self, directory: PrefixDirectory, rng: Random, config: RouterConfig | None = None
    ) -> None:
        self.config = config or RouterConfig()
        self._directory, self._rng = directory, rng
        self._bookings = Bookings(self.config.booking_seconds, self.config.max_bookings)
        self._traffic: dict[str, Traffic] = {}  # by model
        self._plain = Exhaustive(directory, self._bookings, rng, self.config)
        self._tables: WeakKeyDictionary[View, NodeTable] | None = None

    def use_index(self) -> None:
        """Price compiled from now on. Raises ImportError without numba.

        The first call of a process compiles for half a minute, unless kernels were loaded
        (`fast.kernels`).
        """
        if self._tables is None:
            from skerry_regions.routing.fast.index import CompiledIndex

            self._directory.move_to(CompiledIndex(self._directory.limits))
            self._tables = WeakKeyDictionary()

    def wants_index(self, view: View) -> bool:
        """Return whether there are so many nodes that the index pays, and it is not used yet."""
        return self._tables is None and len(view.nodes) >= self.config.indexed_nodes

    def rank(
        self,
        view: View,
        demand: Demand,
        *,
        now: float,
        told: Mapping[str, CachedPrefix] = NOTHING_TOLD,
    ) -> list[Placement]:
        """Return the best placements, cheapest first; empty when none is possible.

        `told` is what is known of caches beside the directory of blocks, by node.

        Suspect nodes and foreign builds come after everything else. Never leaves the residency.
        """
        self._bookings.expire(now)
        self._directory.expire(now)
        traffic = self._of(demand.model)
        if self._tables is not None and (table := self._table(view, demand)) is not None:
            return table.rank(demand, traffic, told, now)
        return self._plain.rank(view, demand, traffic, told, now)

    def load(self, view: View, node: NodeState, origin: str, *, now: float) -> CurrentLoad:
        """Return what a request sent now from region `origin` will find on a node."""
        return self._bookings.load(node, view.link(origin, node.region).rtt, now)

    def book(self, placement: Placement, demand: Demand, *, now: float) -> Booking:
        """Count this request on its nodes until they report it themselves, or it is released."""
        self._of(demand.model).count(now, demand.prompt_tokens, placement.cached_tokens)
        for node in {placement.prefill, placement.decode}:
            self._directory.expect(node, demand.digests, now)
        booking = self._bookings.add(placement, demand, now)
        self._refresh(booking.prefill, booking.decode)
        return booking

    def hear(
        self, model: str, prefill: str, decode: str, prompt_tokens: int, cached_tokens: int,
        *, at: float,
    ) -> None:  # fmt: skip
        """Count a request that another edge of the region sent at `at`."""
        self._of(model).count(at, prompt_tokens, cached_tokens)
        self._bookings.hear(prefill, decode, at, prompt_tokens, cached_tokens)
        self._refresh(prefill, decode)

    def release(self, booking: Booking) -> None:
        """Release it: the request has ended or moved. Idempotent."""
        self._bookings.release(booking)
        self._refresh(booking.prefill, booking.decode)

    def _of(self, model: str) -> Traffic:
        config = self.config
        return self._traffic.setdefault(model, Traffic(config.rate_seconds, config.reuse_tokens))

    def _table(self, view: View, demand: Demand) -> NodeTable | None:
        """Return the view's rows, made on first use; None where plain Python is to be used."""
        assert self._tables is not None
        if (table := self._tables.get(view)) is None:
            from skerry_regions.routing.fast.table import NodeTable

            table = NodeTable(view, demand.origin, self._directory, self._bookings, self.config)
            table.seed(self._rng.getrandbits(63))
            self._tables[view] = table
        return table if table.serves(demand) else None

    def _refresh(self, *nodes: str) -> None:
        if self._tables is not None:
            for table in self._tables.values():
                for node in set(nodes):
                    table.load_changed(node)
