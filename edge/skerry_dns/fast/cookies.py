"""Server cookies, as `skerry_dns.server.cookies` makes and checks them."""

from __future__ import annotations

import numpy as np

from skerry_dns.fast.compiled import Bytes, UInt64s, compiled, copy, u64, wide
from skerry_dns.server.cookies import FUTURE, LIFETIME, RENEWAL

WHOLE = 24  # bytes: the client's 8, version and time, and 8 of hash
CLIENT = 8
VERSION = 1

NONE, OLD, YOUNG = 0, 1, 2  # not ours, ours, and ours without need of a new one


@compiled
def cookie_age(secret: UInt64s, cookie: Bytes, address: Bytes, now: int) -> int:
    """Return what a cookie is that came from `address` (4 or 16 bytes) at Unix time `now`."""
    if cookie.size != WHOLE or cookie[CLIENT] != VERSION:
        return NONE
    made = 0
    for i in range(12, 16):
        made = made << 8 | wide(cookie[i])
    age = (now - made + (1 << 31)) % (1 << 32) - (1 << 31)  # serial arithmetic, RFC 1982
    if not -FUTURE <= age <= LIFETIME:
        return NONE
    if siphash(secret, cookie, address) != u64(cookie, 16, 8):
        return NONE
    return YOUNG if now - made < RENEWAL else OLD


@compiled
def put_cookie(
    out: Bytes, at: int, secret: UInt64s, client: Bytes, address: Bytes, now: int
) -> int:
    """Write a new cookie for the client's 8 bytes; where the next byte goes."""
    cookie = out[at : at + WHOLE]
    copy(cookie, 0, client, 0, CLIENT)
    cookie[8], cookie[9], cookie[10], cookie[11] = VERSION, 0, 0, 0
    for i in range(4):
        cookie[12 + i] = now >> (24 - 8 * i) & 0xFF
    code = siphash(secret, cookie, address)
    for i in range(8):
        cookie[16 + i] = code >> np.uint64(8 * i) & np.uint64(0xFF)
    return at + WHOLE


@compiled
def siphash(secret: UInt64s, cookie: Bytes, address: Bytes) -> np.uint64:
    """Hash the first 16 bytes of a cookie and an address by SipHash-2-4; `secret` is two words."""
    a = secret[0] ^ np.uint64(0x736F6D6570736575)
    b = secret[1] ^ np.uint64(0x646F72616E646F6D)
    c = secret[0] ^ np.uint64(0x6C7967656E657261)
    d = secret[1] ^ np.uint64(0x7465646279746573)
    size = 16 + address.size
    for at in range(0, size + 1, 8):
        if at < 16:
            word = u64(cookie, at, 8)
        else:
            word = u64(address, at - 16, min(8, size - at))
            if size - at < 8:
                word |= np.uint64(size) << np.uint64(56)
        d ^= word
        a, b, c, d = _round(a, b, c, d)
        a, b, c, d = _round(a, b, c, d)
        a ^= word
    c ^= np.uint64(0xFF)
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    return np.uint64(a ^ b ^ c ^ d)


@compiled
def _rotated(value: np.uint64, bits: int) -> np.uint64:
    return value << np.uint64(bits) | value >> np.uint64(64 - bits)


@compiled
def _round(
    a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    a += b
    b = _rotated(b, 13) ^ a
    a = _rotated(a, 32)
    c += d
    d = _rotated(d, 16) ^ c
    a += d
    d = _rotated(d, 21) ^ a
    c += b
    b = _rotated(b, 17) ^ c
    return a, b, _rotated(c, 32), d
