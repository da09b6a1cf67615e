"""Reading DNS queries: strict, bounded, and without following anything.

A query is a header, one question without compression, and perhaps an OPT record. It is read here
and not by a general parser, because this is the code that strangers' packets meet first.
Sources: RFC 1035, RFC 9619 (one question), RFC 6891 (EDNS), RFC 7871 (client subnet).
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import dns.flags
import dns.name
import dns.opcode
import dns.rcode
import dns.rdatatype

HEADER = struct.Struct("!HHHHHH")
QUESTION_TAIL = struct.Struct("!HH")
RECORD_TAIL = struct.Struct("!HHIH")  # type, class, TTL, length of the data
MAX_QUERY = 4096  # bytes; longer ones carry nothing that we understand
MAX_RECORDS = 8  # in the additional section
MAX_OPTIONS = 32


class Option(IntEnum):
    """EDNS option codes that are understood; others are ignored."""

    NSID = 3
    CLIENT_SUBNET = 8
    COOKIE = 10


class Ignored(Exception):
    """Not to be answered: shorter than a header, or itself an answer."""


@dataclass(eq=False)
class Refused(Exception):
    """A query that gets an answer of nothing but a code."""

    id: int
    opcode: int
    recursion_desired: bool
    rcode: dns.rcode.Rcode


@dataclass(frozen=True, slots=True)
class Subnet:
    """The network that a resolver requests, as RFC 7871 defines it."""

    network: ipaddress.IPv4Network | ipaddress.IPv6Network

    @property
    def family(self) -> int:
        return 1 if self.network.version == 4 else 2

    def option(self, scope: int) -> bytes:
        """Return the option that answers it: family, source and address exactly as sent."""
        source = self.network.prefixlen
        address = self.network.network_address.packed[: (source + 7) // 8]
        return struct.pack("!HBB", self.family, source, scope) + address


@dataclass(frozen=True, slots=True)
class Edns:
    """What the OPT record says."""

    payload: int  # bytes that the client takes over UDP
    version: int
    dnssec_ok: bool
    subnet: Subnet | None = None
    cookie: bytes | None = None  # 8 bytes of the client's, perhaps followed by one of ours
    wants_nsid: bool = False
    compact_ok: bool = False  # CO: compact proofs are understood (RFC 9824)


@dataclass(frozen=True, slots=True)
class Query:
    """One question."""

    id: int
    recursion_desired: bool
    checking_disabled: bool
    name: dns.name.Name  # absolute, in the client's own case (RFC 4343)
    type: int
    rdclass: int
    edns: Edns | None


def parse(wire: bytes) -> Query:
    """Read one query. Raises `Ignored`, or `Refused` with the code to answer with."""
    if len(wire) < HEADER.size:
        raise Ignored
    id_, flags, questions, answers, authorities, additional = HEADER.unpack_from(wire)
    if flags & dns.flags.QR:
        raise Ignored
    opcode = flags >> 11 & 0xF
    desired = bool(flags & dns.flags.RD)
    if opcode != dns.opcode.QUERY:
        raise Refused(id_, opcode, desired, dns.rcode.NOTIMP)
    try:
        if len(wire) > MAX_QUERY or questions != 1 or answers or authorities:
            raise ValueError("not the shape of a query")
        name, at = _name(wire, HEADER.size)
        rdtype, rdclass = QUESTION_TAIL.unpack_from(wire, at)
        edns = _edns(wire, at + QUESTION_TAIL.size, additional)
    except (ValueError, struct.error):
        raise Refused(id_, opcode, desired, dns.rcode.FORMERR) from None
    return Query(
        id_, desired, bool(flags & dns.flags.CD), dns.name.Name(name), rdtype, rdclass, edns
    )


def _name(wire: bytes, at: int) -> tuple[list[bytes], int]:
    """Return labels of an uncompressed name, and where it ends. Raises ValueError."""
    labels: list[bytes] = []
    start = at
    while True:
        if at >= len(wire) or at - start > 254:  # 255 with the root
            raise ValueError("the name does not end")
        length = wire[at]
        if length > 63:
            raise ValueError("compressed, or no label at all")
        labels.append(wire[at + 1 : at + 1 + length])
        at += 1 + length
        if length == 0:
            return labels, at


def _edns(wire: bytes, at: int, records: int) -> Edns | None:
    """Return the OPT record among `records` additional ones, which must end with the packet."""
    if records > MAX_RECORDS:
        raise ValueError("too many records")
    found: Edns | None = None
    for _ in range(records):
        owner, at = _name(wire, at)
        rdtype, payload, ttl, length = RECORD_TAIL.unpack_from(wire, at)
        at += RECORD_TAIL.size
        if at + length > len(wire):
            raise ValueError("a record ends beyond the packet")
        if rdtype == dns.rdatatype.OPT:
            if found is not None or owner != [b""]:
                raise ValueError("a second OPT, or one with a name")
            found = _opt(payload, ttl, wire[at : at + length])
        at += length
    if at != len(wire):
        raise ValueError("bytes beyond the last record")
    return found


def _opt(payload: int, ttl: int, data: bytes) -> Edns:
    version = ttl >> 16 & 0xFF
    if version != 0:  # its options may mean something else
        return Edns(payload, version, dnssec_ok=False)
    subnet: Subnet | None = None
    cookie: bytes | None = None
    wants_nsid = False
    for code, value in _options(data):
        match code:
            case Option.CLIENT_SUBNET:
                subnet = _subnet(value)
            case Option.COOKIE:
                if len(value) != 8 and not 16 <= len(value) <= 40:
                    raise ValueError("not a cookie (RFC 7873, 5.2.2)")
                cookie = value
            case Option.NSID:
                wants_nsid = True
            case _:
                pass
    return Edns(
        payload,
        version,
        bool(ttl & dns.flags.DO),
        subnet,
        cookie,
        wants_nsid,
        compact_ok=bool(ttl & dns.flags.CO),
    )


def _options(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    for _ in range(MAX_OPTIONS):
        if at == len(data):
            return
        code, length = QUESTION_TAIL.unpack_from(data, at)
        at += QUESTION_TAIL.size
        if at + length > len(data):
            raise ValueError("an option ends beyond its record")
        yield code, data[at : at + length]
        at += length
    raise ValueError("too many options")


def _subnet(value: bytes) -> Subnet:
    """Parse a client's subnet by RFC 7871, 6 and 7.1.2: no scope in queries, no bits beyond the
    prefix, exact length."""
    family, source, scope = struct.unpack_from("!HBB", value)
    size = {1: 4, 2: 16}.get(family)
    address = value[4:]
    if size is None or scope != 0 or source > size * 8 or len(address) != (source + 7) // 8:
        raise ValueError("not a client subnet")
    packed = address.ljust(size, b"\0")
    kind = ipaddress.IPv4Network if family == 1 else ipaddress.IPv6Network
    return Subnet(kind((packed, source)))  # strict: raises ValueError on bits beyond the prefix
