"""The requests of one lane of a WebSocket, one after another, each as if it had come over HTTP."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.types import Message, Scope

from skerry.errors import InternalError
from skerry_edge.api.responses.recent import RecentResponses, SocketCall
from skerry_edge.api.responses.socket_events import (
    broken_off,
    error_event,
    events_in,
    marked,
    refusal,
    told_headers,
)
from skerry_edge.gate.inside import Serve
from skerry_edge.gate.principal import Principal
from skerry_edge.http.inner_client import headers_in, sends

EVENTS = "text/event-stream"
# Of the request that switched protocols: what is its own, and what means one request.
OWN = frozenset((
    b"authorization", b"connection", b"content-encoding", b"content-length", b"content-type",
    b"idempotency-key", b"transfer-encoding", b"upgrade",
))  # fmt: skip
KEPT = (  # of its scope
    "type", "asgi", "http_version", "scheme", "path", "raw_path", "root_path", "client", "server",
)  # fmt: skip

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A request that waits for its turn."""

    body: bytes
    previous: str  # id of the response that it goes on from; "": of none
    begun: Callable[[], None]  # is called when its turn has come


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """What the lanes of a connection have in common."""

    scope: Scope  # of the request that switched protocols
    serve: Serve
    principal: Callable[[], Principal]
    recent: RecentResponses
    running: asyncio.Semaphore
    over: asyncio.Event  # there is no client any more
    send: Callable[[bytes], Awaitable[None]]
    rested: Callable[[], None]  # is called when a lane has nothing more to do


class Lane:
    """One lane."""

    def __init__(self, name: str, connected: Connected) -> None:
        self._name = name
        self._connected = connected
        self._queue: deque[Waiting] = deque()
        self.task: asyncio.Task[None] | None = None  # while there is something to do

    def put(self, request: Waiting) -> None:
        """Have a request answered, after those before it."""
        self._queue.append(request)
        if self.task is None:
            self.task = asyncio.create_task(self._run(), name=f"lane {self._name}")

    def drop(self) -> None:
        """Answer nothing of what waits."""
        self._queue.clear()

    async def _run(self) -> None:
        connected = self._connected
        try:
            while self._queue and not connected.over.is_set():
                async with connected.running:
                    request = self._queue.popleft()
                    request.begun()
                    await self._answer(request)
        finally:
            self.task = None
            connected.rested()

    async def _answer(self, request: Waiting) -> None:
        connected = self._connected
        inside = SocketCall(
            request_id=str(uuid.uuid4()),
            principal=connected.principal(),
            priority="interactive",
            recent=connected.recent,
            lane=self._name,
        )
        exchange = _LaneExchange(self._name, connected)
        scope = _scope(connected.scope, len(request.body))
        try:
            receive = sends(request.body, connected.over)
            await connected.serve(scope, receive, exchange.send, inside)
        except Exception as error:  # half an answer is out
            logger.error("request %s failed", inside.request_id, exc_info=error)
            failed = error_event(InternalError("Internal error; the request id finds it."))
            await connected.send(marked(failed, self._name))
            exchange.has_failed = True
        if exchange.has_failed and request.previous:
            connected.recent.evict(self._name, request.previous)


class _LaneExchange:
    """A request's answer as events of the connection."""

    def __init__(self, lane: str, connected: Connected) -> None:
        self._lane = lane
        self._connected = connected
        self._status = 0
        self._headers: dict[str, str] = {}
        self._refused = bytearray()
        self._has_begun = False
        self.has_failed = False

    async def send(self, message: Message) -> None:
        """Send what the message has of events, or the whole of a refusal."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = headers_in(message)
        elif self._headers.get("content-type") == EVENTS:
            for name, data in events_in(message.get("body", b"")):
                await self._send_event(name, data)
        else:
            self.has_failed = True
            self._refused += message.get("body", b"")
            if not message.get("more_body", False):
                told = refusal(self._status, bytes(self._refused), self._headers)
                await self._connected.send(marked(told, self._lane))

    async def _send_event(self, name: bytes, data: bytes) -> None:
        if name == b"error":
            self.has_failed = True
            data = broken_off(data)
        headers = None if self._has_begun else told_headers(self._headers)
        self._has_begun = True
        await self._connected.send(marked(data, self._lane, headers))


def _scope(switched: Scope, size: int) -> Scope:
    """Return the scope of a request to the same path."""
    fields = [
        (name, value)
        for name, value in switched["headers"]
        if name not in OWN and not name.startswith(b"sec-websocket-")
    ]
    return {
        **{name: switched[name] for name in KEPT if name in switched},
        "method": "POST",
        "query_string": b"",
        "headers": [
            *fields,
            (b"content-type", b"application/json"),
            (b"content-length", str(size).encode()),
        ],
    }
