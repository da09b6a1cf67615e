"""From one query's bytes to one answer's bytes, with the answers of a `Table`.

The counterpart of `skerry_dns.server.responder`, which says why things are as they are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skerry_dns.fast import asked as reading
from skerry_dns.fast import table as tables
from skerry_dns.fast.asked import BARE, HEADER, Asked, read_query
from skerry_dns.fast.compiled import Bytes, Int64s, UInt64s, compiled, top64, u16, wide
from skerry_dns.fast.cookies import NONE, cookie_age
from skerry_dns.fast.limiting import CUT, DROP, SEND, FastLimits, judge_answer
from skerry_dns.fast.table import Table, find_block, find_choice, find_name
from skerry_dns.fast.writing import Sender, options_length, write_answer, write_bare
from skerry_dns.server.responder import (
    IP_UDP_HEADER,
    NO_COOKIE_FACTOR,
    PLAIN_PAYLOAD,
    UDP_PAYLOAD,
)
from skerry_regions.geo.networks import MAX_SCOPE
from skerry_regions.geo.shares import FAMILY_BIT, MULTIPLIER

LONGEST4, LONGEST6 = MAX_SCOPE[4], MAX_SCOPE[6]
SOME_SUBNET = 1 << 62
SOCKADDR = 28  # bytes, of both families
PACKET = 32  # where the query begins behind its sender in a slot
INET, INET6 = 2, 10  # address families of Linux
BADVERS = 16
IN, NXNAME, IXFR, AXFR = 1, 128, 251, 252

NO_ANSWER, LEFT = 0, -1  # instead of an answer's length; LEFT: for the slow path
LARGEST = 1344  # bytes of an answer's buffer: UDP_PAYLOAD, and no power of two for caches' sake

# Rows of counters.
RECEIVED, SENT, IGNORED, DROPPED, SLOW, SLOW_LOST, UNSENT = range(7)
RCODES = 7  # and the ones behind, one per code
COUNTERS = 32


class Keys(NamedTuple):
    """What answers are made with, beside the table."""

    secret: UInt64s  # of cookies: two words
    limits: FastLimits
    own: Bytes  # this socket's address, as senders would have it


class Scratch(NamedTuple):
    """Room for one query at a time."""

    labels: Int64s
    name: Bytes
    counters: Int64s


def make_scratch() -> Scratch:
    """Allocate the memory of one worker."""
    return Scratch(np.zeros(128, np.int64), np.zeros(256, np.uint8), np.zeros(COUNTERS, np.int64))


@compiled
def respond(
    slot: Bytes, length: int, table: Table, keys: Keys, scratch: Scratch, now: float, out: Bytes
) -> int:
    """Write the answer to one query; its length, or `NO_ANSWER` or `LEFT`.

    slot: the sender (`sockaddr_in` or `sockaddr_in6`) and from `PACKET` on `length` bytes.
    now: Unix seconds.
    """
    counters = scratch.counters
    if not (slot[2] or slot[3]) or _is_own(slot, keys.own):
        return _count(counters, IGNORED)
    packet = slot[PACKET : PACKET + length]
    sender = _sender(slot)
    asked = read_query(packet, scratch.labels, scratch.name)
    if asked.verdict == reading.IGNORED:
        return _count(counters, IGNORED)
    if asked.verdict == reading.SLOW or table.slots.size == 0:
        return LEFT
    if asked.verdict >= BARE:
        rcode = asked.verdict - BARE
        if _judge(keys, sender, np.uint64(0), np.uint64(rcode), now) != SEND:
            return _count(counters, DROPPED)
        counters[RCODES + rcode] += 1
        return write_bare(packet, rcode, out)
    return _answer(packet, asked, sender, table, keys, scratch, now, out)


@compiled
def _answer(
    packet: Bytes,
    asked: Asked,
    sender: Sender,
    table: Table,
    keys: Keys,
    scratch: Scratch,
    now: float,
    out: Bytes,
) -> int:
    counters = scratch.counters
    name_length = asked.name_end - HEADER
    entry, start, name_hash = find_name(
        table, scratch.name, name_length, scratch.labels, asked.labels
    )
    row, scope = _find_answer(packet, asked, sender, table, entry, start == 0)
    if table.answers[row, tables.TURNS] > 1:  # the client's id is as good as any number
        turn = u16(packet, 0) % table.answers[row, tables.TURNS]
        row = wide(table.answers[row, tables.TURN_ROW]) + turn
    answer = table.answers[row]
    cookie = packet[asked.cookie : asked.cookie + asked.cookie_length]
    age = cookie_age(keys.secret, cookie, sender.address, wide(now))
    limit = _limit(asked, packet.size, age != NONE)
    rcode = wide(answer[tables.RCODE])
    question = name_length + 4
    total = HEADER + question + answer[tables.BODY_LENGTH]
    total += options_length(asked, rcode, table.server_id.size)
    verdict = SEND
    if answer[tables.WHOLE] != tables.IS_WHOLE:
        if age != NONE or answer[tables.WHOLE] == tables.IS_LEFT:
            return LEFT
        verdict = CUT
    if age == NONE:
        kind = np.uint64(answer[tables.RATE_NAME])
        if kind == 0:
            kind = name_hash
        kind = kind * np.uint64(31) + np.uint64(rcode)
        judged = _judge(keys, sender, _subnet(packet, asked), kind, now)
        if judged == DROP:
            return _count(counters, DROPPED)
        verdict = max(verdict, judged)
    counters[RCODES + rcode] += 1
    if total > limit:
        verdict = CUT
    return write_answer(
        packet, asked, sender, table, keys.secret, row, scope, age, verdict, now, out
    )


@compiled
def _find_answer(
    packet: Bytes, asked: Asked, sender: Sender, table: Table, entry: int, exact: bool
) -> tuple[int, int]:
    """Return a row of the table's answers, and the scope of an answer by place."""
    if asked.version:
        return tables.BADVERS_ROW, 0
    if asked.type == NXNAME:  # of proofs only (RFC 9824, 3.5)
        return tables.FORMERR_ROW, 0
    if entry < 0 or asked.rdclass != IN or asked.type == AXFR or asked.type == IXFR:
        return tables.REFUSED_ROW, 0
    choice = table.choices[find_choice(table, entry, exact, asked.type)]
    row = wide(choice[tables.FOR_DNSSEC + asked.dnssec])
    if not choice[tables.BY_PLACE]:
        return row, 0
    known = asked.subnet and packet[asked.subnet + 2]
    address = sender.top
    is_ipv4 = sender.address.size == 4
    if known:
        address = top64(packet, asked.subnet + 4, asked.subnet_length - 4)
        is_ipv4 = u16(packet, asked.subnet) == reading.V4
    blocks = table.ipv4 if is_ipv4 else table.ipv6
    block = find_block(blocks, address)
    scope, slots, slot = wide(blocks.scopes[block]), wide(table.num_slots[0]), 0
    if slots > 1:  # the next network may be in another slot
        scope = LONGEST4 if is_ipv4 else LONGEST6
        network = _bits(address, is_ipv4)
        slot = wide((network * np.uint64(MULTIPLIER)) >> np.uint64(32)) % slots
    order = wide(table.orders[wide(blocks.clients[block]) * slots + slot])
    return row + order, scope if known else 0


