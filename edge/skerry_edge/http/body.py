"""The body of a request on its way: how large it may be, where it ends (by its size, or chunk by
chunk: RFC 9112, 6 and 7), and whether it comes fast enough. No I/O."""

from __future__ import annotations

import re

from skerry_edge.http.refusal import Refusal, body_too_large, malformed
from skerry_edge.limits import Limits

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
        """Return what of `data` is the body's, and what lies behind its end."""
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
        """Return what the chunks in `data` hold, and what lies behind the last. Raises
        `BodyRefused`."""
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
        """Return whether there was a whole one."""
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


def body_limit(target: bytes, limits: Limits) -> int:
    """Return how many bytes the body of a request to this target may have."""
    path = target.partition(b"?")[0]
    return limits.upload_bytes if path.endswith(b"/v1/files") else limits.body_bytes


def body_of(size: int | None, limit: int) -> SizedBody | ChunkedBody:
    """Return the body of a head's `body_size`, at its beginning."""
    return ChunkedBody(limit) if size is None else SizedBody(size)


class Upload:
    """A body on its way since `began` (seconds, as are all times here), and whether it comes fast
    enough."""

    def __init__(self, size: int | None, target: bytes, limits: Limits, began: float) -> None:
        """`size` is a head's `body_size`."""
        self._body = body_of(size, body_limit(target, limits))
        self._limits = limits
        self._began = began
        self._received = 0  # bytes

    @property
    def is_whole(self) -> bool:
        return self._body.is_whole

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the body's part of `data`, and what follows. Raises `BodyRefused`."""
        part, rest = self._body.take(data)
        self._received += len(part)
        return part, rest

    def is_too_slow(self, now: float) -> bool:
        """Return whether it is not waited for any longer."""
        elapsed, limits = now - self._began, self._limits
        is_slow = self._received < limits.body_bytes_per_second * elapsed
        return elapsed > limits.body_seconds or (is_slow and elapsed > limits.body_grace_seconds)


class Tunnel:
    """What comes after an answer of 101 (RFC 9110, 7.8): bytes of another protocol, to the end of
    the connection."""

    is_whole = False

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """Return all of `data`."""
        return data, b""

    def is_too_slow(self, now: float) -> bool:
        """Return False: whoever speaks the protocol knows how long it may be silent."""
        return False
