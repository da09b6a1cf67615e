"""Traces in the making: spans, their tree, their bounds; and attempts as spans."""

from __future__ import annotations

import pytest
from tests.clock import Clock

from skerry_edge.telemetry import tracing
from skerry_edge.telemetry.attempt_spans import add_attempts
from skerry_edge.telemetry.trace_store import TraceStore
from skerry_edge.telemetry.tracing import MAX_SPANS, SPAN_BYTES, Span, Trace, TraceRecord
from skerry_regions.phases import Phase, Timeline
from skerry_regions.region.attempt_record import AttemptRecord
from skerry_regions.routing.placement import Fetch, Placement
from skerry_regions.trace_context import TraceContext


def new_trace(clock: Clock, caller: TraceContext | None = None, id: str = "r") -> Trace:
    return Trace(id, caller, clock=clock, wall_clock=lambda: 1.7e9)


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


def test_spans_are_offsets_from_the_header_and_children_of_the_request() -> None:
    clock = Clock(500.0)
    trace = new_trace(clock)
    clock.now += 1
    with tracing.tracing(trace), tracing.span("tokenise", chars=4) as noted:
        clock.now += 0.5
        noted["tokens"] = 2
    clock.now += 0.25
    record = trace.record("edge-1", status=200)
    root, tokenise = record.spans
    assert (root.name, root.start, root.seconds, root.parent) == ("request", 0.0, 1.75, "")
    assert (tokenise.name, tokenise.start, tokenise.seconds) == ("tokenise", 1.0, 0.5)
    assert tokenise.attributes == {"chars": 4, "tokens": 2}
    assert tokenise.parent == root.id
    assert (record.seconds, record.status, record.started_at) == (1.75, 200, 1.7e9)


def test_a_span_is_noted_when_its_work_fails() -> None:
    trace = new_trace(Clock(500.0))
    with pytest.raises(KeyError), tracing.tracing(trace), tracing.span("tokenise"):
        raise KeyError
    assert [span.name for span in trace.record("e").spans] == ["request", "tokenise"]


def test_the_callers_trace_goes_on() -> None:
    caller = TraceContext(trace_id="a" * 32, span_id="b" * 16, flags=0, state="v=1")
    trace = new_trace(Clock(500.0), caller)
    record = trace.record("e")
    assert (record.trace_id, record.parent, record.is_sampled) == ("a" * 32, "b" * 16, False)
    assert record.spans[0].parent == "b" * 16
    assert trace.context.state == "v=1"


def test_spans_are_bounded() -> None:
    trace = new_trace(Clock(500.0))
    for _ in range(MAX_SPANS + 3):
        trace.add("x", 0.0, 0.0)
    record = trace.record("e")
    assert (len(record.spans), record.dropped) == (MAX_SPANS + 1, 3)


def test_whoever_works_on_a_request_finds_its_trace() -> None:
    assert tracing.current() is None
    with tracing.span("nobody's"):
        pass
    trace = new_trace(Clock(500.0))
    with tracing.tracing(trace):
        assert tracing.current() is trace
        with tracing.span("tokenise"):
            pass
    assert tracing.current() is None
    assert [span.name for span in trace.record("e").spans] == ["request", "tokenise"]


def placement(prefill: str, decode: str, seconds: float, fetch: Fetch | None = None) -> Placement:
    terms = {"queue": seconds - 0.25, "prefill": 0.25, "stall": 1e-7}
    return Placement(
        prefill=prefill, decode=decode, fetch=fetch, cached_tokens=64, terms=terms, seconds=seconds
    )


def split_attempt() -> AttemptRecord:
    """Asked at 1 s, 2 s in all, 1.8 s of them on the decode node."""
    prefill = Timeline(
        seconds=0.75,
        phases=(
            Phase(name="queue", start=0.0, seconds=0.25),
            Phase(name="prefill", start=0.25, seconds=0.25, tokens=100, cached_tokens=64, steps=2),
            Phase(name="send", start=0.0, seconds=0.75, blocks=2, bytes=4096),
        ),
    )
    decode = Timeline(
        seconds=1.8,
        phases=(
            Phase(name="receive", start=0.0, seconds=0.75, blocks=2, bytes=4096),
            Phase(name="decode", start=0.75, seconds=1.0, tokens=9, steps=9),
        ),
    )
    return AttemptRecord(
        nodes=("p", "d"),
        candidates=[
            placement("p", "d", 0.5),
            placement("d", "d", 0.75, Fetch(source="p", first=0, last=1)),
        ],
        asked=501.0,
        began=501.1,
        first_tokens=501.7,
        ended=503.1,
        num_tokens=10,
        outcome="stop",
        timelines={"p": prefill, "d": decode},
    )


def split_record() -> TraceRecord:
    """A request of 4 s that ran on two nodes."""
    clock = Clock(500.0)
    trace = new_trace(clock, id="7d1f0c7e-3a52-4a33-9d0c-6a6f6d6f2a55")
    trace.add("receive", 0.0, 0.5)
    generate = trace.add("generate", 0.75, 3.5, {"model": "m", "outcome": "stop", "tokens": 10})
    add_attempts(trace, generate, [split_attempt()], 4.0)
    clock.now += 4.0
    return trace.record("edge-1", status=200, route="/run")


