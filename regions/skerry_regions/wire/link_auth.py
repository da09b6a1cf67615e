"""Opening links: both ends prove who they are before anything else is looked at.

Between processes of one machine, over loopback, they prove that they hold the cluster's key
(`link_key`); between machines links are encrypted, and each end shows its certificate (`link_tls`).
A unix socket is its owner's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from skerry_regions.address import Address, is_loopback
from skerry_regions.wire.link_certificates import LinkCertificates
from skerry_regions.wire.link_key import (
    ConnectingEnd,
    LinkKey,
    LinkRefused,
    ListeningEnd,
    Purpose,
)
from skerry_regions.wire.link_tls import HANDSHAKES, TlsEnd
from skerry_regions.wire.sockets import SocketEnd

ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)

HANDSHAKE_SECONDS = 5.0
MAX_UNPROVEN = 256  # connections of one listener whose proof has not come
LOG_SECONDS = 1.0  # between two lines about refused links

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkCredentials:
    """What a process proves over links with, and wants proven.

    Certificates are used once there are any. Without them the key opens links within a machine,
    and, where they `may_be_plain`, between machines.
    """

    key: LinkKey | None = None
    certificates: LinkCertificates | None = None
    may_be_plain: bool = False
    expected: str = ""  # machine that has to be at the listening end, where it is known

    @property
    def machine(self) -> str:
        """Return the machine that the certificate is of; empty without one."""
        return "" if self.certificates is None else self.certificates.machine

    def following(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Follow the certificates' files while the block runs."""
        none = contextlib.nullcontext()
        return none if self.certificates is None else self.certificates.following()

    def towards(self, machine: str) -> LinkCredentials:
        """Return those of links to one machine; empty: to any that may answer."""
        return replace(self, expected=machine)

    def end(
        self, address: Address, purpose: Purpose, *, listens: bool
    ) -> ConnectingEnd | ListeningEnd | TlsEnd:
        """Return one's own end of a handshake over TCP. Raises LinkRefused where there is no proof
        that would do."""
        if self.certificates is not None and self.certificates.are_there:
            return TlsEnd(self.certificates, purpose, listens=listens, expected=self.expected)
        if not (self.may_be_plain or is_loopback(address.host)):
            raise LinkRefused(
                f"{address}: links between machines are encrypted, and this machine has no "
                "certificate: let it join, or set SKERRY_LINK_TLS to a folder with tls.crt, "
                "tls.key and ca.crt, or to off"
            )
        if self.key is None:
            raise LinkRefused(f"{address}: a link over TCP needs the cluster's key")
        return ListeningEnd(self.key, purpose) if listens else ConnectingEnd(self.key, purpose)


NO_CREDENTIALS = LinkCredentials()


async def connect(
    address: Address,
    protocol: Callable[[], ProtocolT],
    credentials: LinkCredentials,
    purpose: Purpose,
) -> ProtocolT:
    """Open a link.

    Raises OSError; `LinkRefused`, which is one, when a proof is missing or wrong.
    """
    if address.path:
        return await address.connect(protocol)
    own = credentials.end(address, purpose, listens=False)
    proving = await address.connect(lambda: _Proving(own, protocol()))
    try:
        await proving.proven
    except BaseException:
        proving.drop()
        raise
    return proving.inner


async def listen(
    address: Address,
    protocol: Callable[[], asyncio.Protocol],
    credentials: LinkCredentials,
    purpose: Purpose,
) -> tuple[LinkListener, Address]:
    """Listen for links. Raises OSError, AddressError, or LinkRefused without a proof for TCP."""
    unproven = _Unproven()

    def proving() -> asyncio.Protocol:
        end = credentials.end(address, purpose, listens=True)
        return _Proving(end, protocol(), unproven)

    if not address.path:
        credentials.end(address, purpose, listens=True)
    server, bound = await address.listen(protocol if address.path else proving)
    return LinkListener(server, unproven), bound


class LinkListener:
    """Accepts connections that prove themselves, until it is closed."""

    def __init__(self, server: asyncio.AbstractServer, unproven: _Unproven) -> None:
        self._server = server
        self._unproven = unproven

    def close(self) -> None:
        """Stop listening, and drop connections whose proof has not come."""
        self._server.close()
        for each in list(self._unproven.source_of):
            each.drop()


