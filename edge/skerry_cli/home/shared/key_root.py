"""The root of the tenants' cache keys, as NATS servers keep it: sealed with the cluster's key.

Servers, and whoever reads their disks or their links, do not learn it; whoever has `cluster.key`
may. ChaCha20-Poly1305 (RFC 8439), under a key that follows from the cluster's.
"""

from __future__ import annotations

import hashlib
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

VERSION = b"\x01"
NONCE_BYTES = 12
PERSON = b"skerry key root"


class WrongKey(Exception):
    """It was sealed with another cluster's key, or is damaged."""


def sealed(root: bytes, cluster_key: bytes) -> bytes:
    """Return the root as others may see it."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return VERSION + nonce + _cipher(cluster_key).encrypt(nonce, root, VERSION)


def unsealed(message: bytes, cluster_key: bytes) -> bytes:
    """Return the root. Raises WrongKey."""
    version, nonce, box = message[:1], message[1 : 1 + NONCE_BYTES], message[1 + NONCE_BYTES :]
    try:
        return _cipher(cluster_key).decrypt(nonce, box, version)
    except (InvalidTag, ValueError):
        raise WrongKey from None


def _cipher(cluster_key: bytes) -> ChaCha20Poly1305:
    key = hashlib.blake2b(key=cluster_key, person=PERSON, digest_size=32).digest()
    return ChaCha20Poly1305(key)
