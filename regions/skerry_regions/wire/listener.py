"""A node's listening side: edges connect, submit streams and read tokens.

One `NodeConnection` per edge holds the rules; here are only the socket, the flush and the drain.
What a step delivers to many streams of one edge leaves in one write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from msgspec.structs import replace

from skerry.errors import SkerryError, Unavailable
from skerry_regions.address import Address
from skerry_regions.wire import link_auth
from skerry_regions.wire.client import failed_event
from skerry_regions.wire.connection import is_last
from skerry_regions.wire.edge_calls import EdgeCall
from skerry_regions.wire.frames import MessageTooLarge, ProtocolError
from skerry_regions.wire.link_auth import NO_CREDENTIALS, LinkCredentials
from skerry_regions.wire.node_connection import Abortable, AnsweredCall, NodeConnection, Serving
from skerry_regions.wire.protocol import (
    Abort,
    Accepted,
    AnyEvent,
    Credit,
    Embed,
    Failed,
    Hello,
    Ping,
    ShareKV,
    SnapshotWanted,
    Submit,
)
from skerry_regions.wire.reports import REPORT_SECONDS, Report
from skerry_regions.wire.sockets import ConnectionSocket

logger = logging.getLogger(__name__)

MAX_EDGES = 4096  # connections at once: 100 edges of each of 20 regions, twice


class NodeServer:
    """Accepts edges for one node. `drain` before `close` loses no stream."""

    def __init__(
        self,
        node: Serving,
        hello: Hello,
        report_seconds: float = REPORT_SECONDS,
        is_peer: Callable[[str], bool] = lambda id_: False,
    ) -> None:
        """`is_peer`: whether an edge, by its id, stands beside this one: `tell_peers` sends to it
        alone."""
        self._is_peer = is_peer
        self.node = node
        self.hello = hello
        self._report_seconds = report_seconds
        self.draining = False
        self.links: set[EdgeLink] = set()
        self.stream_ended = asyncio.Event()
        self._server: link_auth.LinkListener | None = None
        self._reporting: asyncio.Task[None] | None = None

    async def listen(
        self, address: Address, credentials: LinkCredentials = NO_CREDENTIALS
    ) -> Address:
        """Start accepting; returns where. Raises what `link_auth.listen` raises."""
        self._server, bound = await link_auth.listen(
            address, lambda: EdgeLink(self), credentials, "streams"
        )
        self._reporting = asyncio.create_task(self._report(), name="reports")
        return bound

    @property
    def num_streams(self) -> int:
        return sum(link.num_streams for link in self.links)

    @property
    def edges(self) -> list[str]:
        """Return ids of edges that are connected."""
        return sorted({link.edge for link in self.links if link.edge})

    async def drain(self, seconds: float) -> None:
        """Take nothing new; after `seconds` hand what still runs back to its edges.

        A stream handed back ends with `unavailable`, and its edge goes on elsewhere: the client
        sees no gap but time.
        """
        self.draining = True
        try:
            async with asyncio.timeout(seconds):
                while self.num_streams:
                    self.stream_ended.clear()
                    await self.stream_ended.wait()
        except TimeoutError:
            for link in self.links:
                link.hand_back()
            await asyncio.sleep(0)  # one turn of the loop, in which the links flush

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        if self._reporting is not None:
            self._reporting.cancel()
        if self._server is not None:
            self._server.close()
        for link in list(self.links):
            link.drop()
        await asyncio.sleep(0)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(self._report_seconds)
            reports = self.node.reports()
            for link in self.links:
                if not self._is_peer(link.edge):
                    link.tell(reports)

    def tell_peers(self, reports: list[Report]) -> None:
        """Send reports to the edges that stand beside this one, at once."""
        for link in self.links:
            if self._is_peer(link.edge):
                link.tell(reports)


class EdgeLink(ConnectionSocket[NodeConnection]):
    """One edge's connection, seen from the node."""

    def __init__(self, server: NodeServer) -> None:
        super().__init__(NodeConnection(server.hello, self._schedule_flush))
        self._server = server
        self._streams: dict[int, Abortable] = {}
        self._calls: dict[int, AnsweredCall] = {}  # of these

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    @property
    def edge(self) -> str:
        """Return its id; empty before it says hello."""
        return self._connection.peer.id if self._connection.peer is not None else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if len(self._server.links) >= MAX_EDGES:
            logger.warning("refused an edge: %d are connected", MAX_EDGES)
            cast(asyncio.Transport, transport).abort()
            return
        super().connection_made(transport)
        self._server.links.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._connection.receive(data):
                match message:
                    case Submit() | Embed() | EdgeCall():
                        self._submit(message)
                    case ShareKV():
                        self._share(message)
                    case Abort():
                        self._streams[message.stream].abort()
                    case Credit():
                        self._pace(message.stream)
                    case Hello() | SnapshotWanted():
                        self._tell(self._server.node.snapshots())
                    case Ping():
                        self._connection.pong(message.nonce, self._server.node.beats())
        except ProtocolError as error:
            logger.warning("an edge broke the protocol: %s", error)
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Abort the streams: the edge is gone, and so is who wanted their tokens."""
        self._server.links.discard(self)
        super().connection_lost(exc)
        for stream in list(self._streams.values()):
            stream.abort()

    def tell(self, reports: list[Report]) -> None:
        """Pass reports on to an edge that knows what they continue."""
        if self._connection.agreement is not None:
            self._tell(reports)

    def hand_back(self) -> None:
        """End every running stream with `unavailable`."""
        error = Unavailable("the node is draining")
        for number, stream in list(self._streams.items()):
            self._push(failed_event(number, error))
            stream.abort()  # its own last event comes too late to be sent

    def _tell(self, reports: list[Report]) -> None:
        for report in reports:
            try:
                self._connection.report(report)
            except MessageTooLarge:  # more cached blocks than a frame can name: load still counts
                self._connection.report(replace(report, prefixes=None))

    def _submit(self, submit: Submit | Embed | EdgeCall) -> None:
        try:
            if self._server.draining:
                raise Unavailable("the node is draining")
            if isinstance(submit, Embed):
                self._streams[submit.stream] = self._server.node.embed(submit, self._push)
                return
            if isinstance(submit, EdgeCall):
                call = self._calls[submit.stream] = self._server.node.call(submit, self._push)
                self._streams[submit.stream] = call
                return
            stream = self._streams[submit.stream] = self._server.node.submit(submit, self._push)
            if stream.is_accepted:
                self._connection.accept(submit.stream)
        except SkerryError as error:
            self._connection.send(failed_event(submit.stream, error))

    def _share(self, share: ShareKV) -> None:
        """Share KV, also while draining: it costs no step, and spares another node many."""
        try:
            self._server.node.share(share)
        except SkerryError as error:  # its peer computes when the lease lapses
            logger.warning("KV is not shared: %s", error.message)

    def _push(self, event: Accepted | AnyEvent) -> None:
        """Push an event; the node's sink, called once per stream and step."""
        if isinstance(event, Accepted):
            if self._transport is not None and event.stream in self._streams:
                self._connection.accept(event.stream)
            return
        if is_last(event):
            self._calls.pop(event.stream, None)
            if self._streams.pop(event.stream, None) is None:
                return  # ended here before, by a hand-back
            self._server.stream_ended.set()
        if self._transport is None:
            return
        try:
            self._connection.send(event)
        except MessageTooLarge as error:
            logger.exception("stream %d: an event no frame can hold", event.stream)
            self._connection.send(
                Failed(stream=event.stream, code="internal_error", message=str(error))
            )
        self._pace(event.stream)

    def _pace(self, stream: int) -> None:
        """Have a call's answer wait for whoever reads it."""
        if (call := self._calls.get(stream)) is not None:
            (call.pause if self._connection.is_behind(stream) else call.resume)()