class _Unproven:
    """A listener's connections whose proof has not come, oldest first, and why some were refused.

    Where there are too many, the host that has most of them loses one: one that has said nothing,
    or else the oldest. So whoever opens many and is silent shuts no other out.
    """

    def __init__(self) -> None:
        self.source_of: dict[_Proving[Any], str] = {}
        self._logged_at = -math.inf
        self._num_unlogged = 0

    def add(self, newcomer: _Proving[Any], source: str) -> None:
        if len(self.source_of) >= MAX_UNPROVEN:
            ((largest, _),) = Counter(self.source_of.values()).most_common(1)
            its = [each for each, of in self.source_of.items() if of == largest]
            next(filter(lambda each: each.is_silent, its), its[0]).give_way()
        self.source_of[newcomer] = source

    def discard(self, proving: _Proving[Any]) -> None:
        self.source_of.pop(proving, None)

    def log(self, error: LinkRefused) -> None:
        """Log a refusal, once in a while."""
        now = time.monotonic()
        if now - self._logged_at < LOG_SECONDS:
            self._num_unlogged += 1
            return
        more = f"; {self._num_unlogged} more since the last line" if self._num_unlogged else ""
        logger.warning("a link was refused: %s%s", error, more)
        self._logged_at, self._num_unlogged = now, 0


class _Proving(SocketEnd, Generic[ProtocolT]):
    """Stands in front of a link's protocol until both ends have proven themselves."""

    def __init__(
        self,
        own: ConnectingEnd | ListeningEnd | TlsEnd,
        inner: ProtocolT,
        unproven: _Unproven | None = None,
    ) -> None:
        self.inner = inner
        self._own = own
        self._unproven = unproven  # of a listening end
        self._received = bytearray()
        self._is_busy = False  # on a thread
        self._loop = asyncio.get_running_loop()
        self.proven: asyncio.Future[None] = self._loop.create_future()
        self._deadline = self._loop.call_later(
            HANDSHAKE_SECONDS, self._refuse, LinkRefused("the other end did not prove itself")
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._unproven is not None:
            peer = transport.get_extra_info("peername")
            self._unproven.add(self, str(peer[0]) if isinstance(peer, tuple) and peer else "")
        if self._transport is not None and (greeting := self._own.greeting()):
            self._transport.write(greeting)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._prove()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._refuse(LinkRefused("the other end closed the connection without a proof"))

    @property
    def is_silent(self) -> bool:
        """Return whether nothing of a handshake has come."""
        return self._own.is_silent

    def give_way(self) -> None:
        """Close: another connection is as likely to prove itself."""
        self._refuse(LinkRefused(f"{MAX_UNPROVEN} newer ones are proving themselves"))

    def drop(self) -> None:
        self._end()
        super().drop()

    def _prove(self) -> None:
        """Go on with the handshake; of certificates on a thread. Nothing is read meanwhile: memory
        is not a stranger's to fill, and no end is seen before what came ahead of it."""
        if self._is_busy or self.proven.done() or not self._received:
            return
        data = bytes(self._received)
        self._received.clear()
        if isinstance(self._own, TlsEnd):
            self._is_busy = True
            if self._transport is not None:
                self._transport.pause_reading()
            HANDSHAKES.submit(self._own.receive, data).add_done_callback(self._done)
            return
        try:
            self._take(*self._own.receive(data))
        except LinkRefused as error:
            self._refuse(error)

    def _done(self, step: Future[tuple[bytes, bytes]]) -> None:
        """Go on after a step on a thread; called there."""

        def take() -> None:
            self._is_busy = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
            try:
                self._take(*step.result())
            except LinkRefused as error:
                self._refuse(error)
            self._prove()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(take)

    def _take(self, answer: bytes, rest: bytes) -> None:
        if self._transport is None or self.proven.done():
            return
        if answer:
            self._transport.write(answer)
        if self._own.is_proven:
            self._hand_over(self._transport, rest + self._received)

    def _hand_over(self, transport: asyncio.Transport, rest: bytes) -> None:
        """Hand the connection over: from here on it is the inner protocol's."""
        self._end()
        self.proven.set_result(None)
        own = self._own
        protocol = own.carry(self.inner) if isinstance(own, TlsEnd) else self.inner
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest:
            protocol.data_received(rest)

    def _refuse(self, error: LinkRefused) -> None:
        self._end()
        if not self.proven.done():
            self.proven.set_exception(error)
            self.proven.exception()  # seen: whoever waited for it gave up, or listens
            if self._unproven is not None:
                self._unproven.log(error)
        if self._transport is not None and error.last_word:
            self._transport.write(error.last_word)
            self._transport.close()
        else:
            self.drop()

    def _end(self) -> None:
        self._deadline.cancel()
        if self._unproven is not None:
            self._unproven.discard(self)
