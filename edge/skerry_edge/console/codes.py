"""One-time codes: an address that `skerry up` prints, and whoever opens it is logged in.

A code follows from the platform's secret, so that any process of its home can make one, and each
edge can check those that are for it without being told of them. It is void after a minute, or one
use. It stands in the fragment of an address, which browsers do not send.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable

CONTROL_PLANE = "control plane"  # its codes are for no edge: an edge's name has no blank
CODE_SECONDS = 60
MAX_USED = 10_000  # codes that are remembered until they are void; beyond, none is taken

_CODE = re.compile(r"([0-9a-f]{16})\.([0-9]{1,12})\.([0-9a-f]{16})\.([0-9a-f]{32})")


def new_code(secret: bytes, edge: str, token_id: str, now: float) -> str:
    """Return a code that logs one browser in at an edge, as the holder of a token.

    `now` is in Unix seconds.
    """
    end, nonce = int(now) + CODE_SECONDS, secrets.token_hex(8)
    return f"{token_id}.{end}.{nonce}.{_proof(secret, edge, token_id, end, nonce)}"


class LoginCodes:
    """Takes the codes of one edge, each once. `clock` gives Unix seconds."""

    def __init__(self, secret: bytes, edge: str, clock: Callable[[], float]) -> None:
        self._secret = secret
        self._edge = edge
        self._clock = clock
        self._used: dict[str, int] = {}  # by nonce: when it is void anyway

    def take(self, code: str) -> str | None:
        """Return the id of the token that a code stands for; None where it is wrong, late or used
        before."""
        match = _CODE.fullmatch(code)
        if match is None:
            return None
        token_id, end, nonce = match[1], int(match[2]), match[3]
        proof = _proof(self._secret, self._edge, token_id, end, nonce)
        now = self._clock()
        if not hmac.compare_digest(proof, match[4]) or not now <= end <= now + CODE_SECONDS + 1:
            return None
        self._used = {each: until for each, until in self._used.items() if until >= now}
        if nonce in self._used or len(self._used) >= MAX_USED:
            return None
        self._used[nonce] = end
        return token_id


def _proof(secret: bytes, edge: str, token_id: str, end: int, nonce: str) -> str:
    text = "\0".join((edge, token_id, str(end), nonce)).encode()
    return hashlib.blake2b(text, key=secret, digest_size=16, person=b"console login").hexdigest()
