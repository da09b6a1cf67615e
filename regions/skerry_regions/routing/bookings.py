"""Work that a router has sent to nodes and that their reports may not show yet.

A node's report is as old as the way it came. What was sent since is added to it here, and what the
node must have computed since is taken off, so that a burst of requests between two reports does
not pile up on the node that looked idle.
"""

from __future__ import annotations

from msgspec import Struct

from skerry_regions.routing.placement import Demand, Placement
from skerry_regions.speeds import attended_pairs
from skerry_regions.view import NodeState


class Booking(Struct, frozen=True, kw_only=True):
    """One request on its nodes. Give it back with `Router.release`."""

    id: int
    prefill: str
    decode: str
    at: float  # seconds of the router's clock
    new_tokens: int
    pairs: float
    prompt_tokens: int


class CurrentLoad(Struct, frozen=True, kw_only=True):
    """A node's load now, as best known."""

    queue_seconds: float  # of prefill work
    streams: int
    context: float  # tokens
    free_tokens: float | None


class Bookings:
    """All open bookings of one router. Bounded: the oldest lapse."""

    def __init__(self, lifetime: float, max_open: int) -> None:
        self._lifetime, self._max_open = lifetime, max_open
        self._open: dict[int, Booking] = {}  # oldest first
        self._by_node: dict[str, dict[int, Booking]] = {}
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, placement: Placement, demand: Demand, now: float) -> Booking:
        """Count this request on its nodes from now on."""
        self.expire(now)
        if len(self._open) >= self._max_open:
            self.release(next(iter(self._open.values())))
        new_tokens = demand.prompt_tokens - placement.cached_tokens
        booking = Booking(
            id=self._next_id,
            prefill=placement.prefill,
            decode=placement.decode,
            at=now,
            new_tokens=new_tokens,
            pairs=attended_pairs(new_tokens, placement.cached_tokens),
            prompt_tokens=demand.prompt_tokens,
        )
        self._next_id += 1
        self._open[booking.id] = booking
        for node in {booking.prefill, booking.decode}:
            self._by_node.setdefault(node, {})[booking.id] = booking
        return booking

    def release(self, booking: Booking) -> None:
        """The request has ended or moved. Idempotent."""
        if self._open.pop(booking.id, None) is None:
            return
        for node in {booking.prefill, booking.decode}:
            of_node = self._by_node[node]
            del of_node[booking.id]
            if not of_node:
                del self._by_node[node]

    def expire(self, now: float) -> None:
        """Drop bookings that nobody released for too long."""
        while self._open:
            oldest = next(iter(self._open.values()))
            if oldest.at + self._lifetime > now:
                return
            self.release(oldest)

    def load(self, node: NodeState, rtt: float, now: float) -> CurrentLoad:
        """The node as a request sent now will find it: its report, plus bookings that cannot be in
        it, less what it computes meanwhile.

        A report that arrived at t left at t - rtt/2, and shows what was sent until t - rtt.
        """
        report = node.load
        unseen = [
            booking
            for booking in self._by_node.get(node.id, {}).values()
            if booking.at + rtt > node.observed_at
        ]
        decoding = [booking.prompt_tokens for booking in unseen if booking.decode == node.id]
        streams = report.streams + len(decoding)
        context = float(report.context_tokens + sum(decoding))

        def seconds(tokens: float, pairs: float) -> float:
            # Beside the streams that run: those of bookings are what waits here.
            return node.speed.work_seconds(
                tokens, pairs, streams=report.streams, context=report.context_tokens
            )

        clock = node.observed_at - rtt / 2
        queue = seconds(report.prefill_tokens, report.prefill_pairs)
        for booking in unseen:  # in the order in which they were sent
            if booking.prefill == node.id:
                queue = max(0.0, queue - max(0.0, booking.at + rtt / 2 - clock))
                queue += seconds(booking.new_tokens, booking.pairs)
                clock = max(clock, booking.at + rtt / 2)
        return CurrentLoad(
            queue_seconds=max(0.0, queue - max(0.0, now + rtt / 2 - clock)),
            streams=streams,
            context=context,
            free_tokens=None if report.free_tokens is None else report.free_tokens - sum(decoding),
        )
