"""Writing the answer that was found for a query: its records, and the OPT record."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skerry_dns.fast import asked as reading
from skerry_dns.fast import table as tables
from skerry_dns.fast.asked import HEADER, OPT_HEADER, Asked
from skerry_dns.fast.compiled import Bytes, UInt64s, compiled, copy, put_u16, u16, wide
from skerry_dns.fast.cookies import CLIENT, WHOLE, YOUNG, put_cookie
from skerry_dns.fast.limiting import CUT
from skerry_dns.fast.table import Table
from skerry_dns.server.responder import UDP_PAYLOAD

REFUSED = 5
EXTENDED_ERROR, NOT_AUTHORITATIVE = 15, 20
QR, AA, TC, RD, CD = 0x8000, 0x0400, 0x0200, 0x0100, 0x0010


class Sender(NamedTuple):
    """The sender of a query."""

    address: Bytes  # 4 or 16 bytes
    top: np.uint64  # its first 64 bits


@compiled
def write_answer(
    packet: Bytes,
    asked: Asked,
    sender: Sender,
    table: Table,
    secret: UInt64s,
    row: int,
    scope: int,
    age: int,
    verdict: int,
    now: float,
    out: Bytes,
) -> int:
    """Return the answer in a row of the table; its length. `secret` is that of cookies."""
    answer = table.answers[row]
    rcode = wide(answer[tables.RCODE])
    flags = QR | u16(packet, 2) & (RD | CD) | rcode & 0xF
    flags |= AA if answer[tables.AUTHORITATIVE] else 0
    out[0], out[1] = packet[0], packet[1]
    put_u16(out, 4, 1)
    at = copy(out, HEADER, packet, HEADER, asked.name_end - HEADER + 4)
    additional = asked.edns
    if verdict == CUT:
        flags |= TC
        put_u16(out, 6, 0)
        put_u16(out, 8, 0)
    else:
        put_u16(out, 6, wide(answer[tables.ANSWERS]))
        put_u16(out, 8, wide(answer[tables.AUTHORITY]))
        additional += wide(answer[tables.ADDITIONAL])
        at = _put_body(out, at, table, row, asked.name_end - HEADER)
    put_u16(out, 2, flags)
    put_u16(out, 10, additional)
    if asked.edns:
        scope = scope if answer[tables.SCOPED] else 0
        at = _put_opt(out, at, packet, asked, sender, table, secret, rcode, scope, age, now)
    return at


@compiled
def _put_body(out: Bytes, at: int, table: Table, row: int, name_length: int) -> int:
    """Return the records, with pointers into the question moved to where this question has them."""
    answer = table.answers[row]
    end = copy(
        out,
        at,
        table.bodies,
        wide(answer[tables.BODY]),
        wide(answer[tables.BODY_LENGTH]),
    )
    longer = name_length - wide(answer[tables.TEMPLATE_NAME])
    first = wide(answer[tables.POINTERS])
    for i in range(first, first + answer[tables.POINTER_COUNT]):
        pointer = at + wide(table.pointers[i])
        put_u16(out, pointer, u16(out, pointer) + longer)
    return end


@compiled
def _put_opt(
    out: Bytes,
    at: int,
    packet: Bytes,
    asked: Asked,
    sender: Sender,
    table: Table,
    secret: UInt64s,
    rcode: int,
    scope: int,
    age: int,
    now: float,
) -> int:
    out[at] = 0
    put_u16(out, at + 1, reading.OPT)
    put_u16(out, at + 3, UDP_PAYLOAD)
    out[at + 5], out[at + 6] = rcode >> 4, 0
    put_u16(out, at + 7, 0x8000 if asked.dnssec else 0)  # DO is copied (RFC 3225)
    options = at + OPT_HEADER
    end = options
    if asked.subnet:
        put_u16(out, end, reading.SUBNET)
        put_u16(out, end + 2, asked.subnet_length)
        copy(out, end + 4, packet, asked.subnet, asked.subnet_length)
        out[end + 7] = scope
        end += 4 + asked.subnet_length
    if asked.cookie:
        put_u16(out, end, reading.COOKIE)
        put_u16(out, end + 2, WHOLE)
        if age == YOUNG:
            end = copy(out, end + 4, packet, asked.cookie, WHOLE)
        else:
            client = packet[asked.cookie : asked.cookie + CLIENT]
            seconds = wide(now)
            end = put_cookie(out, end + 4, secret, client, sender.address, seconds)
    if asked.nsid and table.server_id.size:
        put_u16(out, end, reading.NSID)
        put_u16(out, end + 2, table.server_id.size)
        end = copy(out, end + 4, table.server_id, 0, table.server_id.size)
    if rcode == REFUSED:
        put_u16(out, end, EXTENDED_ERROR)
        put_u16(out, end + 2, 2)
        put_u16(out, end + 4, NOT_AUTHORITATIVE)
        end += 6
    put_u16(out, at + 9, end - options)
    return end


@compiled
def options_length(asked: Asked, rcode: int, server_id: int) -> int:
    """Return bytes of the OPT record that `_put_opt` writes."""
    if not asked.edns:
        return 0
    length = OPT_HEADER
    length += 4 + asked.subnet_length if asked.subnet else 0
    length += 4 + WHOLE if asked.cookie else 0
    length += 4 + server_id if asked.nsid and server_id else 0
    return length + (6 if rcode == REFUSED else 0)


@compiled
def write_bare(packet: Bytes, rcode: int, out: Bytes) -> int:
    """Return a header with nothing but a code; its length."""
    out[0], out[1] = packet[0], packet[1]
    put_u16(out, 2, QR | u16(packet, 2) & 0x7800 | u16(packet, 2) & RD | rcode)
    for i in range(4, HEADER):
        out[i] = 0
    return HEADER
