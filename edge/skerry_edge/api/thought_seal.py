"""What was thought, as clients keep it for a later turn: sealed, so that any change of it shows.

Anthropic's `signature` and OpenAI's `encrypted_content` are one text here: base64url of a version,
a MAC, and the model's id and the thought, packed. Keyed BLAKE2b (RFC 7693) under a key of the
tenant's, made of the cluster's secret, so no store is needed and every edge opens it. It hides
nothing from its owner: what open models think is shown.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import zlib
from typing import Final

_VERSION: Final = b"\x01"
_MAC: Final = 16  # bytes


class ThoughtSeal:
    """Seals and opens what one model thought for one tenant."""

    def __init__(self, secret: bytes, tenant: str, model: str) -> None:
        """`secret` has 16 to 64 bytes."""
        self._model = model
        self._key = hashlib.blake2b(
            tenant.encode(), key=secret, person=b"thoughts", digest_size=32
        ).digest()

    def seal(self, thought: str) -> str:
        """Return a thought, sealed."""
        packed = zlib.compress(f"{self._model}\0{thought}".encode())
        return base64.urlsafe_b64encode(_VERSION + self._mac(packed) + packed).decode()

    def open(self, sealed: str) -> tuple[str, bool] | None:
        """Return what was sealed, and whether it was this model that thought it; None where it was
        not sealed here, was sealed for another tenant, or was changed."""
        try:
            data = base64.b64decode(sealed.encode(), altchars=b"-_", validate=True)
        except (ValueError, binascii.Error):
            return None
        version, mac, packed = data[:1], data[1 : 1 + _MAC], data[1 + _MAC :]
        if version != _VERSION or not hmac.compare_digest(mac, self._mac(packed)):
            return None
        model, _, thought = zlib.decompress(packed).decode().partition("\0")
        return thought, model == self._model

    def _mac(self, packed: bytes) -> bytes:
        return hashlib.blake2b(packed, key=self._key, digest_size=_MAC).digest()
