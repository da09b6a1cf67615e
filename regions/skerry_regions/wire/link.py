"""The edge's connection to one node: it reconnects, notices silence, and fails its streams at once.

A node is given up on when its connection breaks, when its event loop answers no ping, or when an
engine with running sequences makes no step: the process lives, but nobody waits for it longer than
`Patience` says. Every stream then ends with `unavailable`, and its owner goes on elsewhere.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from skerry.errors import Unavailable
from skerry_regions import zones as residency
from skerry_regions.address import Address
from skerry_regions.wire import link_auth
from skerry_regions.wire.connection import EdgeConnection
from skerry_regions.wire.frames import ProtocolError
from skerry_regions.wire.link_auth import LinkKey, LinkRefused
from skerry_regions.wire.protocol import (
    Accepted,
    Done,
    Embed,
    Embedded,
    Event,
    Failed,
    Hello,
    Pong,
    Report,
    ShareKV,
    Submit,
    Tokens,
)

logger = logging.getLogger(__name__)

Sink = Callable[[Accepted | Event], None]
EmbedSink = Callable[[Embedded | Failed], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a node may be silent. Seconds."""

    ping: float = 0.25  # between signs of life
    silence: float = 2.0  # without a pong: the event loop hangs, or the network is cut
    stuck: float = 10.0  # with sequences running and no step: the engine hangs
    connect: float = 2.0  # to open a connection
    reconnect: float = 0.2  # between attempts


