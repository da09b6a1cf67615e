"""One request's trace: spans on the edge's monotonic clock, from the header to the last byte.

A trace is written per request and per phase, never per token. It has names, numbers and ids; no
text of a prompt or an answer. The request that a task works on is found by `current`, so that
what has a phase to report, or a log line, needs no parameter for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from msgspec import Struct

from skerry_regions.trace_context import TraceContext, new_context, new_span_id

MAX_SPANS = 256  # of one trace; what comes after is counted, not kept
SPAN_BYTES = 512  # that a span takes in memory, about
SPANS_ADDED_LATER = 8  # by one stream, about

Value = str | int | float | bool | list[str]
Attributes = dict[str, Value]

_current: ContextVar[Trace | None] = ContextVar("trace", default=None)


class Candidate(Struct, frozen=True, kw_only=True, gc=False):
    """A placement that the router looked at: its cost in seconds, and the terms that it sums."""

    path: str
    fetched_from: str = ""  # the node whose cached KV is copied first
    seconds: float
    cached_tokens: int
    same_build: bool
    terms: dict[str, float]


class Span(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A stretch of time with a name. `seconds` is None while it lasts: of a request that runs.

    Thousands are kept: no collection looks at one, as none can refer to itself.
    """

    id: str
    parent: str
    name: str
    start: float  # seconds since the request's header
    seconds: float | None = None
    attributes: Attributes = {}
    candidates: list[Candidate] = []  # of a route, the chosen one first


class TraceRecord(Struct, frozen=True, kw_only=True):
    """A trace as it is kept, shown and exported."""

    request_id: str
    trace_id: str
    is_sampled: bool  # whether the caller, if there is one, records it too
    parent: str  # the caller's span; empty when the trace begins here
    tenant: str
    edge: str
    started_at: float  # Unix seconds, for people
    seconds: float | None  # None: it still runs
    status: int | None  # of the answer; None: the client was gone, or it still runs
    spans: list[Span]  # the first is the request's own
    dropped: int  # spans beyond the bound


class Trace:
    """A trace in the making."""

    def __init__(
        self,
        request_id: str,
        caller: TraceContext | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.request_id = request_id
        self.context = caller.child() if caller is not None else new_context()
        self.started = clock()
        self.prepared_seconds = 0.0  # of processor time, before admission
        self.is_admitted = False
        self._caller = caller
        self._started_at = wall_clock()
        self._clock = clock
        self._spans: list[Span] = []
        self._later: list[Callable[[Trace], None]] = []
        self._dropped = 0

    def offset(self, moment: float) -> float:
        """Return seconds since the request's header, of a moment of the edge's clock."""
        return moment - self.started

    def now(self) -> float:
        return self._clock() - self.started

    def add(
        self,
        name: str,
        start: float,
        end: float,
        attributes: Attributes | None = None,
        *,
        parent: str = "",
        id: str = "",
        candidates: list[Candidate] | None = None,
    ) -> str:
        """Note a span between two offsets; the id it has. Without a parent it is the request's."""
        span = Span(
            id=id or new_span_id(),
            parent=parent or self.context.span_id,
            name=name,
            start=start,
            seconds=max(0.0, end - start),
            attributes=attributes or {},
            candidates=candidates or [],
        )
        if len(self._spans) < MAX_SPANS:
            self._spans.append(span)
        else:
            self._dropped += 1
        return span.id

    def add_later(self, add: Callable[[Trace], None]) -> None:
        """Have spans added when the trace is read: most never are."""
        self._later.append(add)

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        return SPAN_BYTES * (len(self._spans) + SPANS_ADDED_LATER * len(self._later))

    def seconds_of(self, name: str) -> list[tuple[str, float]]:
        """Return (model, seconds) of the spans of a name, as far as they ended."""
        return [
            (str(span.attributes["model"]), span.seconds)
            for span in self._spans
            if span.name == name and span.seconds is not None
        ]

    def record(
        self,
        edge: str,
        *,
        tenant: str = "",
        status: int | None = None,
        ended: bool = True,
        seconds: float | None = None,
        **attributes: Value,
    ) -> TraceRecord:
        """Return the trace: as it is now, or of a request that ended after so many seconds."""
        later, self._later = self._later, []
        for add in later:
            add(self)
        if seconds is None and ended:
            seconds = self.now()
        root = Span(
            id=self.context.span_id,
            parent=self._caller.span_id if self._caller is not None else "",
            name="request",
            start=0.0,
            seconds=seconds,
            attributes=attributes,
        )
        return TraceRecord(
            request_id=self.request_id,
            trace_id=self.context.trace_id,
            is_sampled=self.context.is_sampled,
            parent=root.parent,
            tenant=tenant,
            edge=edge,
            started_at=self._started_at,
            seconds=seconds,
            status=status,
            spans=[root, *self._spans],
            dropped=self._dropped,
        )


def current() -> Trace | None:
    """Return the trace of the request that this task works on."""
    return _current.get()


@contextmanager
def tracing(trace: Trace) -> Generator[None]:
    """Work on a request inside: `current` finds its trace."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def span(name: str, **attributes: Value) -> Generator[Attributes]:
    """Note what happens inside, of the current request; gives its attributes, to be added to.
    Outside of any request nothing is noted.
    """
    trace = current()
    start = 0.0 if trace is None else trace.now()
    try:
        yield attributes
    finally:
        if trace is not None:
            trace.add(name, start, trace.now(), attributes)
