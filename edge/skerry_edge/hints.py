"""What callers may say of a prompt's future, so that its KV is where the next request finds it."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from skerry.errors import InvalidInput
from skerry_edge.whole_numbers import whole_number

AFFINITY_HEADER = "x-session-affinity"
PIN_HEADER = "x-skerry-pin"
EXPLAIN_HEADER = "x-skerry-explain"  # of the question (`1`) and of the answer to it
MAX_PIN_SECONDS = 24 * 3600


def affinity_of(headers: Mapping[str, str], tenant: str) -> bytes:
    """Return the tenant's session, 16 bytes; empty when the caller names none. Any value will
    do."""
    value = headers.get(AFFINITY_HEADER)
    return session_of(value, tenant) if value else b""


def session_of(value: str, tenant: str) -> bytes:
    """Return the tenant's session of a name, 16 bytes."""
    named = f"{tenant}\0{value}".encode("utf-8", "surrogatepass")
    return blake2b(named, digest_size=16).digest()


def pin_of(headers: Mapping[str, str]) -> float:
    """Return seconds that the prompt's blocks are to stay cached. Raises `InvalidInput`."""
    value = headers.get(PIN_HEADER)
    if value is None:
        return 0.0
    seconds = whole_number(value.strip(), 0, MAX_PIN_SECONDS)
    if seconds is None:
        raise InvalidInput(
            f"Bad input: {PIN_HEADER} must be whole seconds, up to {MAX_PIN_SECONDS}",
            param=PIN_HEADER,
        )
    return float(seconds)