class NodeLink:
    """Keeps one connection to a node. Create it on the event loop that uses it."""

    def __init__(
        self,
        node: str,
        address: Address,
        hello: Hello,
        patience: Patience | None = None,
        *,
        zone: str = residency.GLOBAL,
        key: LinkKey | None = None,
    ) -> None:
        """Over TCP both ends prove that they hold the `key`."""
        self.node = node
        self._key = key
        self._refusal = ""  # told last
        self.zone = zone  # where the node stands
        self.allowed: frozenset[str] | None = None  # models that it is believed to serve; None: all
        self.address = address
        self._hello = hello
        self._patience = patience or Patience()
        self._wire: _Wire | None = None
        self._state_changed = asyncio.Event()
        self._models: frozenset[str] = frozenset()  # as of the last greeting
        self._stuck = False  # an engine stood still; believed again when it moves
        self.on_report: Callable[[Report], None] = lambda _: None  # set by who wants them
        self.rtt: float | None = None  # seconds, of the last ping
        self._task = asyncio.create_task(self._keep_connected(), name=f"link to {node}")

    @property
    def is_up(self) -> bool:
        """Connected, greeted, and not known to be stuck."""
        return self._wire is not None and self._wire.greeted and not self._stuck

    @property
    def models(self) -> frozenset[str]:
        """Models that both sides know alike, of those that it is believed to serve; while it is
        down, those of its last greeting."""
        if self._wire is not None and self._wire.greeted:
            self._models = self._wire.models
        return self._models if self.allowed is None else self._models & self.allowed

    @property
    def num_streams(self) -> int:
        """Streams of ours that run there."""
        return self._wire.num_streams if self._wire is not None else 0

    async def wait_until_up(self) -> None:
        """Return once the node can be given streams."""
        while not self.is_up:
            self._state_changed.clear()
            await self._state_changed.wait()

    def submit(self, submit: Submit, sink: Sink) -> int:
        """Start a stream; its events go to `sink`, the last one when the link breaks included.

        Raises Unavailable, Overloaded when the connection has no stream left, or ResidencyUnmet.
        """
        residency.check(submit.residency, self.zone, f"node {self.node}")
        return self._reached().submit(submit, sink)

    def share_kv(self, share: ShareKV) -> None:
        """Have the node send cached KV to another. Raises as `submit`."""
        residency.check(share.residency, self.zone, f"node {self.node}")
        self._reached().share_kv(share)

    def embed(self, embed: Embed, sink: EmbedSink) -> int:
        """As `submit`, for the one event of an embedding."""
        residency.check(embed.residency, self.zone, f"node {self.node}")
        return self._reached().embed(embed, sink)

    def _reached(self) -> _Wire:
        if self._wire is None or not self.is_up:
            raise Unavailable(f"node {self.node} cannot be reached")
        return self._wire

    def abort(self, stream: int) -> None:
        """Stop a stream; its last event still comes. Idempotent, synchronous, never fails."""
        if self._wire is not None:
            self._wire.abort(stream)

    def forget(self, stream: int) -> None:
        """Stop a stream of which nothing more is wanted, not even its end."""
        if self._wire is not None:
            self._wire.forget(stream)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._wire is not None:
            self._wire.drop()

    async def _keep_connected(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._patience.connect):
                    wire = await link_auth.connect(
                        self.address, self._new_wire, self._key, "streams"
                    )
            except (OSError, TimeoutError) as error:
                self._tell_refusal(error)
                await asyncio.sleep(self._patience.reconnect)
                continue
            self._wire = wire
            try:
                await self._watch(wire)
            finally:
                self._wire = None
                wire.drop()
            await asyncio.sleep(self._patience.reconnect)

    def _tell_refusal(self, error: OSError | TimeoutError) -> None:
        """Once: that a node is away passes, that keys differ does not."""
        if isinstance(error, LinkRefused) and str(error) != self._refusal:
            self._refusal = str(error)
            logger.error("node %s at %s: %s", self.node, self.address, error)

    def _new_wire(self) -> _Wire:
        return _Wire(self.node, self._hello, self._state_changed, self._report)

    def _report(self, report: Report) -> None:
        self.on_report(report)

    def want_snapshot(self, model: str) -> None:
        """Ask for everything a model's prefix cache holds, since changes of it were missed."""
        if self._wire is not None and self.is_up:
            self._wire.want_snapshot(model)

    async def _watch(self, wire: _Wire) -> None:
        """Ping until the connection breaks or the node is given up on."""
        loop, longest = asyncio.get_running_loop(), 2 * self._patience.ping
        before, watched = loop.time(), 0.0
        pulse = _Pulse(watched)
        while not wire.lost.is_set():
            now = loop.time()
            # A pause of this process is no silence of the node's, whose pongs are yet to be read.
            watched, before = watched + min(now - before, longest), now
            pulse.observe(wire.take_pongs(), watched)
            if watched - pulse.last_pong > self._patience.silence:
                logger.warning("node %s answers no ping", self.node)
                return
            stuck = watched - pulse.last_step > self._patience.stuck
            if stuck and not self._stuck:
                logger.warning("an engine of node %s makes no step", self.node)
                wire.fail_streams()
            self._stuck = stuck
            self._state_changed.set()
            wire.ping()
            self.rtt = wire.rtt or self.rtt
            try:
                await asyncio.wait_for(wire.lost.wait(), self._patience.ping)
            except TimeoutError:
                continue


class _Pulse:
    """When a node last answered, and when its engines last moved or had nothing to do. Seconds of
    watching."""

    def __init__(self, now: float) -> None:
        self.last_pong = now
        self.last_step = now
        self._steps: dict[str, int] = {}

    def observe(self, pongs: list[Pong], now: float) -> None:
        for pong in pongs:
            self.last_pong = now
            still = [
                beat for beat in pong.engines
                if beat.running and self._steps.get(beat.model) == beat.steps
            ]  # fmt: skip
            self._steps = {beat.model: beat.steps for beat in pong.engines}
            if not still:
                self.last_step = now


