"""A `Table` of everything that `Responder` answers, made by calling it.

Nothing about zones, places or signatures is decided here: `reading` has the reference render what
does not change with the state of regions, and answers by place are rendered once per order of
regions. The work comes in pieces of some milliseconds, so that an event loop can do it beside
others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from skerry_dns.fast import table as tables
from skerry_dns.fast.answers import Answers, Arrays
from skerry_dns.fast.blocks import ClientKinds, blocks_of
from skerry_dns.fast.compiled import Bytes, Int32s
from skerry_dns.fast.name_index import index_names
from skerry_dns.fast.reading import ByPlace, Turns, Variant, ZoneReading, turns_of, variants_of
from skerry_dns.fast.table import CHOICE_COLUMNS, Blocks, Table
from skerry_dns.server.responder import Responder
from skerry_regions.geo.networks import Address
from skerry_regions.geo.places import State

ORDERS_AT_ONCE = 100  # between yields: a few milliseconds

Order = tuple[str, ...]
Example = tuple[Address, int]  # somebody of a kind, and a slot


@dataclass(frozen=True, slots=True)
class Contents:
    """What does not change with the state of regions."""

    slots: Int32s
    names: Bytes
    entries: Int32s
    choices: Int32s
    answers: Arrays
    by_place: tuple[ByPlace, ...]
    source: Responder  # that was read, and still answers the same but for the state of regions
    kinds: ClientKinds
    ipv4: Blocks
    ipv6: Blocks
    rendered: dict[object, Turns]  # answers by place, by name, type, order and variant


def read_contents(
    responder: Responder, before: Contents | None = None
) -> Generator[None, None, Contents]:
    """Read everything that is served now; where addresses are, only if that is otherwise than in
    what was read `before`. Raises `TooManyBlocks`."""
    source = responder.snapshot()
    places = source.places
    if before is not None and places.tells_apart_like(before.source.places):
        kinds, ipv4, ipv6 = before.kinds, before.ipv4, before.ipv6
    else:
        kinds = ClientKinds(places)
        ipv4 = yield from blocks_of(places, 4, kinds)
        ipv6 = yield from blocks_of(places, 6, kinds)
    reading = ZoneReading(source, kinds.examples[0])
    yield from reading.read_all()
    names, entries, slots = index_names(reading.names, reading.entries)
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


def orders_of(contents: Contents, state: State) -> Generator[None, None, tuple[Order, ...]]:
    """Compute, of each kind of clients and each slot of it, as regions are now: what `contents` are
    answered by from now on."""
    places = contents.source.places
    places.state = state
    orders: list[Order] = []
    for client in contents.kinds.clients:
        orders += [tuple(places.order(client, slot)) for slot in range(places.num_slots)]
        if len(orders) % ORDERS_AT_ONCE < places.num_slots:
            yield
    return tuple(orders)


def make_table(
    contents: Contents,
    orders: tuple[Order, ...],
    generation: int,
    is_current: Callable[[], bool] = lambda: True,
) -> Generator[None, None, Table | None]:
    """Return contents as the orders of regions have them be. None when `orders` are no more those
    that `contents` are answered by, which `is_current` says; what is rendered by then is kept."""
    responder = contents.source
    numbers = {order: number for number, order in enumerate(dict.fromkeys(orders))}
    num_slots = responder.places.num_slots
    firsts = [divmod(orders.index(order), num_slots) for order in numbers]
    examples = [(contents.kinds.examples[kind], slot) for kind, slot in firsts]
    choices = contents.choices.copy()
    answers = Answers(after=contents.answers)
    for each in contents.by_place:
        if not is_current():
            return None
        for column, variant in enumerate(variants_of(responder, each.name)):
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
        np.array([num_slots]),
        contents.ipv4,
        contents.ipv6,
        np.frombuffer(responder.server_id, np.uint8).copy(),
    )


def _by_place(
    contents: Contents,
    each: ByPlace,
    order: Order,
    example: Example,
    variant: Variant,
) -> Turns:
    key = each.name, each.rdtype, order, variant
    if (known := contents.rendered.get(key)) is None:
        address, slot = example
        known = turns_of(contents.source, each.name, each.rdtype, address, variant, slot)
        contents.rendered[key] = known
    return known
