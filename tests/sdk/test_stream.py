"""The decoder of server-sent events: the standard's rules, and any split equals the whole."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry._events import Event, EventDecoder, EventTooLong
from skerry._stream import EventReader
from skerry.errors import ConnectionFailed


def decode(*pieces: bytes, max_event_bytes: int = 1 << 20) -> list[Event]:
    decoder = EventDecoder(max_event_bytes)
    return [event for piece in pieces for event in decoder.feed(piece)]


def message(data: str, event: str = "message", last_id: str = "") -> Event:
    return Event(event, data, last_id)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_each_line_ending(end: bytes) -> None:
    text = b"event: add|data: 1|data: 2||data: 3||".replace(b"|", end)
    assert decode(text) == [message("1\n2", "add"), message("3")]


def test_the_standards_examples() -> None:
    """WHATWG HTML, section 9.2.6."""
    stocks = b"data: YHOO\ndata: +2\ndata: 10\n\n"
    assert decode(stocks) == [message("YHOO\n+2\n10")]
    four = (
        b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event"
    )
    assert decode(four) == [message("first event", last_id="1"), message("second event")]
    assert decode(b"data\n\ndata\ndata\n\ndata:") == [message(""), message("\n")]
    assert decode(b"data:test\n\ndata: test\n\n") == [message("test"), message("test")]


def test_fields() -> None:
    assert decode(b"event: x\n\ndata: y\n\n") == [message("y")]  # no data: the type is forgotten
    assert decode(b"id: 7\ndata: a\n\ndata: b\n\n") == [
        message("a", last_id="7"),
        message("b", last_id="7"),
    ]
    assert decode(b"id: \0\ndata: a\n\n") == [message("a")]
    assert decode(b"retry: 10\nfoo: bar\n:\nDATA: no\ndata: a:b\n\n") == [message("a:b")]
    assert decode(b"data: \xe2\x80\xa8 \x0b \x1c\n\n") == [message("\u2028 \x0b \x1c")]


def test_byte_order_mark_and_broken_utf8() -> None:
    assert decode(b"\xef\xbb\xbfdata: a\n\n") == [message("a")]
    assert decode(b"\xef\xbb", b"\xbfdata: a\n\n") == [message("a")]
    assert decode(b"data: a\n\n\xef\xbb\xbfdata: b\n\n") == [message("a")]
    assert decode(b"data: \xc3\xa6\xff\n\n") == [message("\u00e6\ufffd")]


def test_an_event_is_out_with_the_byte_that_completes_it() -> None:
    decoder = EventDecoder()
    assert list(decoder.feed(b"data: a\r\n\r")) == [message("a")]
    assert list(decoder.feed(b"\ndata: b\r\r")) == [message("b")]
    assert list(decoder.feed(b"")) == []
    assert list(decoder.feed(b"\n\n")) == []


LINE_ENDS = [b"\n", b"\r", b"\r\n", b"\n\n"]
NAMES = [b"data", b"event", b"id", b"retry", b":", b" ", b"data: {}\n\n"]
ODD_BYTES = [b"x", b"\0", b"\xff", b"\xef\xbb\xbf", "\u00e6\U0001f30a".encode()]
TEXTS = st.lists(st.sampled_from(LINE_ENDS + NAMES + ODD_BYTES), max_size=40).map(b"".join)


@given(text=TEXTS, data=st.data())
def test_any_split_equals_the_whole(text: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    edges = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert decode(*pieces) == decode(text)
    assert decode(*(bytes([byte]) for byte in text)) == decode(text)


def line_by_line(text: bytes) -> list[Event]:
    """The standard's algorithm as it stands there: decode everything, split, interpret."""
    content = text.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    lines = content.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    events: list[Event] = []
    data, kind, last_id = "", "", ""
    for line in lines:
        if line == "":
            if data:
                events.append(Event(kind or "message", data.removesuffix("\n"), last_id))
            data, kind = "", ""
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data += value + "\n"
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            last_id = value
    return events


@given(text=TEXTS)
def test_equals_the_standards_algorithm(text: bytes) -> None:
    assert decode(text) == line_by_line(text)


def test_an_event_has_a_bound() -> None:
    fits = b"data: " + b"x" * 57 + b"\n"  # 64 bytes
    assert len(decode(fits[:-1] + b"\n", b"", max_event_bytes=64)) == 0
    assert decode(fits, max_event_bytes=64) == []
    with pytest.raises(EventTooLong, match="64 bytes"):
        decode(fits, b"d", max_event_bytes=64)
    with pytest.raises(EventTooLong):
        decode(*[b"x"] * 65, max_event_bytes=64)  # one line that never ends
    with pytest.raises(EventTooLong):
        decode(b"id: 1\n" * 20, max_event_bytes=64)  # one event that never ends
    comments = b": ping\n" * 100 + b"data: a\n\n" + b"data: b\n\n" * 100
    assert len(decode(comments, max_event_bytes=64)) == 101


@given(size=st.integers(1, 200), cut=st.integers(0, 200))
def test_the_bound_does_not_depend_on_the_split(size: int, cut: int) -> None:
    text = b"data: " + b"x" * size + b"\n\n"

    def outcome(*pieces: bytes) -> str:
        try:
            return repr(decode(*pieces, max_event_bytes=100))
        except EventTooLong:
            return "too long"

    assert outcome(text[:cut], text[cut:]) == outcome(text)


def test_nothing_after_done_matters() -> None:
    reader = EventReader({})
    chunks = list(reader.feed(b'data: {"response": "a"}\n\ndata: [DONE]\n\ndata: {]\n\n'))
    assert [chunk.response for chunk in chunks] == ["a"]
    assert reader.done
    assert list(reader.feed(b"data: {]\n\n")) == []
    assert list(reader.finish()) == []


def test_an_end_without_done_is_a_cut() -> None:
    reader = EventReader({"cf-ai-req-id": "request-1"})
    assert len(list(reader.feed(b'data: {"response": "a"}\n\n'))) == 1
    with pytest.raises(ConnectionFailed, match="before it was complete") as caught:
        reader.finish()
    assert caught.value.request_id == "request-1"