class _Wire(asyncio.Protocol):
    """One connection, from its first byte to its last."""

    def __init__(
        self,
        node: str,
        hello: Hello,
        changed: asyncio.Event,
        on_report: Callable[[Report], None],
    ) -> None:
        self._node = node
        self._on_report = on_report
        self._pinged: dict[int, float] = {}  # when, by nonce, while unanswered
        self.rtt: float | None = None  # seconds, of the last ping
        self._changed = changed
        self._connection = EdgeConnection(hello)
        self._sinks: dict[int, Sink] = {}
        self._embed_sinks: dict[int, EmbedSink] = {}
        self._pongs: list[Pong] = []
        self._nonces = itertools.count()
        self._transport: asyncio.Transport | None = None
        self._flush_scheduled = False
        self.lost = asyncio.Event()

    @property
    def greeted(self) -> bool:
        return self._connection.agreement is not None and not self.lost.is_set()

    @property
    def models(self) -> frozenset[str]:
        agreement = self._connection.agreement
        return agreement.models if agreement is not None else frozenset()

    @property
    def num_streams(self) -> int:
        return len(self._sinks) + len(self._embed_sinks)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._schedule_flush()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._connection.receive(data):
                match message:
                    case Tokens():
                        self._deliver(message)
                        self._connection.consumed(message.stream)
                    case Accepted():
                        self._deliver(message)
                    case Done():
                        self._deliver(message)
                        self._sinks.pop(message.stream, None)
                    case Embedded():
                        if embed_sink := self._embed_sinks.pop(message.stream, None):
                            embed_sink(message)
                    case Failed():
                        self._fail(message)
                    case Pong():
                        self._take_pong(message)
                    case Report():
                        self._on_report(message)
                    case _:  # Hello: the connection has taken note of it
                        self._changed.set()
        except ProtocolError as error:
            logger.warning("node %s broke the protocol: %s", self._node, error)
            self.drop()
        self._schedule_flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.lost.set()
        self.fail_streams()

    def fail_streams(self) -> None:
        """Tell every owner that nothing more comes from here."""
        message = f"the connection to node {self._node} was lost"
        for stream in (*self._sinks, *self._embed_sinks):
            self._connection.abort(stream)
            self._fail(Failed(stream=stream, code=Unavailable.code, message=message))
        self._schedule_flush()

    def submit(self, submit: Submit, sink: Sink) -> int:
        stream = self._connection.submit(submit)
        self._sinks[stream] = sink
        self._schedule_flush()
        return stream

    def embed(self, embed: Embed, sink: EmbedSink) -> int:
        stream = self._connection.submit(embed)
        self._embed_sinks[stream] = sink
        self._schedule_flush()
        return stream

    def share_kv(self, share: ShareKV) -> None:
        self._connection.share_kv(share)
        self._schedule_flush()

    def abort(self, stream: int) -> None:
        self._connection.abort(stream)
        self._schedule_flush()

    def forget(self, stream: int) -> None:
        self._sinks.pop(stream, None)
        self._embed_sinks.pop(stream, None)
        self.abort(stream)

    def want_snapshot(self, model: str) -> None:
        self._connection.want_snapshot(model)
        self._schedule_flush()

    def ping(self) -> None:
        if self.greeted:
            nonce = next(self._nonces)
            self._pinged[nonce] = asyncio.get_running_loop().time()
            self._connection.ping(nonce)
            self._schedule_flush()

    def _take_pong(self, pong: Pong) -> None:
        self._pongs.append(pong)
        if (sent := self._pinged.pop(pong.nonce, None)) is not None:
            self.rtt = asyncio.get_running_loop().time() - sent

    def take_pongs(self) -> list[Pong]:
        pongs, self._pongs = self._pongs, []
        return pongs

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _deliver(self, event: Accepted | Event) -> None:
        if (sink := self._sinks.get(event.stream)) is not None:
            sink(event)

    def _fail(self, event: Failed) -> None:
        sink = self._sinks.pop(event.stream, None) or self._embed_sinks.pop(event.stream, None)
        if sink is not None:
            sink(event)

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled and self._transport is not None:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._transport is not None and (data := self._connection.data_to_send()):
            self._transport.write(data)
