"""Heads of requests out of a stream of bytes, whatever its split. No I/O."""

from __future__ import annotations

from skerry_edge.http.head import BLANK_LINE, Head, check_partial, read_head
from skerry_edge.http.refusal import Refusal
from skerry_edge.limits import Limits


class HeadReader:
    """Keeps what came of heads: of the next one, or ahead of its turn."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bytes = bytearray()

    @property
    def is_empty(self) -> bool:
        return not self._bytes

    def keep(self, data: bytes) -> bool:
        """Keep what a client sent ahead of an answer; False where it is more than one may."""
        if len(self._bytes) + len(data) > self._limits.header_bytes:
            return False
        self._bytes += data
        return True

    def take_all(self) -> bytes:
        """Return what was kept."""
        data, self._bytes = bytes(self._bytes), bytearray()
        return data

    def read(self, data: bytes) -> tuple[Head | Refusal, bytes] | None:
        """Return a head, or why there is none, and what follows; None where more must come."""
        searched = max(0, len(self._bytes) - len(BLANK_LINE) + 1)
        self._bytes += data
        while self._bytes.startswith(b"\r\n"):  # RFC 9112, 2.2: empty lines before a request
            del self._bytes[:2]
            searched = 0
        if bytes(self._bytes) == b"\r":  # the beginning of one
            return None
        end = self._bytes.find(BLANK_LINE, searched) + len(BLANK_LINE)
        if end < len(BLANK_LINE):
            refusal = check_partial(bytes(self._bytes), self._limits)
            return None if refusal is None else (refusal, b"")
        head, rest = read_head(bytes(self._bytes[:end]), self._limits), bytes(self._bytes[end:])
        self._bytes.clear()
        return head, rest
