"""Calling `Responder` for everything that it answers whatever the state of regions is.

Each answer is rendered by the reference, once per name and type, and for askers with and without
DNSSEC. Names that do not exist have one answer per closest encloser.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import cast

import dns.name
import dns.rcode
import dns.rdatatype
from dns.rdtypes.ANY.CNAME import CNAME

from skerry_dns.fast.answers import Answers
from skerry_dns.fast.asked import FORMERR
from skerry_dns.fast.responding import BADVERS
from skerry_dns.fast.table import IS_LEFT, IS_MADE, IS_WHOLE
from skerry_dns.fast.templates import NotATemplate, Template, below, of_name, unused
from skerry_dns.fast.writing import REFUSED
from skerry_dns.server.responder import Responder
from skerry_dns.zone.zone import MAX_ALIASES, Kind, Zone
from skerry_regions.geo.networks import Address

OTHER_TYPE = 65_280  # of private use (RFC 6895): stands for all that a name has no records of
ANY = int(dns.rdatatype.ANY)
ALWAYS_ASKED = frozenset(map(int, (dns.rdatatype.DS, dns.rdatatype.RRSIG, dns.rdatatype.NSEC)))
ROOT_RATE = 1  # refusals count together; further numbers are for what else does
MAX_TURNS = 4  # so that not all clients try the same address first
UNKNOWN = Template(0, (0, 0, 0), b"")  # an answer of which nothing is known

Name = dns.name.Name
Variant = tuple[bool, bool]  # DO, CO
VARIANTS: tuple[Variant, ...] = ((False, False), (True, False), (True, True))
Choice = tuple[int, ...]
Turns = tuple[Template, ...]  # the same records in different orders


@dataclass(slots=True)
class ByPlace:
    """A choice whose rows depend on the order of regions."""

    choice: int  # its row
    name: Name
    rdtype: int


class ZoneReading:
    """Of all names of all zones."""

    def __init__(self, responder: Responder, somebody: Address) -> None:
        self._responder = responder
        self._somebody = somebody  # static answers are the same for everybody
        self._rates = itertools.count(ROOT_RATE + 1)
        self._zone_rates = {zone.origin: next(self._rates) for zone in responder.zones}
        self.names: list[bytes] = []
        self.entries: list[tuple[int, ...]] = []  # without where the name is
        self.choices: list[Choice] = []
        self.by_place: list[ByPlace] = []
        self.answers = Answers()
        # The rows that `tables` names: of nothing but a code.
        for rcode, rate in ((REFUSED, ROOT_RATE), (FORMERR, 0), (BADVERS, 0)):
            self.answers.append((0, 0, 0, 0, 0, rcode, 0, 0, 0, 0, 0, rate, 1, 1, 0))

    def read_all(self) -> Generator[None]:
        for zone in self._responder.zones:
            for name in zone.names:
                if self._responder.zone_of(name) is zone:  # and not one that begins below
                    self._read(zone, name)
                    yield

    def _read(self, zone: Zone, name: Name) -> None:
        exact = len(self.choices)
        for rdtype in (*sorted(_asked_types(zone, name) | ALWAYS_ASKED), ANY, OTHER_TYPE):
            self.choices.append(self._exact(zone, name, rdtype))
        beneath = len(self.choices)
        rate = next(self._rates)
        under = unused(name, zone.has_name)
        types = set[int]() if under is None else _asked_types(zone, under)
        for rdtype in (*sorted(types | ALWAYS_ASKED if types else ()), ANY, OTHER_TYPE):
            self.choices.append(self._beneath(zone, name, under, rdtype, rate))
        self.names.append(name.to_wire() or b"")
        self.entries.append((exact, beneath - exact, beneath, len(self.choices) - beneath))

    def _exact(self, zone: Zone, name: Name, rdtype: int) -> Choice:
        if zone.find(name, rdtype).kind is Kind.GEO:
            self.by_place.append(ByPlace(len(self.choices), name, rdtype))
            return rdtype, 1, 0, 0, 0
        rows = []
        for variant in variants_of(self._responder, name):
            turns = turns_of(self._responder, name, rdtype, self._somebody, variant)
            rows.append(self.answers.add(turns, rate_name=self._rate(zone, turns[0], 0)))
        return rdtype, 0, *rows

    def _beneath(
        self, zone: Zone, name: Name, under: Name | None, rdtype: int, rate: int
    ) -> Choice:
        """Return the choice for names below one, that do not exist."""
        rows = []
        for variant in variants_of(self._responder, name):
            template, whole = self._under(zone, under, rdtype, variant)
            kind = self._rate(zone, template, rate)
            rows.append(self.answers.add([template], rate_name=kind, whole=whole))
        return rdtype, 0, *rows

    def _under(
        self, zone: Zone, under: Name | None, rdtype: int, variant: Variant
    ) -> tuple[Template, int]:
        """Return an answer, and whether it is whole (`tables.WHOLE`): signatures that cover a name
        which the client made up are made when it is requested."""
        if under is None:
            return UNKNOWN, IS_LEFT
        render = partial(_render, self._responder, rdtype, self._somebody, variant)
        is_cut = zone.find(under, rdtype).kind is Kind.DELEGATION and rdtype != ANY
        try:
            if is_cut or not variant[0]:
                return below(under, render), IS_WHOLE
            return of_name(under, render), IS_MADE
        except NotATemplate:
            return UNKNOWN, IS_LEFT

    def _rate(self, zone: Zone, template: Template, otherwise: int) -> int:
        nxdomain = template.flags & 0xF == dns.rcode.NXDOMAIN
        return self._zone_rates[zone.origin] if nxdomain else otherwise


def turns_of(
    responder: Responder,
    name: Name,
    rdtype: int,
    address: Address,
    variant: Variant,
    slot: int = 0,
) -> Turns:
    """Render the answer to somebody at an address, of a slot, in each order of its records."""
    turns: list[Template] = []
    for turn in range(MAX_TURNS):
        render = partial(_render, responder, rdtype, address, variant, slot=slot, turn=turn)
        template = of_name(name, render)
        if template in turns:
            break
        turns.append(template)
        if max(template.counts) < 2:
            break
    return tuple(turns)


def _render(
    responder: Responder,
    rdtype: int,
    address: Address,
    variant: Variant,
    name: Name,
    *,
    slot: int = 0,
    turn: int = 0,
) -> bytes:
    dnssec_ok, compact_ok = variant
    return responder.render(
        name, rdtype, address, dnssec_ok=dnssec_ok, compact_ok=compact_ok, slot=slot, turn=turn
    )


def variants_of(responder: Responder, name: Name) -> tuple[Variant, ...]:
    """Return who calls; where nothing is signed, DO makes no difference."""
    return VARIANTS if responder.is_signed(name) else VARIANTS[:1] * len(VARIANTS)


def _asked_types(zone: Zone, name: Name) -> set[int]:
    """Return types for which the answer may be another than for all others: those that the name or
    the end of its aliases has."""
    types: set[int] = set()
    for _ in range(MAX_ALIASES + 1):
        if not name.is_subdomain(zone.origin):
            break
        types |= set(map(int, zone.types(name)))
        alias = zone.find(name, dns.rdatatype.CNAME).answer
        if not alias:
            break
        name = cast(CNAME, alias[-1][0]).target
    return types
