"""Cookies against the published vectors of SipHash and RFC 9018."""

from __future__ import annotations

import ipaddress

import pytest

from skerry_dns.server.cookies import FUTURE, LIFETIME, Cookies, siphash

SECRET = bytes.fromhex("e5e973e5a6b2a43f48e7dc849e37bfcf")  # RFC 9018, appendix A
CLIENT = ipaddress.ip_address("198.51.100.100")


@pytest.mark.parametrize(
    ("length", "digest"),
    [(0, "310e0edd47db6f72"), (1, "fd67dc93c539f874"), (8, "6224939a79f5f593")],
)
def test_siphash_vectors(length: int, digest: str) -> None:
    """From the reference implementation: key 00..0f, input 00, 01, …"""
    assert siphash(bytes(range(16)), bytes(range(length))).hex() == digest


def test_rfc_9018_a_new_cookie() -> None:
    cookie = Cookies(SECRET).make(bytes.fromhex("2464c4abcf10c957"), CLIENT, 1559731985)
    assert cookie.hex() == "2464c4abcf10c957010000005cf79f111f8130c3eee29480"


def test_a_cookie_is_good_for_its_address_and_time() -> None:
    cookies, now = Cookies(SECRET), 1559731985
    cookie = cookies.make(bytes(8), CLIENT, now)
    assert cookies.valid(cookie, CLIENT, now + LIFETIME)
    assert cookies.valid(cookie, CLIENT, now - FUTURE)
    assert not cookies.valid(cookie, CLIENT, now + LIFETIME + 1)
    assert not cookies.valid(cookie, CLIENT, now - FUTURE - 1)
    assert not cookies.valid(cookie, ipaddress.ip_address("198.51.100.101"), now)
    assert not cookies.valid(cookie[:-1] + bytes([cookie[-1] ^ 1]), CLIENT, now)
    assert not cookies.valid(cookie[:8], CLIENT, now)
    assert not Cookies(bytes(16)).valid(cookie, CLIENT, now)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes, got 3"):
        Cookies(b"abc")
