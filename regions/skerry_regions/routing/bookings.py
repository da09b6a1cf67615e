"""Work that was sent to nodes and that their reports may not show yet, by this edge or by others.

A node's report is as old as the way it came. What was sent since is added to it here, and what the
node must have computed since is taken off, so that a burst of requests between two reports does
not pile up on the node that looked idle; nor do the bursts of several edges, which report to each
other what they send.
"""

from __future__ import annotations

import math
from collections import deque

from msgspec import Struct

from skerry_regions.routing.placement import Demand, Placement
from skerry_regions.speeds import attended_pairs
from skerry_regions.view import NodeState

TOLD_SECONDS = 30.0  # how long another edge's booking counts at a node that reports no more
MAX_TOLD = 65_536


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


class Backlog(Struct, frozen=True, kw_only=True):
    """A node's load in terms that time does not change."""

    busy_until: (
        float  # when its prefill work will be done, by the router's clock; -inf: it has none
    )
    streams: int
    context: float
    free_tokens: float | None

    def at(self, arrival: float) -> CurrentLoad:
        """Return what a request finds that arrives then."""
        return CurrentLoad(
            queue_seconds=max(0.0, self.busy_until - arrival),
            streams=self.streams,
            context=self.context,
            free_tokens=self.free_tokens,
        )


class Bookings:
    """All open bookings that a router knows of. Bounded: the oldest lapse."""

    def __init__(self, lifetime: float, max_open: int) -> None:
        self._lifetime, self._max_open = lifetime, max_open
        self._open: dict[int, Booking] = {}  # our own, oldest first
        self._told: deque[Booking] = deque()  # by others, oldest first
        self._by_node: dict[str, dict[int, Booking]] = {}  # that no report showed yet
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, placement: Placement, demand: Demand, now: float) -> Booking:
        """Count this request on its nodes from now on."""
        self.expire(now)
        if len(self._open) >= self._max_open:
            self.release(next(iter(self._open.values())))
        booking = self._make(
            placement.prefill, placement.decode, now, demand.prompt_tokens, placement.cached_tokens
        )
        self._open[booking.id] = booking
        return booking

    def hear(
        self, prefill: str, decode: str, at: float, prompt_tokens: int, cached_tokens: int
    ) -> None:
        """Count a request that another edge sent at `at`. It counts until the nodes report it."""
        if len(self._told) >= MAX_TOLD:
            self._count_off(self._told.popleft())
        self._told.append(self._make(prefill, decode, at, prompt_tokens, cached_tokens))

    def release(self, booking: Booking) -> None:
        """Release it: the request has ended or moved. Idempotent."""
        if self._open.pop(booking.id, None) is not None:
            self._count_off(booking)

    def expire(self, now: float) -> None:
        """Drop bookings that were not released for too long."""
        while self._told and self._told[0].at + TOLD_SECONDS <= now:
            self._count_off(self._told.popleft())
        while self._open:
            oldest = next(iter(self._open.values()))
            if oldest.at + self._lifetime > now:
                return
            self.release(oldest)

    def backlog(self, node: NodeState, rtt: float) -> Backlog:
        """Return the node's report, plus bookings that cannot be in it.

        A report that arrived at t left at t - rtt/2, and shows what was sent until t - rtt.
        """
        report = node.load
        unseen = self._unseen(node, rtt)
        decoding = [booking.prompt_tokens for booking in unseen if booking.decode == node.id]

        def seconds(tokens: float, pairs: float) -> float:
            # Beside the streams that run: those of bookings are what waits here.
            return node.speed.work_seconds(
                tokens, pairs, streams=report.streams, context=report.context_tokens
            )

        busy_until = -math.inf
        if report.prefill_tokens or report.prefill_pairs:
            busy_until = (
                node.observed_at - rtt / 2 + seconds(report.prefill_tokens, report.prefill_pairs)
            )
        for booking in unseen:  # in the order in which they were sent
            if booking.prefill == node.id:
                begin = max(busy_until, booking.at + rtt / 2)
                busy_until = begin + seconds(booking.new_tokens, booking.pairs)
        return Backlog(
            busy_until=busy_until,
            streams=report.streams + len(decoding),
            context=float(report.context_tokens + sum(decoding)),
            free_tokens=None if report.free_tokens is None else report.free_tokens - sum(decoding),
        )

    def load(self, node: NodeState, rtt: float, now: float) -> CurrentLoad:
        """Return the node as a request sent now will find it."""
        return self.backlog(node, rtt).at(now + rtt / 2)

    def _make(
        self, prefill: str, decode: str, at: float, prompt_tokens: int, cached_tokens: int
    ) -> Booking:
        new_tokens = prompt_tokens - cached_tokens
        booking = Booking(
            id=self._next_id,
            prefill=prefill,
            decode=decode,
            at=at,
            new_tokens=new_tokens,
            pairs=attended_pairs(new_tokens, cached_tokens),
            prompt_tokens=prompt_tokens,
        )
        self._next_id += 1
        for node in {prefill, decode}:
            self._by_node.setdefault(node, {})[booking.id] = booking
        return booking

    def _unseen(self, node: NodeState, rtt: float) -> list[Booking]:
        """Return of a node's bookings those that its report cannot show; the others are done
        with."""
        booked = self._by_node.get(node.id)
        if not booked:
            return []
        seen = [id_ for id_, each in booked.items() if each.at + rtt <= node.observed_at]
        for id_ in seen:
            del booked[id_]
        if not booked:
            del self._by_node[node.id]
        return list(booked.values())

    def _count_off(self, booking: Booking) -> None:
        for node in {booking.prefill, booking.decode}:
            if (of_node := self._by_node.get(node)) is not None:
                of_node.pop(booking.id, None)
                if not of_node:
                    del self._by_node[node]