@compiled
def _limit(asked: Asked, query_bytes: int, known: bool) -> int:
    """Return bytes that the answer may have."""
    payload = asked.payload if asked.edns else PLAIN_PAYLOAD
    limit = min(max(payload, PLAIN_PAYLOAD), UDP_PAYLOAD)
    if known:
        return limit
    return min(limit, (query_bytes + IP_UDP_HEADER) * NO_COOKIE_FACTOR - IP_UDP_HEADER)


@compiled
def _sender(slot: Bytes) -> Sender:
    """Return whom a query counts for: IPv4 clients of a dual-stack socket count as IPv4."""
    if wide(slot[0]) == INET:
        address = slot[4:8]
        return Sender(address, top64(address, 0, 4))
    address = slot[8:24]
    mapped = address[10] == 0xFF and address[11] == 0xFF
    for i in range(10):
        mapped = mapped and address[i] == 0
    if mapped:
        address = slot[20:24]
    return Sender(address, top64(address, 0, address.size))


@compiled
def _bits(address: np.uint64, is_ipv4: bool) -> np.uint64:
    """Return the /24 or /56 around an address, and which of the two it is: `network_bits` of
    `skerry_regions.geo.shares`."""
    if is_ipv4:
        return address >> np.uint64(40)
    return address >> np.uint64(8) | np.uint64(FAMILY_BIT)


@compiled
def _subnet(packet: Bytes, asked: Asked) -> np.uint64:
    """Return the network of the client subnet, and the one bit that distinguishes it from none:
    0."""
    if asked.subnet == 0 or packet[asked.subnet + 2] == 0:
        return np.uint64(0)
    address = top64(packet, asked.subnet + 4, asked.subnet_length - 4)
    return _bits(address, u16(packet, asked.subnet) == reading.V4) | np.uint64(SOME_SUBNET)


@compiled
def _judge(keys: Keys, sender: Sender, subnet: np.uint64, kind: np.uint64, now: float) -> int:
    is_ipv4 = sender.address.size == 4
    network = _bits(sender.top, is_ipv4)
    return judge_answer(keys.limits, network, sender.top, is_ipv4, subnet, kind, now)


@compiled
def _is_own(slot: Bytes, own: Bytes) -> bool:
    """Return whether it claims to be this socket's own: it would be answered for ever."""
    first, size = (2, 6) if wide(slot[0]) == INET else (2, 22)
    for i in range(first, first + size):
        if slot[i] != own[i] and not (size == 22 and 4 <= i < 8):  # flow labels say nothing
            return False
    return True


@compiled
def _count(counters: Int64s, row: int) -> int:
    counters[row] += 1
    return NO_ANSWER
