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
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar, cast

from skerry_regions.address import Address

ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)
Purpose = Literal["streams", "kv"]

MAGIC = b"skerry1\n"
NONCE_BYTES = 32
PROOF_BYTES = 32  # SHA-256
MIN_KEY_BYTES = 32
HANDSHAKE_SECONDS = 5.0
MAX_UNPROVEN = 64  # connections of one listener whose proof has not come

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
        """What only a holder of the key can say about these nonces, the caller's first."""
        message = b"skerry link\0%b\0%b\0%b" % (side.encode(), purpose.encode(), nonces)
        return hmac.digest(self.secret, message, "sha256")

    def is_proof(
        self, given: bytes, side: Literal["call", "answer"], purpose: Purpose, nonces: bytes
    ) -> bool:
        """In a time that does not depend on where the difference is."""
        return hmac.compare_digest(given, self.prove(side, purpose, nonces))


class Caller:
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
        """(to send, what came after the handshake). Raises LinkRefused."""
        self._received += data
        if len(self._received) < NONCE_BYTES + PROOF_BYTES:
            return b"", b""
        theirs, proof = _split(self._received, NONCE_BYTES, PROOF_BYTES)
        nonces = self._nonce + theirs
        if not self._key.is_proof(proof, "answer", self._purpose, nonces):
            raise LinkRefused("the listening end does not hold this cluster's key")
        self.is_proven = True
        return self._key.prove("call", self._purpose, nonces), bytes(self._received)


class Answerer:
    """The listening end, without I/O."""

    def __init__(self, key: LinkKey, purpose: Purpose) -> None:
        self._key = key
        self._purpose: Purpose = purpose
        self._nonces = b""
        self._received = bytearray()
        self.is_proven = False

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """(to send, what came after the handshake). Raises LinkRefused."""
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
    proving = await address.connect(lambda: _Proving(Caller(key, purpose), protocol()))
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
    unproven: set[_Proving[asyncio.Protocol]] = set()
    return await address.listen(lambda: _Proving(Answerer(key, purpose), protocol(), unproven))


class _Proving(asyncio.Protocol, Generic[ProtocolT]):
    """Stands in front of a link's protocol until the other end has proven itself."""

    def __init__(
        self,
        side: Caller | Answerer,
        inner: ProtocolT,
        unproven: set[_Proving[ProtocolT]] | None = None,
    ) -> None:
        self.inner = inner
        self._side = side
        self._unproven: set[_Proving[ProtocolT]] = set() if unproven is None else unproven
        self._transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self.proven: asyncio.Future[None] = loop.create_future()
        self._deadline = loop.call_later(
            HANDSHAKE_SECONDS, self._refuse, LinkRefused("the other end did not prove itself")
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        if len(self._unproven) >= MAX_UNPROVEN:
            self._refuse(LinkRefused(f"{MAX_UNPROVEN} others are proving themselves"))
            return
        self._unproven.add(self)
        if isinstance(self._side, Caller):
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

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _hand_over(self, transport: asyncio.Transport, rest: bytes) -> None:
        """From here on the connection is the inner protocol's."""
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
            self.proven.exception()  # seen: it is nobody's who gave up waiting, or listens
            if isinstance(self._side, Answerer):
                logger.warning("a link was refused: %s", error)
        self.drop()

    def _end(self) -> None:
        self._deadline.cancel()
        self._unproven.discard(self)
