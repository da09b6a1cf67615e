"""A `Table` of everything that `Responder` answers, made by asking it.

Nothing about zones, places or signatures is decided here: each answer is rendered by the reference,
once per name, type and order of regions, and for askers with and without DNSSEC. The work comes in
pieces of some milliseconds, so that an event loop can do it beside others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import cast

import dns.name
import dns.rcode
import dns.rdatatype
import numpy as np
from dns.rdtypes.ANY.CNAME import CNAME

from skerry_dns.fast import table as tables
from skerry_dns.fast.answers import Answers, Arrays
from skerry_dns.fast.asked import FORMERR
from skerry_dns.fast.blocks import ClientKinds, blocks_of
from skerry_dns.fast.compiled import Bytes, Int32s
from skerry_dns.fast.responding import BADVERS
from skerry_dns.fast.table import CHOICE_COLUMNS, SEED, Blocks, Table, hashed, slot_of
from skerry_dns.fast.templates import NotATemplate, Template, below, of_name, unused
from skerry_dns.fast.writing import REFUSED
from skerry_dns.server.responder import Responder
from skerry_dns.zone.zone import MAX_ALIASES, Kind, Zone
from skerry_regions.geo.networks import Address
from skerry_regions.geo.places import State

OTHER_TYPE = 65_280  # of private use (RFC 6895): stands for all that a name has no records of
ANY = int(dns.rdatatype.ANY)
ALWAYS_ASKED = frozenset(map(int, (dns.rdatatype.DS, dns.rdatatype.RRSIG, dns.rdatatype.NSEC)))
ROOT_RATE = 1  # refusals count together; further numbers are for what else does
SLOTS_PER_NAME = 4
MAX_TURNS = 4  # so that not all clients try the same address first
UNKNOWN = Template(0, (0, 0, 0), b"")  # an answer of which nothing is known

Name = dns.name.Name
Variant = tuple[bool, bool]  # DO, CO
VARIANTS: tuple[Variant, ...] = ((False, False), (True, False), (True, True))
Order = tuple[str, ...]
Choice = tuple[int, ...]
Turns = tuple[Template, ...]  # the same records in different orders


@dataclass(slots=True)
class _ByPlace:
    """A choice whose rows depend on the order of regions."""

    choice: int  # its row
    name: Name
    rdtype: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What does not change with the state of regions."""

    slots: Int32s
    names: Bytes
    entries: Int32s
    choices: Int32s
    answers: Arrays
    by_place: tuple[_ByPlace, ...]
    source: Responder  # that was asked, and still answers the same but for the state of regions
    kinds: ClientKinds
    ipv4: Blocks
    ipv6: Blocks
    rendered: dict[object, Turns]  # answers by place, by name, type, order and variant


def read_contents(
    responder: Responder, before: Contents | None = None
) -> Generator[None, None, Contents]:
    """Ask for everything that is served now; where addresses are, only if that is otherwise than in
    what was read `before`. Raises `TooManyBlocks`."""
    source = responder.snapshot()
    places = source.places
    if before is not None and places.tells_apart_like(before.source.places):
        kinds, ipv4, ipv6 = before.kinds, before.ipv4, before.ipv6
    else:
        kinds = ClientKinds(places)
        ipv4 = yield from blocks_of(places, 4, kinds)
        ipv6 = yield from blocks_of(places, 6, kinds)
    reading = _Reading(source, kinds.examples[0])
    yield from reading.read_all()
    names, entries, slots = _index(reading.names, reading.entries)
    return Contents(
        slots,
        names,
        entries,
        np.array(reading.choices, np.int32).reshape(-1, CHOICE_COLUMNS),
        reading.answers.arrays(),
        tuple(reading.by_place),
        source,
        kinds,
        ipv4,
        ipv6,
        {},
    )


def orders_of(contents: Contents, state: State) -> tuple[Order, ...]:
    """Of each kind of clients, as regions are now: what `contents` are answered by from now on."""
    places = contents.source.places
    places.state = state
    return tuple(tuple(places.order(client)) for client in contents.kinds.clients)


def make_table(
    contents: Contents,
    orders: tuple[Order, ...],
    generation: int,
    is_current: Callable[[], bool] = lambda: True,
) -> Generator[None, None, Table | None]:
    """Contents as the orders of regions have them be. None when `orders` are no more those that
    `contents` are answered by, which `is_current` says; what is rendered by then is kept."""
    responder = contents.source
    numbers = {order: number for number, order in enumerate(dict.fromkeys(orders))}
    examples = [contents.kinds.examples[orders.index(order)] for order in numbers]
    choices = contents.choices.copy()
    answers = Answers(after=contents.answers)
    for each in contents.by_place:
        if not is_current():
            return None
        for column, variant in enumerate(_variants(responder, each.name)):
            heads = [
                answers.put(turns, is_scoped=turns[0].counts[0] > 0)
                for order, example in zip(numbers, examples, strict=True)
                for turns in (_by_place(contents, each, order, example, variant),)
            ]
            first, *_ = [answers.append(head) for head in heads]
            choices[each.choice, tables.FOR_DNSSEC + column] = first
        yield
    rows, bodies, pointers = answers.arrays()
    return Table(
        np.array([generation]),
        contents.slots,
        contents.names,
        contents.entries,
        choices,
        rows,
        bodies,
        pointers,
        np.array([numbers[order] for order in orders], np.int32),
        contents.ipv4,
        contents.ipv6,
        np.frombuffer(responder.server_id, np.uint8).copy(),
    )


