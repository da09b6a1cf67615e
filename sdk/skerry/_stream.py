"""Streams: readers of chunks, and the two iterators that users hold.

A reader does no I/O: bytes in, chunks out, however the bytes are cut. `Stream` and
`AsyncStream` only move bytes from a response into a reader.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from types import TracebackType
from typing import Self

import httpx

from skerry._events import Event, EventDecoder
from skerry._replies import (
    FAILURE_KEYS,
    error_from_content,
    raise_if_failed,
    request_id,
    result_from,
    transport_error,
)
from skerry._results import Chunk, Result, decode_json, is_json, media_type
from skerry.errors import ConnectionFailed, InternalError

MAX_BODY_BYTES = 1 << 30  # of a whole reply; many hours of audio fit
DONE = "[DONE]"


class EventReader:
    """Chunks of a `text/event-stream` that ends with `data: [DONE]`."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        """`headers` are the reply's."""
        self._decoder = EventDecoder()
        self._headers = headers
        self.done = False  # the reply is complete; whatever follows does not matter

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """Take the next bytes; exhaust the iterator. Raises the error that the reply carries."""
        if self.done:
            return
        for event in self._decoder.feed(data):
            if event.data.strip() == DONE:
                self.done = True
                return
            yield self._chunk(event)

    def finish(self) -> Iterator[Chunk]:
        """Take in that the body has ended. Raises `ConnectionFailed` when it was cut short."""
        if not self.done:
            raise ConnectionFailed(
                "The stream ended before it was complete.", request_id=request_id(self._headers)
            )
        return iter(())

    def _chunk(self, event: Event) -> Chunk:
        content = decode_json(event.data)
        if not isinstance(content, Result):
            raise InternalError(
                f"An event of the stream is not a JSON object: {event.data[:100]!r}",
                request_id=request_id(self._headers),
            )
        if event.event == "error":
            raise error_from_content(content, request=request_id(self._headers))
        if not FAILURE_KEYS.isdisjoint(content):
            raise_if_failed(content, request_id(self._headers))
        return Chunk(content)


class WholeReader:
    """As `EventReader`, of a reply that came as plain JSON although a stream was requested: one
    chunk."""

    def __init__(self, headers: httpx.Headers) -> None:
        self._headers = headers
        self._body = BoundedBody()
        self.done = False

    def feed(self, data: bytes) -> Iterator[Chunk]:
        self._body.add(data)
        return iter(())

    def finish(self) -> Iterator[Chunk]:
        self.done = True
        result = result_from(self._headers, self._body.take())
        yield Chunk(result) if isinstance(result, Result) else Chunk(result=result)


class BoundedBody:
    """Collects a body piece by piece, up to a bound that no length header can talk it out of."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self._max = MAX_BODY_BYTES if max_bytes is None else max_bytes
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._max:
            raise InternalError(f"The platform's reply exceeds {self._max} bytes.")
        self._pieces.append(data)

    def take(self) -> bytes:
        return b"".join(self._pieces)


def can_stream(headers: httpx.Headers, *, asked: bool) -> bool:
    """Return whether the reply is handed over as a stream: events always, plain JSON when requested
    for."""
    media = media_type(headers)
    return media == "text/event-stream" or (asked and is_json(media))


def _reader(response: httpx.Response) -> EventReader | WholeReader:
    if is_json(media_type(response.headers)):
        return WholeReader(response.headers)
    return EventReader(response.headers)


class Stream:
    """Chunks of one reply, in the order in which they come.

        with ai.run(model, inputs, stream=True) as stream:
            for chunk in stream:
                print(chunk.response, end="")

    Iterating to the end, `close()`, or leaving a `for` loop or `with` block early each release the
    connection; the platform then stops generating. Iterating raises a `SkerryError` when the
    platform reports one, or when the stream is cut.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks = _read(response)

    @property
    def request_id(self) -> str | None:
        return request_id(self._response.headers)

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._chunks.close()
        self._response.close()  # a generator that never started runs no `finally`

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncStream:
    """`Stream` for asyncio and trio: `async for`, `async with`, `await stream.close()`.

    A task that is cancelled while it waits for a chunk closes the connection on its way out.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks = _aread(response)

    @property
    def request_id(self) -> str | None:
        return request_id(self._response.headers)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._chunks

    async def __anext__(self) -> Chunk:
        return await anext(self._chunks)

    async def close(self) -> None:
        """Stop reading. Idempotent."""
        await self._chunks.aclose()
        await self._response.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


# The generators hold the response and not the stream object: no reference cycle, so that a `for`
# loop over a temporary stream closes it as soon as the loop is left.


def _read(response: httpx.Response) -> Generator[Chunk]:
    reader = _reader(response)
    try:
        for data in response.iter_bytes():
            yield from reader.feed(data)
        yield from reader.finish()
    except httpx.RequestError as exc:
        if not reader.done:
            raise transport_error(exc, _origin(response)) from exc
    finally:
        response.close()


async def _aread(response: httpx.Response) -> AsyncGenerator[Chunk]:
    reader = _reader(response)
    try:
        async for data in response.aiter_bytes():
            for chunk in reader.feed(data):
                yield chunk
        for chunk in reader.finish():
            yield chunk
    except httpx.RequestError as exc:
        if not reader.done:
            raise transport_error(exc, _origin(response)) from exc
    finally:
        await response.aclose()


def _origin(response: httpx.Response) -> str:
    url = response.request.url
    return f"{url.scheme}://{url.netloc.decode('ascii')}"
