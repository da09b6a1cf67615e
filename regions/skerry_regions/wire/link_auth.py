"""Proof, at the start of a connection, that both ends hold the cluster's key.

    connecting end                              listening end
      │ ── magic, 32 random bytes ───────────────▶ │
      │ ◀─────────────── 32 random bytes, proof ── │   HMAC-SHA256 over both, "answer", the purpose
      │ ── proof ────────────────────────────────▶ │   the same with "call"

Both ends prove, each over the other's fresh bytes, so that a recorded exchange is worth nothing;
the words keep a proof from being sent back to where it came from, and the purpose keeps one kind of
link from being used as another. What follows is the link's own protocol, as it was.

It is authentication, not encryption: who can change bytes on the way can still do so afterwards.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, cast

from skerry_regions.address import Address

ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)
Purpose = Literal["streams", "kv"]

MAGIC = b"skerry1\n"
NONCE_BYTES = 32
PROOF_BYTES = 32  # SHA-256
MIN_KEY_BYTES = 32
HANDSHAKE_SECONDS = 5.0
MAX_UNPROVEN = 256  # connections of one listener whose proof has not come
LOG_SECONDS = 1.0  # between two lines about refused links

logger = logging.getLogger(__name__)


class LinkRefused(ConnectionError):
    """The other end does not hold the key, or is no Skerry."""


@dataclass(frozen=True, slots=True)
class LinkKey:
    """The secret that all edges and nodes of a cluster share."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < MIN_KEY_BYTES:
            raise ValueError(f"a cluster key has {MIN_KEY_BYTES} bytes or more")

    def prove(self, side: Literal["call", "answer"], purpose: Purpose, nonces: bytes) -> bytes:
        """Return what only a holder of the key can say about these nonces, the caller's first."""
        message = b"skerry link\0%b\0%b\0%b" % (side.encode(), purpose.encode(), nonces)
        return hmac.digest(self.secret, message, "sha256")

    def is_proof(
        self, given: bytes, side: Literal["call", "answer"], purpose: Purpose, nonces: bytes
    ) -> bool:
        """Compare in a time that does not depend on where the difference is."""
        return hmac.compare_digest(given, self.prove(side, purpose, nonces))


class ConnectingEnd:
    """The connecting end, without I/O: bytes in, bytes out, until `is_proven`."""

    def __init__(self, key: LinkKey, purpose: Purpose) -> None:
        self._key = key
        self._purpose: Purpose = purpose
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._received = bytearray()
        self.is_proven = False

    def greeting(self) -> bytes:
        return MAGIC + self._nonce

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Return (to send, what came after the handshake). Raises LinkRefused."""
        self._received += data
        if len(self._received) < NONCE_BYTES + PROOF_BYTES:
            return b"", b""
        theirs, proof = _split(self._received, NONCE_BYTES, PROOF_BYTES)
        nonces = self._nonce + theirs
        if not self._key.is_proof(proof, "answer", self._purpose, nonces):
            raise LinkRefused("the listening end does not hold this cluster's key")
        self.is_proven = True
        return self._key.prove("call", self._purpose, nonces), bytes(self._received)


class ListeningEnd:
    """The listening end, without I/O."""

    def __init__(self, key: LinkKey, purpose: Purpose) -> None:
        self._key = key
        self._purpose: Purpose = purpose
        self._nonces = b""
        self._received = bytearray()
        self.is_proven = False

    @property
    def is_silent(self) -> bool:
        """Return whether the other end has not greeted yet."""
        return not self._nonces

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Return (to send, what came after the handshake). Raises LinkRefused."""
        self._received += data
        start = bytes(self._received[: len(MAGIC)])
        if not self._nonces and start != MAGIC[: len(start)]:
            raise LinkRefused("the connecting end does not prove that it holds a key")
        answer = b""
        if not self._nonces and len(self._received) >= len(MAGIC) + NONCE_BYTES:
            _, theirs = _split(self._received, len(MAGIC), NONCE_BYTES)
            ours = secrets.token_bytes(NONCE_BYTES)
            self._nonces = theirs + ours
            answer = ours + self._key.prove("answer", self._purpose, self._nonces)
        if not self._nonces or len(self._received) < PROOF_BYTES:
            return answer, b""
        (proof,) = _split(self._received, PROOF_BYTES)
        if not self._key.is_proof(proof, "call", self._purpose, self._nonces):
            raise LinkRefused("the connecting end does not hold this cluster's key")
        self.is_proven = True
        return answer, bytes(self._received)


def _split(received: bytearray, *sizes: int) -> list[bytes]:
    """Take fields off the front of what was received."""
    fields = []
    for size in sizes:
        fields.append(bytes(received[:size]))
        del received[:size]
    return fields


