"""The edge's connection to one node: it reconnects, notices silence, and fails its streams at once.

A node is given up on when its connection breaks, when its event loop answers no ping, or when an
engine with running sequences makes no step: the process lives, but none waits for it longer than
`Patience` says. Every stream then ends with `unavailable`, and its owner goes on elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from skerry.errors import Unavailable
from skerry_regions import zones as residency
from skerry_regions.address import Address
from skerry_regions.process.cancellation import cancel_tasks
from skerry_regions.process.pauses import until_set
from skerry_regions.registry import Member
from skerry_regions.wire import link_auth
from skerry_regions.wire.edge_calls import EdgeCall
from skerry_regions.wire.link_auth import NO_CREDENTIALS, LinkCredentials
from skerry_regions.wire.link_connection import CallSink, EmbedSink, LinkConnection, Sink
from skerry_regions.wire.link_key import LinkRefused
from skerry_regions.wire.protocol import (
    Embed,
    Hello,
    Pong,
    ShareKV,
    Submit,
)
from skerry_regions.wire.reports import Report

logger = logging.getLogger(__name__)


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
        credentials: LinkCredentials = NO_CREDENTIALS,
        on_report: Callable[[Report], None] = lambda _: None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Over TCP both ends prove themselves by `credentials`. The node stands in `zone`.

        `on_change` is called whenever `is_up` or `models` may be others than before.
        """
        self.node = node
        self._credentials = credentials
        self._on_report = on_report
        self._on_change = on_change
        self._refusal = ""  # logged last
        self.zone = zone
        self._expected: frozenset[str] | None = None  # models, see `expect`
        self.address = address
        self._hello = hello
        self._patience = patience or Patience()
        self._connection: LinkConnection | None = None
        self._last_stream = 0  # of connections before: their streams' numbers are not given again
        self._models: frozenset[str] = frozenset()  # as of the last greeting
        self._described: Member | None = None  # likewise
        self._stuck = False  # an engine stood still; believed again when it moves
        self.rtt: float | None = None  # seconds, of the last ping
        self._task = asyncio.create_task(self._keep_connected(), name=f"link to {node}")

    @property
    def machine(self) -> str:
        """Return the machine that the node is on, where it is known."""
        return self._credentials.expected

    @property
    def is_up(self) -> bool:
        """Return whether it is connected, greeted, and not known to be stuck."""
        return self._connection is not None and self._connection.greeted and not self._stuck

    @property
    def models(self) -> frozenset[str]:
        """Return models that both sides know alike, of those that it is believed to serve; while it
        is down, those of its last greeting."""
        if self._connection is not None and self._connection.greeted:
            self._models = self._connection.models
        return self._models if self._expected is None else self._models & self._expected

    @property
    def described(self) -> Member | None:
        """Return the node as it described itself in its last greeting; None before the first."""
        if self._connection is not None and self._connection.greeted:
            self._described = self._connection.described
        return self._described

    def expect(self, models: frozenset[str]) -> None:
        """Assume that the node serves these models and no others; at first it may serve any."""
        if models != self._expected:
            self._expected = models
            self._on_change()

    @property
    def num_streams(self) -> int:
        """Return streams of ours that run there."""
        return self._connection.num_streams if self._connection is not None else 0

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
        """Submit as `submit` does, for the one event of an embedding."""
        residency.check(embed.residency, self.zone, f"node {self.node}")
        return self._reached().submit(embed, sink)

    def call(self, call: EdgeCall, sink: CallSink) -> int:
        """Have the edge at the other end answer a request. Raises Unavailable or Overloaded."""
        return self._reached().call(call, sink)

    def consumed(self, stream: int) -> None:
        """Have more of a call's answer come."""
        if self._connection is not None:
            self._connection.consumed(stream)

    def _reached(self) -> LinkConnection:
        if self._connection is None or not self.is_up:
            raise Unavailable(f"node {self.node} cannot be reached")
        return self._connection

    def abort(self, stream: int) -> None:
        """Stop a stream; its last event still comes. Idempotent, synchronous, never fails."""
        if self._connection is not None:
            self._connection.abort(stream)

    def forget(self, stream: int) -> None:
        """Stop a stream of which nothing more is wanted, not even its end."""
        if self._connection is not None:
            self._connection.forget(stream)

    async def close(self) -> None:
        await cancel_tasks(self._task)
        if self._connection is not None:
            self._connection.drop()

    async def _keep_connected(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._patience.connect):
                    connection = await link_auth.connect(
                        self.address, self._new_connection, self._credentials, "streams"
                    )
            except (OSError, TimeoutError) as error:
                self._log_refusal(error)
                await asyncio.sleep(self._patience.reconnect)
                continue
            self._connection = connection
            self._on_change()
            try:
                await self._watch(connection)
            finally:
                self._connection, self._last_stream = None, connection.last_stream
                connection.drop()
                self._on_change()
            await asyncio.sleep(self._patience.reconnect)

    def _log_refusal(self, error: OSError | TimeoutError) -> None:
        """Log it once: that a node is away passes, that keys differ does not."""
        if isinstance(error, LinkRefused) and str(error) != self._refusal:
            self._refusal = str(error)
            logger.error("node %s at %s: %s", self.node, self.address, error)

    def _new_connection(self) -> LinkConnection:
        return LinkConnection(
            self.node, self._hello, self._on_change, self._on_report, self._last_stream
        )

    def want_snapshot(self, model: str) -> None:
        """Request everything a model's prefix cache holds, since changes of it were missed."""
        if self._connection is not None and self.is_up:
            self._connection.want_snapshot(model)

    async def _watch(self, connection: LinkConnection) -> None:
        """Ping until the connection breaks or the node is given up on."""
        loop, longest = asyncio.get_running_loop(), 2 * self._patience.ping
        before, watched = loop.time(), 0.0
        pulse = _Pulse(watched)
        while not connection.lost.is_set():
            now = loop.time()
            # A pause of this process is no silence of the node's, whose pongs are yet to be read.
            watched, before = watched + min(now - before, longest), now
            pulse.observe(connection.take_pongs(), watched)
            if watched - pulse.last_pong > self._patience.silence:
                logger.warning("node %s answers no ping", self.node)
                return
            stuck = watched - pulse.last_step > self._patience.stuck
            if stuck and not self._stuck:
                logger.warning("an engine of node %s makes no step", self.node)
                connection.fail_streams()
            if stuck != self._stuck:
                self._stuck = stuck
                self._on_change()
            connection.ping()
            self.rtt = connection.rtt or self.rtt
            await until_set(connection.lost, self._patience.ping)


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
