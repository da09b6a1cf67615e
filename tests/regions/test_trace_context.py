"""W3C Trace Context: what is valid is continued, what is not is as if it had not come."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry_regions.trace_context import MAX_STATE, context_of, new_context, parse

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"


def test_a_valid_parent_is_continued_by_a_child() -> None:
    context = parse(VALID.encode(), b"vendor=a:1, other@tenant=x")
    assert context is not None
    assert (context.trace_id, context.span_id, context.is_sampled) == (TRACE, SPAN, True)
    child = context.child()
    assert (child.trace_id, child.state) == (TRACE, "vendor=a:1,other@tenant=x")
    assert child.span_id != SPAN
    assert child.traceparent == f"00-{TRACE}-{child.span_id}-01"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "garbage",
        VALID.upper(),
        f"ff-{TRACE}-{SPAN}-01",  # a version that cannot be
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"{VALID}-more",  # not in version 00
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"{VALID}\n",
    ],
)
def test_a_malformed_parent_is_absent(header: str) -> None:
    assert parse(header.encode()) is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    context = parse(f"01-{TRACE}-{SPAN}-09-what-else".encode())
    assert context is not None
    assert context.traceparent == f"00-{TRACE}-{SPAN}-01"


def test_a_trace_that_is_not_sampled_stays_so() -> None:
    context = parse(f"00-{TRACE}-{SPAN}-00".encode())
    assert context is not None
    assert not context.is_sampled
    assert not context.child().is_sampled


@pytest.mark.parametrize(
    "state",
    [
        "a=1,a=2",  # twice
        "A=1",
        "a",
        "a=b=c",
        "=1",
        ",".join(f"k{i}=v" for i in range(33)),
        f"a={'x' * 300}",
        ",".join(f"k{i}={'x' * 200}" for i in range(3)),  # beyond the bound of the whole
        "a=ü",
    ],
)
def test_a_malformed_state_is_dropped_and_the_parent_stays(state: str) -> None:
    context = parse(VALID.encode(), state.encode("latin-1"))
    assert context is not None
    assert context.state == ""


def test_headers_are_joined_and_a_second_parent_makes_none() -> None:
    headers = [(b"traceparent", VALID.encode()), (b"tracestate", b"a=1"), (b"tracestate", b"b=2")]
    context = context_of(headers)
    assert context is not None
    assert context.state == "a=1,b=2"
    assert context_of([*headers, (b"traceparent", VALID.encode())]) is None
    assert context_of([]) is None


def test_a_fresh_context_is_sampled_and_never_the_same() -> None:
    one, other = new_context(), new_context()
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", one.traceparent)
    assert one.trace_id != other.trace_id


@given(st.binary(max_size=600), st.binary(max_size=700))
def test_no_header_does_harm(parent: bytes, state: bytes) -> None:
    context = parse(parent, state)
    assert context is None or len(context.state) <= MAX_STATE
    context = parse(VALID.encode(), state)
    assert context is not None
    assert parse(context.traceparent.encode(), context.state.encode()) == context
