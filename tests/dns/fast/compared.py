"""Both paths asked the same, with options of every kind."""

from __future__ import annotations

import time
from random import Random

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rdatatype
from tests.dns.example import NOW, ORIGIN, RESOLVER
from tests.dns.fast.fast_answers import (
    ADDRESSES,
    FastResponder,
    Left,
    is_same,
    mutated,
    random_query,
)

DO, CO, TC = dns.flags.DO, dns.flags.CO, dns.flags.TC
FURTHER = [
    "signed IN NS ns.signed",
    "signed IN DS 1 13 2 " + "ab" * 32,
    "ns.signed IN A 192.0.2.98",
    "lost IN CNAME gone",
    "trio IN A 192.0.2.1",
    "trio IN A 192.0.2.2",
    "trio IN A 192.0.2.3",
]
HEADERS = {4: 28, 6: 48}  # bytes of IP and UDP


def asked(
    fast: FastResponder, name: str, rdtype: int, flags: int = 0, subnet: str = "203.0.113.0"
) -> bytes:
    """By a resolver that has shown that it receives at `RESOLVER`."""
    cookie = fast.responder.cookies.make(b"clientck", RESOLVER, int(NOW))
    message = dns.message.make_query(
        dns.name.from_text(name, ORIGIN),
        dns.rdatatype.RdataType.make(rdtype),
        use_edns=0,
        ednsflags=flags,
        options=[
            dns.edns.GenericOption(dns.edns.OptionType.COOKIE, cookie),
            dns.edns.ECSOption(subnet, 24),
        ],
        payload=1232,
    )
    return message.to_wire()


def answered(fast: FastResponder, sent: bytes) -> dns.message.Message:
    answer = fast.respond(sent, RESOLVER, NOW)
    assert answer is not None
    return dns.message.from_wire(answer)


def absolute(name: str) -> dns.name.Name:
    return dns.name.from_text(name, ORIGIN)


def compare(fast: FastResponder, random: Random, seconds: float, most: int) -> tuple[int, int]:
    """Compare until time or number is up: how many were compared, and how many left."""
    compared = left = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end and compared + left < most:
        address = random.choice(ADDRESSES)
        sent = random_query(random, fast.responder.cookies, address, int(NOW))
        if random.random() < 0.3:
            sent = mutated(random, sent)
        try:
            answer = fast.respond(sent, address, NOW)
        except Left:
            left += 1
            continue
        expected = fast.responder.respond(sent, address, stream=False)
        compared += 1
        assert is_same(answer, expected), (sent.hex(), str(address))
    return compared, left