def test_an_attempt_is_its_route_and_its_nodes_phases() -> None:
    clock = Clock(500.0)
    trace = new_trace(clock)
    clock.now = 504.0
    add_attempts(trace, "1" * 16, [split_attempt()], 4.0)
    spans = trace.record("e").spans
    [route] = named(spans, "route")
    assert (route.start, route.seconds) == (pytest.approx(1.0), pytest.approx(0.1))
    assert [each.path for each in route.candidates] == ["p>d", "d"]
    assert route.candidates[0].terms == {"queue": 0.25, "prefill": 0.25}
    assert [each.fetched_from for each in route.candidates] == ["", "p"]
    [attempt] = named(spans, "attempt")
    assert (attempt.start, attempt.seconds) == (pytest.approx(1.1), pytest.approx(2.0))
    assert attempt.attributes["network_seconds"] == pytest.approx(0.2)
    assert attempt.attributes["nodes"] == ["p", "d"]
    assert "resume" not in attempt.attributes
    [hand_over] = named(spans, "hand-over")
    assert hand_over.start == pytest.approx(1.2)  # half the network's time after the attempt began
    assert hand_over.attributes == {"node": "p", "blocks": 2, "bytes": 4096}
    [decode] = named(spans, "decode")
    assert (decode.start, decode.seconds) == (pytest.approx(1.95), pytest.approx(1.0))
    assert decode.attributes == {"node": "d", "tokens": 9, "steps": 9}
    assert {span.parent for span in named(spans, "prefill")} == {attempt.id}


def test_a_resume_says_why_and_how_exact_it_is() -> None:
    clock = Clock(500.0)
    trace = new_trace(clock)
    lost = AttemptRecord(nodes=("d0",), asked=500.0, began=500.0, num_tokens=4)
    lost.end(501.0, "unavailable", "the connection to node d0 was lost")
    lost.end(502.0, "stop")  # too late
    again = AttemptRecord(
        nodes=("d1",), asked=501.0, began=501.0, num_before=4, is_exact=False, same_build=False
    )
    clock.now = 503.0
    add_attempts(trace, "1" * 16, [lost, again], 3.0)
    first, second = named(trace.record("e").spans, "attempt")
    assert (first.seconds, first.attributes["outcome"]) == (1.0, "unavailable")
    assert first.attributes["reason"] == "the connection to node d0 was lost"
    assert second.attributes["resume"] == "best-effort"
    assert (second.attributes["left_build"], second.attributes["resumed_after_tokens"]) == (True, 4)
    assert (second.seconds, second.attributes["outcome"]) == (2.0, "unfinished")


def test_a_store_keeps_the_last_ones_within_its_bounds() -> None:
    store = TraceStore("e", max_traces=3)
    for number in range(5):
        trace = new_trace(Clock(500.0), id=str(number))
        store.begin(trace, "t")
        assert store.end(trace, 200, "/run")
    kept = [store.record(str(number)) for number in range(5)]
    assert [each is not None for each in kept] == [False] * 2 + [True] * 3
    small = TraceStore("e", max_bytes=5 * SPAN_BYTES + 1)
    for number in range(5):
        trace = new_trace(Clock(500.0), id=str(number))
        trace.add("tokenise", 0.0, 1.0)
        trace.add("tokenise", 1.0, 2.0)
        small.begin(trace, "t")
        small.end(trace, 200, "/run")
    assert len(small.last("t", 9)) == 2


def test_a_later_attempt_takes_the_place_of_the_last() -> None:
    store = TraceStore("e", max_bytes=10_000)
    for status in (503, *[200] * 100):
        trace = new_trace(Clock(500.0))
        store.begin(trace, "t")
        store.end(trace, status, "/run")
    assert len(store.last("t", 9)) == 1
    kept = store.record("r")
    assert kept is not None
    assert kept.status == 200


def test_what_is_added_later_is_as_of_the_end() -> None:
    store, clock = TraceStore("e"), Clock(500.0)
    trace = new_trace(clock)
    store.begin(trace, "t")
    runs = AttemptRecord(nodes=("d0",), asked=500.0, began=500.0)
    trace.add_later(lambda trace: add_attempts(trace, "1" * 16, [runs], 2.0))
    assert trace.size > SPAN_BYTES
    clock.now += 2.0
    store.end(trace, 200, "/run")
    clock.now += 60.0
    for _ in range(2):
        record = store.record("r")
        assert record is not None
        assert (record.seconds, record.tenant) == (2.0, "t")
        [attempt] = named(record.spans, "attempt")
        assert (attempt.start, attempt.seconds) == (0.0, 2.0)


def test_what_never_began_is_not_kept() -> None:
    store = TraceStore("e")
    trace = new_trace(Clock(500.0))
    assert not store.end(trace, 401, "unmatched")
    assert store.record("r") is None
