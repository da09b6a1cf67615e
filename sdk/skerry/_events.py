"""Server-sent events, decoded without I/O: bytes in, events out, however the bytes are cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from skerry.errors import InternalError

MAX_EVENT_BYTES = 16 << 20  # of one event's lines; an image in base64 fits
BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One server-sent event."""

    event: str  # "message" unless the stream says otherwise
    data: str  # its `data` lines joined by newlines
    id: str  # the last id seen so far, "" when none was


class EventTooLong(InternalError, code="event_too_long", number=8008, status=500):
    """One event of a stream exceeds `MAX_EVENT_BYTES`."""


class EventDecoder:
    """Decodes `text/event-stream` (WHATWG HTML §9.2.6): LF, CR and CRLF, comments, a leading BOM.

    The events are the same however the bytes are split over `feed`. An event that its blank line
    never ends is dropped, as the standard requires. `retry` is ignored: nothing here reconnects.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._size = 0  # bytes of the event so far, and of the unfinished line
        self._line: list[bytes] = []  # pieces of the unfinished line
        self._after_cr = False  # a LF that comes next belongs to the CR before it
        self._at_start = True
        self._event = ""
        self._data: list[str] = []
        self._id = ""

    def feed(self, data: bytes) -> Iterator[Event]:
        """Take the next bytes; yield each event that they complete. Raises `EventTooLong`.

        Exhaust the iterator: bytes that it has not reached are lost.
        """
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        for line in data.splitlines(keepends=True):  # bytes split at LF, CR and CRLF only
            self._grow(len(line))
            self._line.append(line)
            self._after_cr = line.endswith(b"\r")  # of the last line; elsewhere it is known
            if not line.endswith((b"\n", b"\r")):
                return  # the last piece: its end is still to come
            if event := self._end_line():
                yield event

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._max:
            raise EventTooLong(f"An event of the stream exceeds {self._max} bytes.")

    def _end_line(self) -> Event | None:
        raw = b"".join(self._line)
        self._line.clear()
        size = len(raw)
        if self._at_start:
            raw = raw.removeprefix(BOM)
            self._at_start = False
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            return self._dispatch()
        if line.startswith(":"):
            self._size -= size  # a comment is no part of the event
            return None
        name, _, value = line.partition(":")
        self._field(name, value.removeprefix(" "))
        return None

    def _field(self, name: str, value: str) -> None:
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value

    def _dispatch(self) -> Event | None:
        data, event = self._data, self._event
        self._data, self._event, self._size = [], "", 0
        return Event(event or "message", "\n".join(data), self._id) if data else None
