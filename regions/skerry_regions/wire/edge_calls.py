"""A client's request that one edge has another one answer, which stands where what it names is
kept; with the client's own credentials, which both check.

    edge of `us`                                edge of `eu`
      │ ── EdgeCall(stream, GET …/resp_eu.3f2a) ──▶ │   never sent on
      │ ◀── EdgeAnswer(stream, 200, header) ─────── │
      │ ◀── EdgeAnswer(stream, data) … ──────────── │   each costs a credit, but for the last
      │ ◀── EdgeAnswer(stream, is_last) | Failed ── │
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from skerry_regions.zones import Zone

MAX_TARGET = 8192  # bytes of a path with its query
MAX_BODY = 64 << 10
MAX_VALUE = 16 << 10  # of a field of the header
PART_BYTES = 64 << 10  # of an answer

StreamId = Annotated[int, Meta(ge=1, lt=1 << 32)]
HeaderField = tuple[
    Annotated[bytes, Meta(max_length=64)], Annotated[bytes, Meta(max_length=MAX_VALUE)]
]
HeaderFields = Annotated[list[HeaderField], Meta(max_length=16)]


class EdgeCall(Struct, frozen=True, kw_only=True, tag="edge_call"):
    """Start a stream that answers a request over HTTP."""

    stream: StreamId
    zone: Zone  # of the edge that has the client
    method: Literal["GET", "POST", "DELETE"]
    target: Annotated[bytes, Meta(min_length=1, max_length=MAX_TARGET)]  # as it came
    headers: HeaderFields
    body: Annotated[bytes, Meta(max_length=MAX_BODY)] = b""


class EdgeAnswer(Struct, frozen=True, kw_only=True, tag="edge_answer"):
    """A part of an answer. The first one has status and header, those after it 0 and none."""

    stream: StreamId
    status: Annotated[int, Meta(ge=0, le=599)] = 0
    headers: HeaderFields = []
    data: Annotated[bytes, Meta(max_length=PART_BYTES)] = b""
    is_last: bool = False
