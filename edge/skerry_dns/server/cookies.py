"""DNS cookies: a sender who has one can receive at its address, so it is no spoofed victim.

The server cookie is made as RFC 9018 says, so that all servers of a zone that share a secret accept
each other's: version, time, and SipHash-2-4 over both and the client's cookie and address.
"""

from __future__ import annotations

import hmac
import struct

from skerry_regions.geo.networks import Address

LIFETIME = 3600  # seconds that a cookie is good for …
RENEWAL = 1800  # … after which age a new one is sent …
FUTURE = 300  # … and how far another server's clock may be ahead
_MASK = (1 << 64) - 1


class Cookies:
    """Makes and checks server cookies with one 16-byte secret."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 16:
            raise ValueError(f"the cookie secret must have 16 bytes, got {len(secret)}")
        self.secret = secret

    def make(self, client_cookie: bytes, address: Address, now: int) -> bytes:
        """Return the full cookie: 8 bytes of the client's and 16 of ours. `now` is Unix time."""
        prefix = client_cookie + struct.pack("!BxxxI", 1, now & 0xFFFFFFFF)
        return prefix + siphash(self.secret, prefix + address.packed)

    def valid(self, cookie: bytes, address: Address, now: int) -> bool:
        """Return whether a cookie of ours came back from the address that it was made for, in
        time."""
        if len(cookie) != 24 or cookie[8] != 1:
            return False
        made = int.from_bytes(cookie[12:16], "big")
        age = (now - made + (1 << 31)) % (1 << 32) - (1 << 31)  # serial arithmetic, RFC 1982
        if not -FUTURE <= age <= LIFETIME:
            return False
        expected = cookie[:16] + siphash(self.secret, cookie[:16] + address.packed)
        return hmac.compare_digest(cookie, expected)


def siphash(key: bytes, data: bytes) -> bytes:
    """Hash by SipHash-2-4 with a 16-byte key: 8 bytes (Aumasson and Bernstein, 2012)."""
    k0, k1 = struct.unpack("<QQ", key)
    state = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]
    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        state[3] ^= word
        _rounds(state, 2)
        state[0] ^= word
    state[2] ^= 0xFF
    _rounds(state, 4)
    return struct.pack("<Q", state[0] ^ state[1] ^ state[2] ^ state[3])


def _rounds(state: list[int], count: int) -> None:
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 = v0 + v1 & _MASK
        v1 = _rotated(v1, 13) ^ v0
        v0 = _rotated(v0, 32)
        v2 = v2 + v3 & _MASK
        v3 = _rotated(v3, 16) ^ v2
        v0 = v0 + v3 & _MASK
        v3 = _rotated(v3, 21) ^ v0
        v2 = v2 + v1 & _MASK
        v1 = _rotated(v1, 17) ^ v2
        v2 = _rotated(v2, 32)
    state[:] = v0, v1, v2, v3


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
