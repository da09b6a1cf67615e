"""Zones for secondaries: whole transfers (AXFR, RFC 5936) for holders of a key (TSIG, RFC 8945).

A secondary that is no server of ours knows no places: names that are answered by place go out with
the addresses of all regions. Whoever signs with the key gets signed answers to other queries too,
as secondaries request the SOA record before they transfer.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, cast

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import dns.tsig
from dns.rdtypes.ANY.SOA import SOA
from dns.rdtypes.ANY.TSIG import TSIG

from skerry_dns.wire import MAX_QUERY, RECORD_TAIL
from skerry_dns.zone.zone import Zone

TSIG_MARK = b"\x00\xfa\x00\xff"  # type TSIG, class ANY
MESSAGE_BYTES = 16_384  # about, of one message of a transfer
RECORD_BYTES = 10  # of a record beside its name and data
MAX_MESSAGE = 65_535
ERRORS: dict[type[Exception], int] = {  # what a TSIG record says is wrong with another one
    dns.tsig.BadKey: dns.rcode.BADKEY,
    dns.tsig.BadSignature: dns.rcode.BADSIG,
    dns.tsig.BadTime: dns.rcode.BADTIME,
    dns.tsig.BadAlgorithm: dns.rcode.BADKEY,
}

Frames = Iterator[bytes]
Respond = Callable[[bytes], bytes | None]
Records = Callable[[], Iterator[dns.rrset.RRset]]  # of a zone, from SOA to SOA


class Transfers:
    """Answers what is signed with `key`."""

    def __init__(self, zones: Mapping[dns.name.Name, Records], key: dns.tsig.Key) -> None:
        """`zones` give the records of those that may be transferred, by origin."""
        self._zones = dict(zones)
        self._key = key

    def respond(self, query: bytes, answer: Respond, *, stream: bool) -> Frames | None:
        """Return messages that answer a signed query, or None when it is not signed and so not for
        us.

        `answer` is called for all that is no transfer. Checks the time of the signature.
        """
        is_answer = len(query) > 2 and query[2] & dns.flags.QR >> 8
        if TSIG_MARK not in query or len(query) > MAX_QUERY or is_answer:
            return None
        try:
            asked = dns.message.from_wire(query, keyring=self._key)
        except tuple(ERRORS) as error:
            return iter([self._not_authentic(query, ERRORS[type(error)])])
        except (dns.exception.DNSException, ValueError):
            return None  # for whoever answers malformed queries
        if not asked.had_tsig or len(asked.question) != 1:
            return None
        kinds = (dns.rdatatype.AXFR, dns.rdatatype.IXFR)
        if asked.opcode() != dns.opcode.QUERY or asked.question[0].rdtype not in kinds:
            plain = answer(_without_signature(asked))
            return None if plain is None else iter([self._signed(asked, plain)])
        records = self._zones.get(asked.question[0].name)
        if records is None or not stream or asked.question[0].rdclass != dns.rdataclass.IN:
            return iter([self._refusal(asked)])
        rrsets = records()
        soa = next(rrsets)
        if any(_is_current(each, soa) for each in asked.authority):
            return self._transfer(asked, iter([soa]))  # nothing has changed (RFC 1995, 2)
        return self._transfer(asked, chain([soa], rrsets))

    def _transfer(self, asked: dns.message.Message, rrsets: Iterator[dns.rrset.RRset]) -> Frames:
        """Send SOA, everything else, SOA: in as many messages as it takes, each signed."""
        context = None
        for records in _batches(rrsets):
            message = self._reply(asked)
            message.answer.extend(records)
            yield message.to_wire(max_size=MAX_MESSAGE, multi=True, tsig_ctx=context)
            context = message.tsig_ctx

    def _signed(self, asked: dns.message.Message, plain: bytes) -> bytes:
        message = dns.message.from_wire(plain)
        message.use_tsig(self._key)
        message.request_mac = asked.mac or b""
        return message.to_wire(max_size=MAX_MESSAGE)

    def _refusal(self, asked: dns.message.Message) -> bytes:
        message = self._reply(asked)
        message.set_rcode(dns.rcode.REFUSED)
        return message.to_wire()

    def _not_authentic(self, query: bytes, error: int) -> bytes:
        """Return NOTAUTH, with a TSIG record that says why (RFC 8945, 5.2): signed when all that is
        wrong is the time, and then with ours in it."""
        header = query[:2] + bytes([0x80 | query[2] & 0x79, dns.rcode.NOTAUTH]) + bytes(8)
        try:
            asked = dns.message.from_wire(query, keyring=False)
        except (dns.exception.DNSException, ValueError):
            return header
        if asked.tsig is None:
            return header
        given = cast(TSIG, asked.tsig[0])
        is_late = error == dns.rcode.BADTIME
        told = given.replace(
            mac=b"", error=error, other=int(time.time()).to_bytes(6, "big") if is_late else b""
        )
        if is_late:
            sign = cast(Any, dns.tsig).sign
            told = sign(header, self._key, told, given.time_signed, given.mac)[0]
        data = told.to_wire() or b""
        owner = asked.tsig.name.to_wire() or b""
        tail = RECORD_TAIL.pack(dns.rdatatype.TSIG, dns.rdataclass.ANY, 0, len(data))
        return header[:10] + b"\0\1" + owner + tail + data

    def _reply(self, asked: dns.message.Message) -> dns.message.Message:
        message = dns.message.QueryMessage(id=asked.id)
        message.flags = dns.flags.QR | dns.flags.AA
        message.question = asked.question
        message.use_tsig(self._key)
        message.request_mac = asked.mac or b""
        return message


def notification(zone: Zone, key: dns.tsig.Key) -> dns.message.Message:
    """Return the NOTIFY for a secondary that there is a new serial (RFC 1996)."""
    message = dns.message.make_query(zone.origin, dns.rdatatype.SOA)
    message.flags = dns.flags.Flag.AA
    message.set_opcode(dns.opcode.NOTIFY)
    message.use_tsig(key)
    return message


def _batches(rrsets: Iterator[dns.rrset.RRset]) -> Iterator[list[dns.rrset.RRset]]:
    """Yield single records, as many together as fit into one message."""
    batch: list[dns.rrset.RRset] = []
    size = 0
    for rrset in rrsets:
        for rdata in rrset:
            length = len(rrset.name.to_wire() or b"") + RECORD_BYTES
            length += len(rdata.to_wire() or b"")
            if batch and size + length > MESSAGE_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(dns.rrset.from_rdata(rrset.name, rrset.ttl, rdata))
            size += length
    yield batch


def _is_current(theirs: dns.rrset.RRset, ours: dns.rrset.RRset) -> bool:
    """Return whether the SOA record that a query for changes carries is ours or a newer one (RFC
    1982)."""
    known, served = theirs[0], ours[0]
    if not isinstance(known, SOA) or not isinstance(served, SOA):
        return False
    return (known.serial - served.serial) % (1 << 32) < 1 << 31


def _without_signature(asked: dns.message.Message) -> bytes:
    """Return the query as it is read elsewhere, where no compressed name is taken."""
    bare = copy.copy(asked)
    bare.tsig = None
    return bare.to_wire(max_size=MAX_MESSAGE)
