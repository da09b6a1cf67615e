"""The request by which a client switches to WebSocket (RFC 6455, 4), and what accepts it."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping

from skerry.errors import InvalidInput, RequestError

VERSION = "13"
KEY_BYTES = 16
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # the protocol's own, of all connections
UPGRADE = {"connection": "Upgrade", "upgrade": "websocket"}  # of every answer


class NoUpgrade(RequestError):
    """A path that speaks WebSocket, to a client that speaks another version of it, or none."""


def accepted(fields: Mapping[str, str]) -> dict[str, str]:
    """Return what an answer has beside `UPGRADE`, where a request asks for the switch.

    Raises `NoUpgrade` (426) for one that does not, `InvalidInput` for one that asks wrongly.
    """
    asks = "upgrade" in _members(fields, "connection")
    asks = asks and "websocket" in _members(fields, "upgrade")
    if not asks or fields.get("sec-websocket-version") != VERSION:
        raise NoUpgrade(
            f"This path speaks WebSocket, version {VERSION}; send requests by POST.",
            http_status=426,
        )
    key = fields.get("sec-websocket-key", "")
    try:
        is_key = len(base64.b64decode(key, validate=True)) == KEY_BYTES
    except (binascii.Error, ValueError):
        is_key = False
    if not is_key:
        raise InvalidInput(
            f"Bad input: sec-websocket-key: {KEY_BYTES} bytes in Base64", param="sec-websocket-key"
        )
    digest = hashlib.sha1((key + GUID).encode(), usedforsecurity=False).digest()
    return {"sec-websocket-accept": base64.b64encode(digest).decode()}


def _members(fields: Mapping[str, str], name: str) -> set[str]:
    """Return the members of a list field, in lower case."""
    return {member.strip() for member in fields.get(name, "").lower().split(",")}
