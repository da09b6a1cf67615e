"""Requests of one edge's clients that another edge answers, which stands in the zone of what they
name: over the link between the two, in ASGI's terms.

    handler ──▶ ZoneCalls ──▶ CallAnswer ── link ──▶ RegionGateway ──▶ CallDoor ──▶ application

The far edge checks the client's credentials as those of any request. Parts of an answer are sent as
fast as the client reads them, and it ends when the client goes.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from skerry.errors import Overloaded, SkerryError, Unavailable
from skerry_edge.http.inner_client import inner_scope, sends
from skerry_regions.wire.client import error_of, failed_event
from skerry_regions.wire.edge_calls import PART_BYTES, EdgeAnswer, EdgeCall, HeaderFields
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.protocol import Failed

ZONE_KEY = "skerry.zone"  # of a scope: where the edge is that has the client
ANSWER_SECONDS = 10.0  # until an answer begins
MAX_EDGES = 3  # of a zone, that are tried one after another
MAX_CALLS = 128  # at once, of an edge: its streams share the links
MAX_TENANT_CALLS = 16
ANSWER_HEADERS = frozenset((b"content-type", b"content-length", b"retry-after", b"allow"))


class ZoneCalls:
    """Has edges of other zones answer, within bounds. Lives on the links' event loop."""

    def __init__(self, links: Callable[[str], Iterable[NodeLink]]) -> None:
        """`links` are those to the edges of a zone."""
        self._links = links
        self._running = Counter[str]()  # by tenant

    def knows(self, zone: str) -> bool:
        """Return whether an edge of that zone is known."""
        return any(True for _ in self._links(zone))

    async def call(self, zone: str, tenant: str, call: EdgeCall) -> CallAnswer:
        """Return an answer that has begun, to be closed by the caller.

        Raises `Overloaded`, `Unavailable` where no edge of the zone answers, and what keeps one
        from it.
        """
        if self._running[tenant] >= MAX_TENANT_CALLS or self._running.total() >= MAX_CALLS:
            raise Overloaded(
                f"Too many requests are answered by edges in {zone!r} now.", retry_after=1.0
            )
        links = sorted(
            (link for link in self._links(zone) if link.is_up),
            key=lambda link: math.inf if link.rtt is None else link.rtt,
        )
        for link in links[:MAX_EDGES]:
            answer = CallAnswer(link, lambda: self._ended(tenant))
            self._running[tenant] += 1
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await answer.begin(call)
            except (Unavailable, TimeoutError):
                answer.close()
                if answer.is_sent and call.method != "GET":
                    break  # it may be done
            except BaseException:
                answer.close()
                raise
            else:
                return answer
        raise Unavailable(f"No edge in {zone!r}, where it is kept, answers now.", retry_after=1.0)

    def _ended(self, tenant: str) -> None:
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]


class CallAnswer:
    """The client's side of a call."""

    def __init__(self, link: NodeLink, ended: Callable[[], None]) -> None:
        self.status = 0
        self.headers: HeaderFields = []
        self._link = link
        self._ended = ended
        self._stream: int | None = None
        self._parts = asyncio.Queue[EdgeAnswer | Failed]()  # no more than there is credit for
        self._is_over = self._is_closed = False

    @property
    def is_sent(self) -> bool:
        return self._stream is not None

    async def begin(self, call: EdgeCall) -> None:
        """Send the call, and return when status and header are there. Raises what ends it."""
        self._stream = self._link.call(call, self._parts.put_nowait)
        first = await self._next()
        if not first.status:
            raise Unavailable("the other edge answered without a status")
        self.status, self.headers = first.status, first.headers

    async def body(self) -> AsyncGenerator[bytes, None]:
        """Yield the body; then it is closed."""
        try:
            while not self._is_over:
                yield (await self._next()).data
        finally:
            self.close()

    def close(self) -> None:
        """Have the other edge stop. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._stream is not None and not self._is_over:
            self._link.forget(self._stream)
        self._ended()

    async def _next(self) -> EdgeAnswer:
        part = await self._parts.get()
        if isinstance(part, Failed):
            self._is_over = True
            raise error_of(part)
        self._is_over = part.is_last
        if not part.is_last:
            self._link.consumed(part.stream)
        return part


class CallDoor:
    """Takes calls of other edges to this edge's application."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None

    def open(self, app: ASGIApp) -> None:
        """Let calls in from now on: the edge serves."""
        self._app = app

    def answer(self, call: EdgeCall, sink: Callable[[EdgeAnswer | Failed], None]) -> Answering:
        """Begin to answer. Raises Unavailable."""
        if self._app is None:
            raise Unavailable("the edge does not serve yet")
        return Answering(self._app, call, sink)


class Answering:
    """The application's side of a call. Ends with exactly one event that is the last."""

    def __init__(
        self, app: ASGIApp, call: EdgeCall, sink: Callable[[EdgeAnswer | Failed], None]
    ) -> None:
        self._stream = call.stream
        self._sink = sink
        self._is_over = False
        self._writable = asyncio.Event()
        self._writable.set()
        answering = app(_scope(call), sends(call.body), self._send)
        self._task = asyncio.ensure_future(answering)
        self._task.add_done_callback(self._end)

    def abort(self) -> None:
        """Stop it; its last event still comes. Idempotent, never fails."""
        self._task.cancel()

    def pause(self) -> None:
        """Make no more of it until `resume`."""
        self._writable.clear()

    def resume(self) -> None:
        self._writable.set()

    def _end(self, task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if not self._is_over:
            self._is_over = True
            refusal = error if isinstance(error, SkerryError) else Unavailable("it was broken off")
            self._sink(failed_event(self._stream, refusal))

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [field for field in message["headers"] if field[0].lower() in ANSWER_HEADERS]
            self._sink(EdgeAnswer(stream=self._stream, status=message["status"], headers=headers))
            return
        data, has_more = message.get("body", b""), message.get("more_body", False)
        parts = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)] or [b""]
        for number, part in enumerate(parts, 1):
            await self._writable.wait()
            is_last = number == len(parts) and not has_more
            self._is_over = is_last
            if part or is_last:
                self._sink(EdgeAnswer(stream=self._stream, data=part, is_last=is_last))


def _scope(call: EdgeCall) -> Scope:
    path, _, query = call.target.partition(b"?")
    length = (b"content-length", str(len(call.body)).encode())
    decoded, fields = unquote(path.decode("latin-1")), [*call.headers, length]
    scope = inner_scope(call.method, decoded, fields, raw_path=path, query=query)
    return {**scope, ZONE_KEY: call.zone}
