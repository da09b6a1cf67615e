"""Server-sent events over ASGI: one write per step, comments while silent, failures as events.

After the first byte the status line is gone: an error can only be an event, and its absence of
`[DONE]` shows clients that the stream broke. A client that goes away cancels the work: uvicorn
reports it to `receive`, so somebody has to be listening there all the time.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from types import TracebackType

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from skerry.errors import InternalError, RequestTimeout, SkerryError, Unavailable
from skerry_edge.answer_headers import AnswerHeaders
from skerry_edge.hints import EXPLAIN_HEADER

GRACE_SECONDS = 0.02  # that a client may be gone before it is noticed
DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx, and what copies it, would hold events back
]

logger = logging.getLogger(__name__)


class Attended:
    """While entered, a client that goes away cancels the entering task.

    The cancellation leaves the block as `ClientDisconnect`; one that came from elsewhere stays what
    it is. `on_silence` is awaited whenever nothing came from the client for `interval` seconds; if
    it fails, the task is cancelled as well, and the failure leaves the block.

    Most blocks are left before `GRACE_SECONDS` have passed, and cost no task that listens.
    """

    def __init__(
        self,
        receive: Receive,
        interval: float | None = None,
        on_silence: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._receive = receive
        self._interval = interval
        self._on_silence = on_silence
        self._failure: Exception | None = None
        self._watch: asyncio.Task[None] | None = None  # from the grace's end on
        self.gone = False  # or out of reach

    async def __aenter__(self) -> Attended:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("Attended must be entered inside a task")
        self._task = task
        self._grace = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._begin)
        return self

    def _begin(self) -> None:
        self._watch = asyncio.create_task(self._watch_client())

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._grace.cancel()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None  # its error refers to this by its traceback
        if self.gone and self._task.uncancel() == 0 and exc_type in (None, asyncio.CancelledError):
            raise self._failure or ClientDisconnect from None

    async def _watch_client(self) -> None:
        try:
            await self._listen()
        except Exception as exc:
            self._failure = exc
        self.gone = True
        self._task.cancel()

    async def _listen(self) -> None:
        """Wait until the client is gone."""
        while True:
            try:
                async with asyncio.timeout(self._interval):
                    message = await self._receive()
            except TimeoutError:
                if self._on_silence is not None:
                    await self._on_silence()
                continue
            if message["type"] == "http.disconnect":
                return


class EventStream(Response):
    """Sends `events` (whole events, already framed) as they come.

    `encode_error` frames a failure; `close` is called exactly when the stream is over, whichever
    way, and must be a plain function. At the `deadline`, or without an event at `begin_by`, the
    stream ends with `RequestTimeout`; both are times of `clock`, in seconds.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        encode_error: Callable[[SkerryError], bytes],
        close: Callable[[], None],
        headers: AnswerHeaders,
        keep_alive_seconds: float,
        deadline: float,
        begin_by: float,
        clock: Callable[[], float],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.raw_headers = list(HEADERS)
        self._events = events
        self._encode_error = encode_error
        self._close = close
        self._answer_headers = headers
        self._keep_alive_seconds = keep_alive_seconds
        self._deadline = deadline
        self._begin_by = begin_by
        self._clock = clock

    async def begin(self, receive: Receive) -> None:
        """Wait for the first event, before anything is sent. Raises what keeps it from coming, and
        then the stream is over."""
        try:
            async with Attended(receive) as client:
                try:
                    async with asyncio.timeout(
                        self._seconds_to(min(self._begin_by, self._deadline))
                    ):
                        first = await anext(self._events, b"")
                except (Exception, asyncio.CancelledError) as exc:
                    if client.gone:
                        raise
                    raise _as_skerry_error(exc) from None
        except BaseException:
            self._close()
            raise
        self._events = _resumed(first, self._events)
        self._begin_by = math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Sent with the headers; a failover changes it, and then it is sent in a comment, which no
        # client takes for a part of the answer.
        explained = self._answer_headers.get(EXPLAIN_HEADER)
        begin_by = min(self._begin_by, self._deadline)
        silent, last = True, b""

        async def comment() -> None:
            nonlocal silent
            if silent:
                await send(_part(COMMENT))
            silent = True

        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with Attended(receive, self._keep_alive_seconds, comment) as attended:
                try:
                    async with (
                        asyncio.timeout(self._seconds_to(begin_by)) as patience,
                        aclosing(self._events) as events,
                    ):
                        loop = asyncio.get_running_loop()
                        end = loop.time() + self._seconds_to(self._deadline)
                        async for event in events:
                            if patience.when() != end:
                                patience.reschedule(end)  # it has begun
                            silent = False
                            if (now := self._answer_headers.get(EXPLAIN_HEADER)) != explained:
                                explained = now
                                await send(_part(f": {EXPLAIN_HEADER}: {now}\n\n".encode("ascii")))
                            if event.endswith(DONE):
                                last = event  # goes with the end of the answer, in one write
                            else:
                                await send(_part(event))
                except (Exception, asyncio.CancelledError) as exc:
                    if attended.gone:
                        raise
                    await send(_part(self._encode_error(_as_skerry_error(exc))))
                    exc.__traceback__ = None  # what it went through may hold it
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            self._close()

    def _seconds_to(self, end: float) -> float:
        return max(0.0, end - self._clock())


async def _resumed(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        async for event in rest:
            yield event


def _part(data: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": True}


def interruption(
    exc: TimeoutError | asyncio.CancelledError, *, retryable: bool = True
) -> SkerryError:
    """Return why an answer was broken off, when it was not the client's doing.

    Not `retryable` when it was the caller's own deadline: it waits for no second try.
    """
    if isinstance(exc, TimeoutError):
        message = "The request's deadline passed before the answer was complete."
        return RequestTimeout(message, retryable=retryable)
    return Unavailable("The edge is shutting down.")


def _as_skerry_error(exc: BaseException) -> SkerryError:
    """Return what the client is sent of a failure in mid-stream."""
    match exc:
        case SkerryError():
            return exc
        case TimeoutError() | asyncio.CancelledError():
            return interruption(exc)
        case _:
            logger.error("a stream failed", exc_info=exc)
            return InternalError("Internal error; the request id finds it in the logs.")
