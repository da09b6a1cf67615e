"""What zones and places have for a question, before signatures, EDNS and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from skerry_dns import wire
from skerry_dns.server import messages
from skerry_dns.zone import place_records
from skerry_dns.zone.zone import Found, Kind, Zone
from skerry_regions.geo.networks import MAX_SCOPE, Address
from skerry_regions.geo.places import Places

HINFO_TTL = 3600


@dataclass(slots=True)
class LookupReply:
    """An answer without its OPT record, and what it was made of."""

    message: dns.message.Message
    scope: int = 0  # of an answer by place, in bits
    found: Found | None = None
    zone: Zone | None = None


class ZoneLookup:
    """Answers of some zones."""

    def __init__(self, zones: Sequence[Zone], places: Places) -> None:
        self.zones = tuple(zones)
        self.places = places
        self._by_origin = {zone.origin.canonicalize(): zone for zone in zones}

    def zone_of(self, name: dns.name.Name) -> Zone | None:
        """Return the zone with the longest origin above `name`."""
        at = name.canonicalize()
        while True:
            if zone := self._by_origin.get(at):
                return zone
            if len(at.labels) <= 1:
                return None
            at = at.parent()

    def answer(self, asked: wire.Query, address: Address, slot: int | None = None) -> LookupReply:
        """Answer somebody at `address`, of the client's own slot unless one is given."""
        message = messages.reply_to(asked)
        if asked.edns is not None and asked.edns.version != 0:
            message.set_rcode(dns.rcode.BADVERS)
            return LookupReply(message)
        if asked.type == dns.rdatatype.NXNAME:  # of proofs only (RFC 9824, 3.5)
            message.set_rcode(dns.rcode.FORMERR)
            return LookupReply(message)
        zone = self.zone_of(asked.name)
        if zone is None or asked.rdclass != dns.rdataclass.IN:
            message.set_rcode(dns.rcode.REFUSED)
            return LookupReply(message)
        if asked.type == dns.rdatatype.ANY:
            message.flags |= dns.flags.AA
            message.answer.append(
                dns.rrset.from_text(asked.name, HINFO_TTL, "IN", "HINFO", '"RFC8482" ""')
            )
            return LookupReply(message, found=Found(Kind.ANSWER, asked.name), zone=zone)
        if asked.type in (dns.rdatatype.AXFR, dns.rdatatype.IXFR):
            message.set_rcode(dns.rcode.REFUSED)
            return LookupReply(message)
        return self._look_up(message, zone, asked, address, slot)

    def _look_up(
        self,
        message: dns.message.Message,
        zone: Zone,
        asked: wire.Query,
        address: Address,
        slot: int | None,
    ) -> LookupReply:
        """Fill in the sections. The scope is 0 for all that is static."""
        found = zone.find(asked.name, asked.type)
        if found.kind is not Kind.DELEGATION:
            message.flags |= dns.flags.AA
        if found.kind is Kind.NXDOMAIN:
            message.set_rcode(dns.rcode.NXDOMAIN)
        message.answer.extend(found.answer)
        message.authority.extend(found.authority)
        message.additional.extend(found.additional)
        reply = LookupReply(message, found=found, zone=zone)
        if found.kind is Kind.GEO:
            self._by_place(reply, zone, asked, address, slot)
        return reply

    def _by_place(
        self, reply: LookupReply, zone: Zone, asked: wire.Query, address: Address, slot: int | None
    ) -> None:
        """Add the records of a geo name and their scope.

        The client's subnet counts when the query names one, the sender's address otherwise, and
        then the scope is 0. So it is of negative answers: resolvers keep those for everybody
        (RFC 7871, 7.4).
        """
        subnet = asked.edns.subnet if asked.edns is not None else None
        known = subnet is not None and subnet.network.prefixlen > 0
        where = subnet.network.network_address if subnet is not None and known else address
        places = self.places
        client, scope = places.locate(where)
        if places.num_slots > 1:
            scope = MAX_SCOPE[where.version]  # the next network may be in another slot
        slot = places.slot(where) if slot is None else slot
        rrset = place_records.answer(
            places, asked.name, asked.type, client, slot=slot, ttl=zone.geo_ttl
        )
        if rrset is None:
            reply.message.authority.append(zone.negative_soa)
            reply.found = Found(Kind.NODATA, asked.name)
            return
        reply.message.answer.append(rrset)
        reply.scope = scope if known else 0
