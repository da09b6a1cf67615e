"""Reading queries, as `skerry_dns.wire` does it and with the same verdicts."""

from __future__ import annotations

from typing import NamedTuple

from skerry_dns.fast.compiled import Bytes, Int64s, compiled, u16, wide
from skerry_dns.wire import MAX_OPTIONS, MAX_QUERY, MAX_RECORDS

HEADER = 12  # bytes
MAX_NAME = 255
OPT_HEADER = 11  # bytes, up to the options
FORMERR, NOTIMP = 1, 4
OPT, TSIG, ANY_CLASS = 41, 250, 255
NSID, SUBNET, COOKIE = 3, 8, 10  # options
V4, V6 = 1, 2  # families of subnets

IGNORED, SLOW, QUERY = 0, 1, 2
BARE = 16  # BARE + rcode: the answer is a header with that code


class Asked(NamedTuple):
    """A query. Offsets are from its first byte, and 0 where there is no such thing."""

    verdict: int
    labels: int = 0  # of the name, without the root's
    name_end: int = 0
    type: int = 0
    rdclass: int = 0
    edns: int = 0  # 1: there is an OPT record
    version: int = 0
    payload: int = 0  # bytes that the client takes over UDP
    dnssec: int = 0  # 0: no signatures; 1: DO; 2: DO and CO
    subnet: int = 0  # where the option's data is
    subnet_length: int = 0
    cookie: int = 0
    cookie_length: int = 0
    nsid: int = 0


class Options(NamedTuple):
    """What is known of an OPT record's data; see `Asked`."""

    good: int
    subnet: int
    subnet_length: int
    cookie: int
    cookie_length: int
    nsid: int


@compiled
def _nothing(verdict: int) -> Asked:
    return Asked(verdict, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


@compiled
def read_query(packet: Bytes, labels: Int64s, lowered: Bytes) -> Asked:
    """Read one query. `labels` gets where each label begins within the name, `lowered` the name
    in lower case; both are scratch."""
    if packet.size < HEADER or packet[2] & 0x80:
        return _nothing(IGNORED)
    asked = _read(packet, labels, lowered)
    # What is signed may be for the holder of a key, however it looks.
    if asked.verdict >= BARE and _has_tsig(packet):
        return _nothing(SLOW)
    return asked


@compiled
def _read(packet: Bytes, labels: Int64s, lowered: Bytes) -> Asked:
    if packet[2] >> 3 & 0xF:
        return _nothing(BARE + NOTIMP)
    records = u16(packet, 10)
    if (
        packet.size > MAX_QUERY
        or u16(packet, 4) != 1
        or u16(packet, 6) + u16(packet, 8)
        or records > MAX_RECORDS
    ):
        return _nothing(BARE + FORMERR)
    count, end = _read_name(packet, labels, lowered)
    at = end + 4
    if end < 0 or at > packet.size:
        return _nothing(BARE + FORMERR)
    rdtype, rdclass = u16(packet, end), u16(packet, end + 2)
    if records == 0:
        if at != packet.size:
            return _nothing(BARE + FORMERR)
        return Asked(QUERY, count, end, rdtype, rdclass, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    if records > 1 or at == packet.size or packet[at]:
        return _nothing(SLOW)
    if at + OPT_HEADER > packet.size:
        return _nothing(BARE + FORMERR)
    if u16(packet, at + 1) != OPT:
        return _nothing(SLOW)
    first = at + OPT_HEADER
    if first + u16(packet, at + 9) != packet.size:
        return _nothing(BARE + FORMERR)
    payload, version = u16(packet, at + 3), wide(packet[at + 6])
    if version:  # its options may mean something else
        return Asked(QUERY, count, end, rdtype, rdclass, 1, version, payload, 0, 0, 0, 0, 0, 0)
    options = _read_options(packet, first)
    if not options.good:
        return _nothing(BARE + FORMERR)
    flags = wide(packet[at + 7])
    dnssec = (2 if flags & 0x40 else 1) if flags & 0x80 else 0
    return Asked(
        QUERY,
        count,
        end,
        rdtype,
        rdclass,
        1,
        version,
        payload,
        dnssec,
        options.subnet,
        options.subnet_length,
        options.cookie,
        options.cookie_length,
        options.nsid,
    )


@compiled
def _read_name(packet: Bytes, labels: Int64s, lowered: Bytes) -> tuple[int, int]:
    """Return the number of labels and where the name ends; an end of -1 for what is no name."""
    at = HEADER
    count = 0
    while at < packet.size:
        length = wide(packet[at])
        start = at - HEADER
        following = at + 1 + length
        if length > 63 or following > packet.size or following - HEADER > MAX_NAME:
            return 0, -1
        lowered[start] = length
        if length == 0:
            return count, following
        labels[count] = start
        count += 1
        for i in range(1, length + 1):
            byte = packet[at + i]
            lowered[start + i] = byte + 32 if 65 <= byte <= 90 else byte
        at = following
    return 0, -1


@compiled
def _read_options(packet: Bytes, at: int) -> Options:
    subnet = subnet_length = cookie = cookie_length = nsid = 0
    for _ in range(MAX_OPTIONS):
        if at == packet.size:
            return Options(1, subnet, subnet_length, cookie, cookie_length, nsid)
        if at + 4 > packet.size:
            break
        code, length = u16(packet, at), u16(packet, at + 2)
        at += 4
        if at + length > packet.size:
            break
        if code == SUBNET:
            if not _is_subnet(packet, at, length):
                break
            subnet, subnet_length = at, length
        elif code == COOKIE:
            if length != 8 and not 16 <= length <= 40:
                break
            cookie, cookie_length = at, length
        elif code == NSID:
            nsid = 1
        at += length
    return Options(0, 0, 0, 0, 0, 0)


@compiled
def _is_subnet(packet: Bytes, at: int, length: int) -> bool:
    """Check RFC 7871, 6 and 7.1.2: no scope in queries, no bits beyond the prefix, exact length."""
    if length < 4:
        return False
    family, source = u16(packet, at), wide(packet[at + 2])
    bits = 32 if family == V4 else 128 if family == V6 else -1
    if source > bits or packet[at + 3] or length - 4 != (source + 7) // 8:
        return False
    beyond = -source % 8
    return beyond == 0 or wide(packet[at + length - 1]) & ((1 << beyond) - 1) == 0


@compiled
def _has_tsig(packet: Bytes) -> bool:
    """Return whether type TSIG and class ANY stand somewhere in it."""
    for at in range(HEADER, packet.size - 3):
        if packet[at + 1] == TSIG and u16(packet, at) == TSIG and u16(packet, at + 2) == ANY_CLASS:
            return True
    return False
