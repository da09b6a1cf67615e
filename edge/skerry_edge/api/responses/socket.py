"""Responses over a WebSocket: `response.create` events in, the events of their answers out.

    message ──▶ lane ──▶ the rim, as `POST …/v1/responses` ──▶ events, one message each

Whatever a request over HTTP passes (credentials, limits, admission, usage, trace) each of these
passes as well; here is only what a connection has beside it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

from starlette.types import Receive, Send

from skerry.errors import (
    AuthenticationError,
    InvalidInput,
    RateLimited,
    SkerryError,
    Unavailable,
)
from skerry_edge.api.edge_request import INLINE_BYTES, EdgeRequest
from skerry_edge.api.responses.lane import Connected, Lane, Waiting
from skerry_edge.api.responses.recent import RecentResponses
from skerry_edge.api.responses.socket_events import (
    CREATE,
    LANE,
    STEER,
    SentEvent,
    error_event,
    marked,
    read_event,
    steering_failed,
)
from skerry_edge.gate.auth import authenticated
from skerry_edge.gate.principal import Principal
from skerry_edge.generation.edge import Edge
from skerry_edge.http.websocket import (
    GOING_AWAY,
    NORMAL,
    REFUSED,
    WebSocket,
)
from skerry_regions.process.cancellation import cancel_tasks

WATCH_SECONDS = 0.4  # between two looks at whether the token still works
PATIENCE_SECONDS = 1.0  # with requests whose client is gone
CLOSES_DOWN = "The edge is shutting down."


@dataclass(frozen=True, slots=True)
class _PlannedClose:
    """The reason for which a connection is to be closed, and the error of further requests."""

    code: int
    reason: str
    refused: bytes
    is_told: bool = False  # also where there is no request


class ResponsesSocket:
    """One connection and its lanes."""

    def __init__(self, request: EdgeRequest, receive: Receive, send: Send) -> None:
        self._edge: Edge = request.edge
        self._scope = request.scope
        self._principal: Principal = request.principal
        self._tenant = self._principal.account_id
        self._limits = self._edge.limits
        self._loop = asyncio.get_running_loop()
        self._held = 0  # bytes of messages that wait
        self._num_waiting = 0
        self._lanes: dict[str, Lane] = {}
        self._rested_at = self._began = self._loop.time()
        self._trace = request.trace
        self._end: _PlannedClose | None = None  # to come
        self._closing: asyncio.Task[None] | None = None
        self.websocket = WebSocket(
            receive, send, self._limits, hold=self._hold, finish=self._finish
        )
        self._connected = Connected(
            scope=self._scope,
            serve=request.serve,
            principal=lambda: self._principal,
            recent=RecentResponses(self._edge.desk.bodies, self._tenant),
            running=asyncio.Semaphore(self._limits.socket_running),
            over=asyncio.Event(),
            send=self.websocket.send,
            rested=self._rested,
        )

    async def run(self) -> None:
        """Answer until either side closes."""
        watch = asyncio.create_task(self._watch(), name="websocket's token")
        try:
            await self.websocket.accept()
            async with aclosing(self.websocket.messages()) as messages:
                async for message in messages:
                    await self._take(message)
        except asyncio.CancelledError:  # the server's patience with what drains is at its end
            await self._end_lanes(0.0)
            await self.websocket.close(GOING_AWAY, CLOSES_DOWN)
        finally:
            watch.cancel()
            self._connected.over.set()
            await self._end_lanes(PATIENCE_SECONDS)
            self._connected.recent.clear()
            self._hold(-self._held)
        await self.websocket.end()

    async def _end_lanes(self, seconds: float) -> None:
        """Drop what waits, and cancel what still runs after so long."""
        for lane in self._lanes.values():
            lane.drop()
        running = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if running:
            _, late = await asyncio.wait(running, timeout=seconds)
            await cancel_tasks(*late)

    # --- messages

    async def _take(self, message: bytes | SkerryError) -> None:
        """Take in what a client has sent."""
        if isinstance(message, SkerryError):
            await self.websocket.send(error_event(message))
            return
        is_kept = False
        try:
            event = await self._read(message)
            is_kept = await self._take_event(event, message)
        except SkerryError as error:
            await self.websocket.send(error_event(error))
        finally:
            if not is_kept:
                self._hold(-len(message))

    async def _read(self, message: bytes) -> SentEvent:
        """Return what an event says of itself; long ones are read at the desk, where what is
        refused counts."""
        if len(message) <= INLINE_BYTES:
            return read_event(message)
        event = await self._edge.desk.of(self._tenant).run(lambda: read_event(message))
        self._trace.prepared_seconds = 0.0  # the request itself is counted behind the rim
        return event

    async def _take_event(self, event: SentEvent, message: bytes) -> bool:
        """Return whether the message waits for its turn. Raises what is wrong with it."""
        if event.type == STEER:
            await self.websocket.send(steering_failed(event))
            return False
        if event.type != CREATE:
            raise InvalidInput(f"Bad input: type: {CREATE} or {STEER}", param="type")
        name = event.stream_id or ""
        if event.stream_id is not None and not (
            isinstance(event.stream_id, str) and LANE.fullmatch(event.stream_id)
        ):
            wrong = InvalidInput(
                "Bad input: stream_id: 1 to 256 letters, digits, '_', '-' or '.'",
                param="stream_id",
            )
            await self.websocket.send(error_event(wrong, "invalid_stream_id"))
            return False
        if (refused := self._refusal(name)) is not None:
            await self.websocket.send(marked(refused, name))
            return False
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name, self._connected)
        self._num_waiting += 1
        previous = event.previous_response_id
        lane.put(
            Waiting(
                body=message,
                previous=previous if isinstance(previous, str) else "",
                begun=lambda: self._begun(len(message)),
            )
        )
        return True

    def _refusal(self, lane: str) -> bytes | None:
        """Return why no request is taken now, if so."""
        if self._end is not None:
            return self._end.refused
        own = self._edge.admission.quotas.account(self._tenant).websocket_lanes
        most = self._limits.socket_lanes if own is None else own
        if lane and lane not in self._lanes and len(self._lanes.keys() - {""}) >= most:
            error = InvalidInput(f"This WebSocket has {most} lanes already.", param="stream_id")
            return error_event(error, "websocket_stream_limit_reached")
        if self._num_waiting >= self._limits.socket_waiting:
            return error_event(
                RateLimited(f"{self._num_waiting} requests wait on this WebSocket already.")
            )
        return None

    def _begun(self, size: int) -> None:
        """Count a request no longer as one that waits: from here on the rim counts it."""
        self._num_waiting -= 1
        self._hold(-size)

    def _hold(self, size: int) -> None:
        """Count bytes of messages, as memory of their tenant. Raises as `BodyRoom.take`."""
        if size > 0:
            self._edge.desk.bodies.take(self._tenant, size)
        elif size < 0:
            self._edge.desk.bodies.give_back(self._tenant, -size)
        self._held += size

    # --- its end

    @property
    def _is_busy(self) -> bool:
        return any(lane.task is not None for lane in self._lanes.values())

    def _rested(self) -> None:
        """Note that a lane has nothing to do, and close if that is what was waited for."""
        self._rested_at = self._loop.time()
        if self._end is not None and not self._is_busy and self._closing is None:
            self._closing = asyncio.create_task(self._close(self._end), name="websocket's end")

    async def _close(self, end: _PlannedClose) -> None:
        if end.is_told:
            await self.websocket.send(end.refused)
        await self.websocket.close(end.code, end.reason)

    def _end_soon(self, end: _PlannedClose) -> None:
        """Take no more requests, and close once those that were taken are answered."""
        if self._end is None:
            self._end = end
            self._rested()

    def _finish(self) -> None:
        refused = error_event(Unavailable(CLOSES_DOWN))
        self._end_soon(_PlannedClose(GOING_AWAY, CLOSES_DOWN, refused))

    async def _watch(self) -> None:
        """Close when the token works no more, after an idle time, and at the end of its own."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if not await self._is_allowed():
                self._connected.over.set()  # ends what runs
                await self.websocket.close(REFUSED, "The API token works no more.")
                return
            now, limits = self._loop.time(), self._limits
            if not self._is_busy and now - self._rested_at > limits.socket_idle_seconds:
                idle = error_event(Unavailable("This WebSocket was idle, and is being closed."))
                self._end_soon(_PlannedClose(NORMAL, "It was idle.", idle))
            if now - self._began > limits.socket_seconds:
                over = InvalidInput(
                    f"This WebSocket has reached its {limits.socket_seconds / 60:g} minutes; open "
                    "another one."
                )
                refused = error_event(over, "websocket_connection_limit_reached")
                self._end_soon(
                    _PlannedClose(NORMAL, "It has reached its time.", refused, is_told=True)
                )

    async def _is_allowed(self) -> bool:
        """Return whether the token still works, and for the same account."""
        try:
            now = await authenticated(self._scope, self._edge.tokens, self._edge.logins)
        except AuthenticationError:
            return False
        except SkerryError:  # an issuer that cannot be asked now
            return True
        self._principal = now
        return now.account_id == self._tenant
