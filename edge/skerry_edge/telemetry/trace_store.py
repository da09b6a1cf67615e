"""The last traces of an edge, in its memory: bounded in number and in bytes, gone with the process.

They never leave the edge but to who requests one, or by an exporter that is configured: a trace of
a request bound to a zone stays in that zone as its edge does. Most are never read, and so they are
only written out when they are.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from skerry_edge.telemetry.tracing import Trace, TraceRecord

MAX_TRACES = 2048
MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class EndedTrace:
    """A finished request's."""

    trace: Trace
    tenant: str
    status: int | None
    route: str
    seconds: float
    size: int  # bytes, about


class TraceStore:
    """Traces by request id: those that run, and the last ones that ended."""

    def __init__(
        self, edge: str = "", *, max_traces: int = MAX_TRACES, max_bytes: int = MAX_BYTES
    ) -> None:
        self.edge = edge  # its id
        self._max_traces, self._max_bytes = max_traces, max_bytes
        self._running: dict[str, tuple[Trace, str]] = {}  # with the tenant; one for each request
        self._ended: OrderedDict[str, EndedTrace] = OrderedDict()
        self.num_bytes = 0  # that the ended ones take, about
        self._watchers: list[Callable[[EndedTrace], None]] = []

    def watch(self, hear: Callable[[EndedTrace], None]) -> None:
        """Call `hear` with every trace that ends, until `unwatch`. It must not raise."""
        self._watchers.append(hear)

    def unwatch(self, hear: Callable[[EndedTrace], None]) -> None:
        """Call it no more."""
        self._watchers.remove(hear)

    def begin(self, trace: Trace, tenant: str) -> None:
        """Have a request for a model found from now on: it was let in."""
        self._running[trace.request_id] = trace, tenant

    def end(self, trace: Trace, status: int | None, route: str) -> bool:
        """Keep the trace of a request that is over; returns False when it never began.

        A later attempt at the same request, as batches make them, takes the place of it.
        """
        id = trace.request_id
        if (running := self._running.pop(id, None)) is None:
            return False
        if (older := self._ended.pop(id, None)) is not None:
            self.num_bytes -= older.size
        ended = self._ended[id] = EndedTrace(
            trace, running[1], status, route, trace.now(), trace.size
        )
        self.num_bytes += ended.size
        while len(self._ended) > self._max_traces or self.num_bytes > self._max_bytes:
            _, oldest = self._ended.popitem(last=False)
            self.num_bytes -= oldest.size
        for hear in self._watchers:
            hear(ended)
        return True

    def last(self, tenant: str, number: int) -> list[EndedTrace]:
        """Return a tenant's last requests that ended, the newest first."""
        own = (each for each in reversed(self._ended.values()) if each.tenant == tenant)
        return list(itertools.islice(own, number))

    def record(self, request_id: str) -> TraceRecord | None:
        """Return a request's trace as far as it has come; None when it is unknown, or forgotten."""
        if (running := self._running.get(request_id)) is not None:
            trace, tenant = running
            return trace.record(self.edge, tenant=tenant, ended=False)
        if (ended := self._ended.get(request_id)) is None:
            return None
        return self.record_of(ended)

    def record_of(self, ended: EndedTrace) -> TraceRecord:
        """Return the trace of a request that ended."""
        return ended.trace.record(
            self.edge,
            tenant=ended.tenant,
            status=ended.status,
            seconds=ended.seconds,
            route=ended.route,
        )