async def connect(
    address: Address, protocol: Callable[[], ProtocolT], key: LinkKey | None, purpose: Purpose
) -> ProtocolT:
    """Open a link. Over TCP both ends prove that they hold the key; a unix socket is its owner's.

    Raises OSError; `LinkRefused`, which is one, when a proof is missing or wrong.
    """
    if address.path:
        return await address.connect(protocol)
    if key is None:
        raise LinkRefused(f"{address}: a link over TCP needs the cluster's key")
    proving = await address.connect(lambda: _Proving(ConnectingEnd(key, purpose), protocol()))
    try:
        await proving.proven
    except BaseException:
        proving.drop()
        raise
    return proving.inner


async def listen(
    address: Address,
    protocol: Callable[[], asyncio.Protocol],
    key: LinkKey | None,
    purpose: Purpose,
) -> tuple[asyncio.AbstractServer, Address]:
    """Listen for links. Raises OSError, AddressError, or LinkRefused without a key for TCP."""
    if address.path:
        return await address.listen(protocol)
    if key is None:
        raise LinkRefused(f"{address}: to listen over TCP a node needs the cluster's key")
    unproven = _Unproven()
    return await address.listen(lambda: _Proving(ListeningEnd(key, purpose), protocol(), unproven))


class _Unproven:
    """A listener's connections whose proof has not come, oldest first, and why some were refused.

    Where there are too many, the host that has most of them loses one: one that has said nothing,
    or else the oldest. So whoever opens many and is silent shuts no other out.
    """

    def __init__(self) -> None:
        self._source_of: dict[_Proving[Any], str] = {}
        self._logged_at = -math.inf
        self._num_unlogged = 0

    def add(self, newcomer: _Proving[Any], source: str) -> None:
        if len(self._source_of) >= MAX_UNPROVEN:
            ((largest, _),) = Counter(self._source_of.values()).most_common(1)
            its = [each for each, of in self._source_of.items() if of == largest]
            next(filter(lambda each: each.is_silent, its), its[0]).give_way()
        self._source_of[newcomer] = source

    def discard(self, proving: _Proving[Any]) -> None:
        self._source_of.pop(proving, None)

    def log(self, error: LinkRefused) -> None:
        """Log a refusal, once in a while."""
        now = time.monotonic()
        if now - self._logged_at < LOG_SECONDS:
            self._num_unlogged += 1
            return
        more = f"; {self._num_unlogged} more since the last line" if self._num_unlogged else ""
        logger.warning("a link was refused: %s%s", error, more)
        self._logged_at, self._num_unlogged = now, 0


class _Proving(asyncio.Protocol, Generic[ProtocolT]):
    """Stands in front of a link's protocol until the other end has proven itself."""

    def __init__(
        self,
        side: ConnectingEnd | ListeningEnd,
        inner: ProtocolT,
        unproven: _Unproven | None = None,
    ) -> None:
        self.inner = inner
        self._side = side
        self._unproven = unproven  # of a listening end
        self._transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self.proven: asyncio.Future[None] = loop.create_future()
        self._deadline = loop.call_later(
            HANDSHAKE_SECONDS, self._refuse, LinkRefused("the other end did not prove itself")
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        if self._unproven is not None:
            peer = transport.get_extra_info("peername")
            self._unproven.add(self, str(peer[0]) if isinstance(peer, tuple) and peer else "")
        if isinstance(self._side, ConnectingEnd):
            self._transport.write(self._side.greeting())

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self.proven.done():
            return
        try:
            answer, rest = self._side.receive(data)
        except LinkRefused as error:
            return self._refuse(error)
        if answer:
            self._transport.write(answer)
        if self._side.is_proven:
            self._hand_over(self._transport, rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._refuse(LinkRefused("the other end closed the connection without a proof"))

    @property
    def is_silent(self) -> bool:
        """Return whether nothing of a handshake has come."""
        return isinstance(self._side, ListeningEnd) and self._side.is_silent

    def give_way(self) -> None:
        """Close: another connection is as likely to prove itself."""
        self._refuse(LinkRefused(f"{MAX_UNPROVEN} newer ones are proving themselves"))

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _hand_over(self, transport: asyncio.Transport, rest: bytes) -> None:
        """Hand the connection over: from here on it is the inner protocol's."""
        self._end()
        self.proven.set_result(None)
        transport.set_protocol(self.inner)
        self.inner.connection_made(transport)
        if rest:
            self.inner.data_received(rest)

    def _refuse(self, error: LinkRefused) -> None:
        self._end()
        if not self.proven.done():
            self.proven.set_exception(error)
            self.proven.exception()  # seen: whoever waited for it gave up, or listens
            if self._unproven is not None:
                self._unproven.log(error)
        self.drop()

    def _end(self) -> None:
        self._deadline.cancel()
        if self._unproven is not None:
            self._unproven.discard(self)
