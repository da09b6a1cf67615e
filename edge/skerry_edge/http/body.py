"""Where the body of a request ends: by its size, or chunk by chunk (RFC 9112, 6 and 7). No I/O."""

from __future__ import annotations

import re

from skerry_edge.http.refusal import Refusal, body_too_large, malformed

MAX_LINE = 256  # bytes of a chunk's size with its extensions, or of a trailer field
MAX_TRAILERS = 16

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[\t -~]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")


class BodyRefused(Exception):
    """The body is not served; `refusal` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class SizedBody:
    """A body of so many bytes."""

    def __init__(self, size: int) -> None:
        self._left = size

    @property
    def is_whole(self) -> bool:
        return not self._left

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """What of `data` is the body's, and what lies behind its end."""
        part, rest = data[: self._left], data[self._left :]
        self._left -= len(part)
        return part, rest


class ChunkedBody:
    """A body in chunks, of `limit` bytes at most. Extensions and trailers are read and dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0  # bytes of all chunks so far
        self._left = 0  # of the chunk in progress
        self._buffer = bytearray()
        self._expect = self._take_size  # takes the next line
        self._num_trailers = 0
        self.is_whole = False

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """What the chunks in `data` hold, and what lies behind the last. Raises `BodyRefused`."""
        self._buffer += data
        content = bytearray()
        while not self.is_whole and (self._take_data(content) or self._take_line()):
            pass
        if not self.is_whole:
            return bytes(content), b""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return bytes(content), rest

    def _take_data(self, content: bytearray) -> bool:
        part = self._buffer[: self._left]
        del self._buffer[: len(part)]
        self._left -= len(part)
        content += part
        return bool(part)

    def _take_line(self) -> bool:
        """Whether there was a whole one."""
        if self._left:
            return False
        end = self._buffer.find(b"\r\n", 0, MAX_LINE + 2)
        if end < 0:
            if len(self._buffer) > MAX_LINE:
                raise BodyRefused(malformed("A line between the body's chunks is too long."))
            return False
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        self._expect(line)
        return True

    def _take_size(self, line: bytes) -> None:
        match = _CHUNK_SIZE.fullmatch(line)
        if match is None:
            raise BodyRefused(malformed("The size of a chunk is malformed."))
        self._left = int(match[1], 16)
        self._size += self._left
        if self._size > self._limit:
            raise BodyRefused(body_too_large(self._limit))
        self._expect = self._take_end if self._left else self._take_trailer

    def _take_end(self, line: bytes) -> None:
        if line:
            raise BodyRefused(malformed("A chunk is longer than it says."))
        self._expect = self._take_size

    def _take_trailer(self, line: bytes) -> None:
        self._num_trailers += 1
        if not line:
            self.is_whole = True
        elif self._num_trailers > MAX_TRAILERS or not _TRAILER.fullmatch(line):
            raise BodyRefused(malformed("What follows the last chunk is malformed."))


def body_of(size: int | None, limit: int) -> SizedBody | ChunkedBody:
    """The body of a head's `body_size`."""
    return ChunkedBody(limit) if size is None else SizedBody(size)
