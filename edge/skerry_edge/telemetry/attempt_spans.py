"""Attempts of a stream as spans: where it was sent and why, and what its nodes did there.

    generate ─┬─ route      the router's choice among its candidates
              └─ attempt ─┬─ queue, prefill, decode …   as the nodes reported them
                          └─ hand-over                  KV on its way from one node to the other

A node reports its phases in seconds since the stream reached it. They are placed on the edge's
clock half the network's time after the attempt began; what is wrong with that is less than one way.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import asdict

from skerry_edge.telemetry.tracing import Attributes, Candidate, Trace
from skerry_regions.phases import Phase, Timeline
from skerry_regions.region.attempt_record import AttemptRecord
from skerry_regions.routing.placement import Placement

SPAN_NAMES = {"send": "hand-over", "receive": "await KV"}  # the other phases keep their names
SHORTEST_TERM = 5e-7  # seconds; a smaller term of a route's cost is left out


def add_attempts(trace: Trace, parent: str, records: Sequence[AttemptRecord], now: float) -> None:
    """Add a stream's attempts, in order, as children of a span. An attempt that has not ended
    lasts until `now`, in seconds since the request's header."""
    for number, record in enumerate(records, 1):
        _add_route(trace, parent, record)
        _add_attempt(trace, parent, number, record, now)


def _add_route(trace: Trace, parent: str, record: AttemptRecord) -> None:
    if not record.candidates:
        return
    chosen = record.candidates[0]
    attributes: Attributes = {
        "path": chosen.path,
        "expected_seconds": chosen.seconds,
        "expected_cached_tokens": chosen.cached_tokens,
    }
    trace.add(
        "route",
        trace.offset(record.asked),
        trace.offset(record.began),
        attributes,
        parent=parent,
        candidates=[_candidate(each) for each in record.candidates],
    )


def _candidate(placement: Placement) -> Candidate:
    return Candidate(
        path=placement.path,
        fetched_from="" if placement.fetch is None else placement.fetch.source,
        seconds=round(placement.seconds, 6),
        cached_tokens=placement.cached_tokens,
        same_build=placement.same_build,
        terms={
            name: round(seconds, 6)
            for name, seconds in placement.terms.items()
            if seconds >= SHORTEST_TERM
        },
    )


def _add_attempt(trace: Trace, parent: str, number: int, record: AttemptRecord, now: float) -> None:
    attributes: Attributes = {
        "attempt": number,
        "nodes": list(record.nodes),
        "outcome": record.outcome or "unfinished",
        "tokens": record.num_tokens,
    }
    if record.reason:
        attributes["reason"] = record.reason
    if record.num_before:
        attributes["resumed_after_tokens"] = record.num_before
        attributes["resume"] = "exact" if record.is_exact else "best-effort"
        attributes["left_build"] = not record.same_build
    began = trace.offset(record.began)
    if record.first_tokens is not None:
        attributes["first_token_seconds"] = record.first_tokens - record.began
    network = record.network_seconds
    if network is not None:
        attributes["network_seconds"] = network
    end = trace.offset(record.ended) if record.ended is not None else now
    id = trace.add("attempt", began, end, attributes, parent=parent)
    for node, timeline in record.timelines.items():
        _add_phases(trace, id, node, timeline, began + (network or 0.0) / 2)


def _add_phases(trace: Trace, parent: str, node: str, timeline: Timeline, since: float) -> None:
    for phase in timeline.phases:
        trace.add(
            SPAN_NAMES.get(phase.name, phase.name),
            since + phase.start,
            since + phase.end,
            {"node": node, **_figures(phase)},
            parent=parent,
        )


def _figures(phase: Phase) -> Attributes:
    """Return what the phase has besides its place in time; zeros are left out."""
    figures = asdict(phase)
    for name in ("name", "start", "seconds"):
        del figures[name]
    return {name: value for name, value in figures.items() if value}
