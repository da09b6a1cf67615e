"""Proof, at the start of a connection within one machine, that both ends hold the cluster's key.

    connecting end                              listening end
      │ ── magic, 32 random bytes ───────────────▶ │
      │ ◀─────────────── 32 random bytes, proof ── │   HMAC-SHA256 over both, "answer", the purpose
      │ ── proof ────────────────────────────────▶ │   the same with "call"

Both ends prove, each over the other's fresh bytes, so that a recorded exchange is worth nothing;
the words keep a proof from being sent back to where it came from, and the purpose keeps one kind of
link from being used as another. What follows is the link's own protocol, as it was.

It is authentication, not encryption: between machines links are encrypted (`link_tls`).
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from typing import Literal

Purpose = Literal["streams", "kv", "ranks"]

MAGIC = b"skerry1\n"
NONCE_BYTES = 32
PROOF_BYTES = 32  # SHA-256
MIN_KEY_BYTES = 32


class LinkRefused(ConnectionError):
    """The other end is not who it has to be, or is no Skerry."""

    def __init__(self, message: str, last_word: bytes = b"") -> None:
        """`last_word` is what the other end is still sent."""
        super().__init__(message)
        self.last_word = last_word


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

    is_silent = False

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

    def greeting(self) -> bytes:
        return b""  # the other end speaks first

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
