"""W3C Trace Context: whose trace a request belongs to, as two headers say it, without I/O.

https://www.w3.org/TR/trace-context/, level 1. What is malformed is treated as absent, as the
standard requires: a bad header of a caller must not cost it the answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

TRACEPARENT = b"traceparent"
TRACESTATE = b"tracestate"
MAX_STATE = 512  # characters of a tracestate; a longer one is dropped
MAX_MEMBERS = 32  # of a tracestate
SAMPLED = 1  # the one flag of level 1

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KEY = r"[a-z0-9][a-z0-9_\-*/]{0,240}(?:@[a-z][a-z0-9_\-*/]{0,13})?"
_MEMBER = re.compile(_KEY + r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")


class TraceContext(Struct, frozen=True, kw_only=True):
    """One place in a trace: the span that whatever comes next is a child of."""

    trace_id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    span_id: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    flags: Annotated[int, Meta(ge=0, le=255)] = SAMPLED
    state: Annotated[str, Meta(max_length=MAX_STATE)] = ""  # other vendors' words, passed on as is

    @property
    def is_sampled(self) -> bool:
        """Return whether the caller records this trace."""
        return bool(self.flags & SAMPLED)

    @property
    def traceparent(self) -> str:
        """Return the header's value."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    def child(self) -> TraceContext:
        """Return the same trace, with a new span as its place."""
        return TraceContext(
            trace_id=self.trace_id,
            span_id=new_span_id(),
            flags=self.flags,
            state=self.state,
        )


def new_context() -> TraceContext:
    """Return the root of a trace of our own."""
    return TraceContext(trace_id=f"{random.getrandbits(128) or 1:032x}", span_id=new_span_id())


def new_span_id() -> str:
    """Return an id that is not zero, which is none. It need not be unguessable."""
    return f"{random.getrandbits(64) or 1:016x}"


def context_of(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """Return the caller's place in its trace; None when it names none, or not in one valid header.

    Header names are lower case, as ASGI has them.
    """
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in headers:
        if name == TRACEPARENT:
            parents.append(value)
        elif name == TRACESTATE:
            states.append(value)
    return parse(parents[0], b",".join(states)) if len(parents) == 1 else None


def parse(traceparent: bytes, tracestate: bytes = b"") -> TraceContext | None:
    """Return the context of two headers' values; None when the first is malformed.

    Of a version above 00 the fields known here are taken, and only the flag known here is passed
    on. A malformed state is left out.
    """
    match = _TRACEPARENT.fullmatch(traceparent.decode("latin-1").strip(" \t"))
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if (
        version == "ff"
        or (version == "00" and rest)
        or not (int(trace_id, 16) and int(span_id, 16))
    ):
        return None
    return TraceContext(
        trace_id=trace_id,
        span_id=span_id,
        flags=int(flags, 16) & SAMPLED,
        state=_state(tracestate.decode("latin-1")),
    )


def _state(text: str) -> str:
    """Return a tracestate in one line; empty when it is malformed or beyond the bounds."""
    members = [member.strip(" \t") for member in text.split(",")]
    members = [member for member in members if member]
    keys = {member.partition("=")[0] for member in members}
    whole = ",".join(members)
    is_valid = (
        len(members) <= MAX_MEMBERS
        and len(whole) <= MAX_STATE
        and len(keys) == len(members)
        and all(map(_MEMBER.fullmatch, members))
    )
    return whole if is_valid else ""