def _by_place(
    contents: Contents,
    each: _ByPlace,
    order: Order,
    example: Address,
    variant: Variant,
) -> Turns:
    key = each.name, each.rdtype, order, variant
    if (known := contents.rendered.get(key)) is None:
        known = _turns(contents.source, each.name, each.rdtype, example, variant)
        contents.rendered[key] = known
    return known


class _Reading:
    """Of all names of all zones."""

    def __init__(self, responder: Responder, somebody: Address) -> None:
        self._responder = responder
        self._somebody = somebody  # static answers are the same for everybody
        self._rates = itertools.count(ROOT_RATE + 1)
        self._zone_rates = {zone.origin: next(self._rates) for zone in responder.zones}
        self.names: list[bytes] = []
        self.entries: list[tuple[int, ...]] = []  # without where the name is
        self.choices: list[Choice] = []
        self.by_place: list[_ByPlace] = []
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
            self.by_place.append(_ByPlace(len(self.choices), name, rdtype))
            return rdtype, 1, 0, 0, 0
        rows = []
        for variant in _variants(self._responder, name):
            turns = _turns(self._responder, name, rdtype, self._somebody, variant)
            rows.append(self.answers.add(turns, rate_name=self._rate(zone, turns[0], 0)))
        return rdtype, 0, *rows

    def _beneath(
        self, zone: Zone, name: Name, under: Name | None, rdtype: int, rate: int
    ) -> Choice:
        """For names below one, that do not exist."""
        rows = []
        for variant in _variants(self._responder, name):
            template, is_whole = self._under(zone, under, rdtype, variant)
            kind = self._rate(zone, template, rate)
            rows.append(self.answers.add([template], rate_name=kind, is_whole=is_whole))
        return rdtype, 0, *rows

    def _under(
        self, zone: Zone, under: Name | None, rdtype: int, variant: Variant
    ) -> tuple[Template, bool]:
        """An answer, and whether it is known whole: signatures that cover a name that the asker
        made up are made when it is asked for."""
        if under is None:
            return UNKNOWN, False
        render = partial(_render, self._responder, rdtype, self._somebody, variant)
        is_cut = zone.find(under, rdtype).kind is Kind.DELEGATION and rdtype != ANY
        try:
            if is_cut or not variant[0]:
                return below(under, render), True
            return of_name(under, render), False
        except NotATemplate:
            return UNKNOWN, False

    def _rate(self, zone: Zone, template: Template, otherwise: int) -> int:
        nxdomain = template.flags & 0xF == dns.rcode.NXDOMAIN
        return self._zone_rates[zone.origin] if nxdomain else otherwise


def _turns(
    responder: Responder, name: Name, rdtype: int, address: Address, variant: Variant
) -> Turns:
    turns: list[Template] = []
    for turn in range(MAX_TURNS):
        template = of_name(name, partial(_render, responder, rdtype, address, variant, turn=turn))
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
    turn: int = 0,
) -> bytes:
    dnssec_ok, compact_ok = variant
    return responder.render(
        name, rdtype, address, dnssec_ok=dnssec_ok, compact_ok=compact_ok, turn=turn
    )


def _variants(responder: Responder, name: Name) -> tuple[Variant, ...]:
    """Where nothing is signed, DO makes no difference."""
    return VARIANTS if responder.is_signed(name) else VARIANTS[:1] * len(VARIANTS)


def _asked_types(zone: Zone, name: Name) -> set[int]:
    """Types for which the answer may be another than for all others: those that the name or the
    end of its aliases has."""
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


def _index(
    names: Iterable[bytes], spans: Iterable[tuple[int, ...]]
) -> tuple[Bytes, Int32s, Int32s]:
    """Names side by side, entries, and slots."""
    wires = list(names)
    every = np.frombuffer(b"".join(wires), np.uint8).copy()
    starts = list(itertools.accumulate(map(len, wires), initial=0))
    entries = [
        (start, len(wire), *span)
        for start, wire, span in zip(starts[:-1], wires, spans, strict=True)
    ]
    slots = np.full(1 << max(4, (len(wires) * SLOTS_PER_NAME).bit_length()), -1, np.int32)
    for number, wire in enumerate(wires):
        slot = slot_of(_hash(wire), slots.size)
        while slots[slot] >= 0:
            slot = (slot + 1) & (slots.size - 1)
        slots[slot] = number
    return every, np.array(entries, np.int32), slots


def _hash(wire: bytes) -> np.uint64:
    """As `find_name` computes it: label by label from the root."""
    name = np.frombuffer(wire, np.uint8)
    starts = []
    at = 0
    while wire[at]:
        starts.append(at)
        at += 1 + wire[at]
    value = SEED
    for start in reversed(starts):
        value = hashed(value, name, start)
    return value
