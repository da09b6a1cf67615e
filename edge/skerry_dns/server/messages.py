"""DNS messages as `Responder` puts them together."""

from __future__ import annotations

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from skerry_dns import wire

MAX_BYTES = 65_535


def reply_to(asked: wire.Query) -> dns.message.Message:
    """Return a reply with nothing in it but the question."""
    message = dns.message.QueryMessage(id=asked.id)
    message.flags = dns.flags.Flag.QR
    if asked.recursion_desired:
        message.flags |= dns.flags.RD
    if asked.checking_disabled:
        message.flags |= dns.flags.CD
    message.question.append(
        dns.rrset.RRset(
            asked.name,
            dns.rdataclass.RdataClass.make(asked.rdclass),
            dns.rdatatype.RdataType.make(asked.type),
        )
    )
    return message


def bare(refused: wire.Refused) -> bytes:
    """Return a header, which says why there is no more."""
    flags = dns.flags.QR | refused.opcode << 11 | refused.rcode
    flags |= dns.flags.RD if refused.recursion_desired else 0
    return wire.HEADER.pack(refused.id, flags, 0, 0, 0, 0)


def cut(message: dns.message.Message) -> dns.message.Message:
    """Return the same answer with nothing in it but TC=1: come back over TCP."""
    message.answer.clear()
    message.authority.clear()
    message.additional.clear()
    message.flags |= dns.flags.TC
    return message


def turn(message: dns.message.Message, turns: int) -> None:
    """Put the records of each set in their own order, turned: otherwise it is any order."""
    for section in message.sections[1:]:
        section[:] = [record for rrset in section for record in _turned(rrset, turns)]


def _turned(rrset: dns.rrset.RRset, turns: int) -> list[dns.rrset.RRset]:
    """Return its records one by one, as sets of several are shuffled when they are written."""
    first = turns % len(rrset)
    records = [*rrset[first:], *rrset[:first]]
    return [dns.rrset.from_rdata(rrset.name, rrset.ttl, record) for record in records]


def to_wire(message: dns.message.Message) -> bytes:
    """Return bytes, however long: by itself `to_wire` stops at the UDP size that OPT states."""
    return message.to_wire(max_size=MAX_BYTES)


def option(code: int, data: bytes) -> dns.edns.GenericOption:
    """Return an option of an OPT record."""
    return dns.edns.GenericOption(dns.edns.OptionType.make(code), data)


def dnssec_flag(asked: wire.Query) -> int:
    """Return the query's DO bit, which is copied to the answer (RFC 3225)."""
    return int(dns.flags.DO) if asked.edns is not None and asked.edns.dnssec_ok else 0


def rate_name(message: dns.message.Message) -> dns.name.Name:
    """Return what a flood has in common: the name requested, or the zone whose names do not
    exist."""
    if message.rcode() == dns.rcode.NXDOMAIN and message.authority:
        return message.authority[0].name
    if message.rcode() == dns.rcode.REFUSED:
        return dns.name.root
    return message.question[0].name.canonicalize()
