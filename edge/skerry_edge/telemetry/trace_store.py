"""The last traces of an edge, in its memory: bounded in number and in bytes, gone with the process.

They never leave the edge but to who asks for one, or by an exporter that was asked for: a trace of
a request bound to a zone stays in that zone as its edge does.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from skerry_edge.telemetry.tracing import Trace, TraceRecord

MAX_TRACES = 2048
MAX_BYTES = 16 << 20

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Kept:
    """A finished trace."""

    tenant: str
    content: bytes  # JSON of a `TraceRecord`


class TraceStore:
    """Traces by request id: those that run, and the last ones that ended."""

    def __init__(
        self, edge: str = "", *, max_traces: int = MAX_TRACES, max_bytes: int = MAX_BYTES
    ) -> None:
        self._edge = edge
        self._max_traces, self._max_bytes = max_traces, max_bytes
        self._running: dict[str, Trace] = {}  # no more than the edge has requests in progress
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._bytes = 0

    def begin(self, trace: Trace, tenant: str) -> None:
        """A request for a model was let in; from now on it can be found."""
        trace.tenant = tenant
        self._running[trace.request_id] = trace

    def end(self, trace: Trace, status: int | None, route: str) -> TraceRecord | None:
        """The request is over; its record, or None when it never began."""
        if self._running.pop(trace.request_id, None) is None:
            return None
        record = trace.record(self._edge, status=status, route=route)
        self._keep(record)
        return record

    def find(self, request_id: str) -> Kept | None:
        """A request's trace as far as it has come; None when it is unknown, or forgotten."""
        if (trace := self._running.get(request_id)) is not None:
            return _kept(trace.record(self._edge, ended=False))
        return self._kept.get(request_id)

    def __len__(self) -> int:
        return len(self._kept)

    def _keep(self, record: TraceRecord) -> None:
        """A later attempt at the same request, as batches make them, takes the place of it."""
        if (older := self._kept.pop(record.request_id, None)) is not None:
            self._bytes -= len(older.content)
        kept = self._kept[record.request_id] = _kept(record)
        self._bytes += len(kept.content)
        while len(self._kept) > self._max_traces or self._bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest.content)


def _kept(record: TraceRecord) -> Kept:
    return Kept(record.tenant, _encode(record))
