"""The fast path without sockets, and queries of every kind to try it with."""

from __future__ import annotations

import ipaddress
import os
import struct
from collections.abc import Generator
from pathlib import Path
from random import Random
from typing import TypeVar

import dns.message
import dns.name
import dns.rdatatype
import dns.rrset
import numpy as np
from dns.rdtypes.ANY.RRSIG import RRSIG
from tests.conftest import ROOT
from tests.dns.example import ORIGIN, RESOLVER

from skerry_cli.composition.dns.kernels import load_dns_kernels
from skerry_dns.fast.compiling import Contents, make_table, orders_of, read_contents
from skerry_dns.fast.limiting import make_limits
from skerry_dns.fast.responding import (
    INET,
    INET6,
    LARGEST,
    LEFT,
    NO_ANSWER,
    PACKET,
    SOCKADDR,
    Keys,
    make_scratch,
    respond,
)
from skerry_dns.fast.serving import SLOT
from skerry_dns.server.cookies import Cookies
from skerry_dns.server.responder import Responder
from skerry_regions.geo.networks import Address

CACHE = Path(os.environ.get("SKERRY_TEST_HOME", ROOT / ".cache" / "skerry")) / "cache"
PORT = 5300

T = TypeVar("T")


def finished(work: Generator[None, None, T]) -> T:
    """What comes of work that is done in pieces."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class Left(Exception):
    """The fast path leaves a query to the slow one."""


class FastResponder:
    """Answers as a worker does, from what a responder serves now."""

    def __init__(self, responder: Responder) -> None:
        load_dns_kernels(CACHE, lambda _what, _share: None)
        self.responder = responder
        self.contents: Contents = finished(read_contents(responder))
        self.keys = Keys(
            np.frombuffer(responder.cookies.secret, np.uint64).copy(),
            make_limits(responder.limits),
            np.zeros(SOCKADDR, np.uint8),
        )
        self.scratch = make_scratch()
        self._out = np.zeros(LARGEST, np.uint8)
        self.refresh()

    def refresh(self) -> None:
        """Follow the state of regions."""
        orders = finished(orders_of(self.contents, self.responder.places.state))
        table = finished(make_table(self.contents, orders, 1))
        assert table is not None
        self.table = table

    def respond(
        self, query: bytes, address: Address, now: float, *, port: int = PORT, mapped: bool = False
    ) -> bytes | None:
        """The answer, or None when none is due. Raises `Left`."""
        slot = np.zeros(SLOT, np.uint8)
        sender = sockaddr(address, port, mapped=mapped)
        slot[: len(sender)] = np.frombuffer(sender, np.uint8)
        slot[PACKET : PACKET + len(query)] = np.frombuffer(query, np.uint8)
        length = respond(slot, len(query), self.table, self.keys, self.scratch, now, self._out)
        if length == LEFT:
            raise Left
        return None if length == NO_ANSWER else self._out[:length].tobytes()


def sockaddr(address: Address, port: int, *, mapped: bool = False) -> bytes:
    """As Linux writes a sender; `mapped`: IPv4 as a dual-stack socket shows it."""
    packed = address.packed
    if len(packed) == 4 and not mapped:
        return struct.pack("=H", INET) + struct.pack("!H4s8x", port, packed)
    packed = packed if len(packed) == 16 else _mapped(packed)
    return struct.pack("=H", INET6) + struct.pack("!HI16sI", port, 0, packed, 0)


def _mapped(packed: bytes) -> bytes:
    return bytes(10) + b"\xff\xff" + packed


def is_same(answer: bytes | None, expected: bytes | None) -> bool:
    """Whether two answers say the same, or none is due."""
    if answer is None or expected is None:
        return answer is expected
    return answer == expected or _plain(answer) == _plain(expected)


def _plain(answer: bytes) -> object:
    """What two answers must have in common: all but the order of records, and when and with which
    random number something was signed."""
    message = dns.message.from_wire(answer)
    sections = [
        sorted(line for rrset in section for line in _lines(rrset)) for section in message.sections
    ]
    options = [(option.otype, option.to_wire()) for option in message.options]
    return answer[:12], sections, message.edns, message.ednsflags, message.payload, options


def _lines(rrset: dns.rrset.RRset) -> list[str]:
    if rrset.rdtype != dns.rdatatype.RRSIG:
        return rrset.to_text().splitlines()
    signed = [record for record in rrset if isinstance(record, RRSIG)]
    return [f"{rrset.name} {rrset.ttl} {each.to_text()[:60].split()[:4]}" for each in signed]


NAMES = [
    "ai", "ai", "ai", "static", "www", "to-ai", "out", "@", "ns1", "er", "deep.er", "wild",
    "*.wild", "x.wild", "a.b.wild", "child", "ns.child", "x.child", "y.ns.child", "many", "caa",
    "nothing", "x.static", "x.ns1", "a.b.c.d.nothing", "signed", "x.signed", "lost", "ds",
    "x.*.wild", "example.org.", "test.", ".", "xexample.test.",
]  # fmt: skip
TYPES = [1, 28, 65, 16, 2, 6, 5, 15, 43, 46, 47, 48, 255, 251, 252, 128, 250, 41, 257, 0, 65_280]
ADDRESSES: list[Address] = [
    RESOLVER,
    *map(
        ipaddress.ip_address,
        ("203.0.113.9", "198.51.100.1", "198.51.100.200", "10.0.0.1", "2001:db8:aaaa::1", "::1"),
    ),
]


def random_query(random: Random, cookies: Cookies, address: Address, now: int) -> bytes:
    """Whole and sane, or nearly."""
    name = random.choice(NAMES)
    if random.random() < 0.1:
        labels = [bytes(random.randbytes(random.randint(1, 63))) for _ in range(3)]
        wire = b"".join(bytes([len(each)]) + each for each in labels) + (ORIGIN.to_wire() or b"")
    else:
        wire = dns.name.from_text(name, ORIGIN).to_wire() or b""
    if random.random() < 0.5:
        wire = bytes(
            byte ^ 0x20 if chr(byte).isalpha() and random.random() < 0.5 else byte for byte in wire
        )
    rdtype = random.choice(TYPES) if random.random() < 0.9 else random.randrange(65_536)
    rdclass = 1 if random.random() < 0.95 else random.choice((3, 255, 0))
    flags = random.choice((0, 0x0100, 0x0120, 0x0010, 0x0110, 0x8000, 0x2000, 0x0480))
    record = b"" if random.random() < 0.2 else _opt(random, cookies, address, now)
    header = struct.pack("!HHHHHH", random.randrange(65_536), flags, 1, 0, 0, bool(record))
    return header + wire + struct.pack("!HH", rdtype, rdclass) + record


def _opt(random: Random, cookies: Cookies, address: Address, now: int) -> bytes:
    options = b""
    for _ in range(random.choice((0, 1, 1, 1, 2, 3, 40) if random.random() < 0.2 else (0, 1, 2))):
        code, value = random.choice((_subnet, _cookie, _other))(random, cookies, address, now)
        options += struct.pack("!HH", code, len(value)) + value
    version = 0 if random.random() < 0.95 else random.randrange(256)
    flags = random.choice((0, 0x8000, 0xC000, 0x4000, 0x8000, random.randrange(65_536)))
    payload = random.choice((0, 512, 1232, 1400, 4096, 700))
    return struct.pack("!BHHBBHH", 0, 41, payload, 0, version, flags, len(options)) + options


def _subnet(random: Random, cookies: Cookies, address: Address, now: int) -> tuple[int, bytes]:
    family = random.choice((1, 1, 1, 2, 2, random.randrange(4)))
    source = random.choice((0, 8, 24, 24, 32, 20, 56, 48, 128, random.randrange(256)))
    scope = 0 if random.random() < 0.9 else random.randrange(256)
    near = random.choice(ADDRESSES).packed
    bits = int.from_bytes(near.ljust(16, b"\0"), "big")
    if random.random() < 0.9:
        bits = bits >> max(128 - source, 0) << max(128 - source, 0)
    length = (source + 7) // 8 if random.random() < 0.9 else random.randrange(20)
    return 8, struct.pack("!HBB", family, source, scope) + bits.to_bytes(16, "big")[:length]


def _cookie(random: Random, cookies: Cookies, address: Address, now: int) -> tuple[int, bytes]:
    client = random.randbytes(8)
    made = now - random.choice((0, 10, 1799, 1800, 3600, 3601, -300, -301, 1 << 31))
    whole = cookies.make(client, address, made)
    broken = bytearray(whole)
    broken[random.randrange(24)] ^= 1 << random.randrange(8)
    return 10, random.choice(
        (client, whole, whole, bytes(broken), random.randbytes(random.randrange(45)))
    )


def _other(random: Random, cookies: Cookies, address: Address, now: int) -> tuple[int, bytes]:
    return random.choice((3, 3, 12, 65_001)), random.randbytes(random.choice((0, 0, 5)))


def mutated(random: Random, query: bytes) -> bytes:
    """With some bytes changed, added or missing; or something else altogether."""
    wire = bytearray(query)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(wire)) if wire else 0
        match random.randrange(6):
            case 0 | 1 if wire:
                wire[at] = random.randrange(256)
            case 2 if wire:
                wire[at] ^= 1 << random.randrange(8)
            case 3:
                wire[at:at] = random.randbytes(random.randint(1, 8))
            case 4:
                del wire[at : at + random.randint(1, 8)]
            case _:
                if random.random() < 0.1:
                    wire = bytearray(random.randbytes(random.randrange(600)))
    if random.random() < 0.01:
        wire += bytes(random.randrange(4200))
    return bytes(wire[:4100])
