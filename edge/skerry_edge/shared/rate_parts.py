"""Parts of one limit among edges: of its rates in millionths, of its places in whole numbers. Pure.

One record has the parts of all edges, and is changed by compare-and-set alone, so that in every
revision their sum is at most the whole. An edge alone raises its own part, when that is stored, and
lowers it before it writes; others take the part of an edge that was not heard of for a minute.

What is in all buckets together is never more than one bucket of the whole rate would hold: a part
that is given back takes its share of its bucket's level into the record, where whoever takes the
part finds it. Before the first record all parts are free, and their buckets full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

WHOLE = 1_000_000  # of a rate
REQUESTS, TOKENS, PLACES = range(3)
RATES = (REQUESTS, TOKENS)
LEAST_TAKEN, LEAST_GIVEN = 0.05, 0.01  # of a part, for which the record is written
STALE = 0.25  # of a demand: by so much others may know another
DEAD_SECONDS = 60.0  # unheard of; then others may take an edge's parts of rates …
PLACES_DEAD_SECONDS = 660.0  # … and of places: longer than a request may run

Amount = Annotated[int, Meta(ge=0, le=1 << 40)]
Amounts = tuple[Amount, Amount, Amount]  # of requests, tokens, places
Levels = tuple[Amount, Amount]  # of buckets, in millionths of a full one of the whole rate
NONE: Amounts = (0, 0, 0)


class EdgePart(Struct, frozen=True, array_like=True):
    """What one life (process) of an edge has."""

    number: int  # of its last change
    parts: Amounts
    demand: Amounts = NONE  # a minute; of places at once
    lacks: tuple[bool, bool, bool] = (False, False, False)  # and others may give back


class RateRecord(Struct, frozen=True, array_like=True):
    """What all edges know of a limit."""

    version: Literal[1] = 1
    edges: dict[str, EdgePart] = {}  # by life
    levels: Levels = (WHOLE, WHOLE)  # of the parts that no edge has


class Want(Struct, frozen=True, kw_only=True):
    """What an edge has use for."""

    wholes: Amounts  # what is divided: `WHOLE` of rates, places; 0: it is not limited
    demand: Amounts
    lacks: tuple[bool, bool, bool]
    levels: Levels  # of its own buckets
    running: int  # places in use
    gives_all: bool = False  # it has no use for anything


class EdgeShare:
    """What one life of an edge knows of a limit, and has of it."""

    def __init__(self, life: str) -> None:
        self.life = life
        self.record, self.revision = RateRecord(), 0
        self.parts: Amounts = NONE
        self._number = 0
        self._pending: tuple[RateRecord, Levels] | None = None  # planned, and what comes with it
        self._given = [0, 0]  # levels on their way into the record

    def places(self, whole: int) -> int:
        """Return how many requests may run here: less than its part while a whole that was lowered
        is less than all parts."""
        held = sum(each.parts[PLACES] for each in self._others()) + self.parts[PLACES]
        own = self.parts[PLACES]
        return own if held <= whole else own * whole // held

    @property
    def others_lack(self) -> bool:
        return any(any(each.lacks) for each in self._others())

    def _others(self) -> list[EdgePart]:
        return [each for life, each in self.record.edges.items() if life != self.life]

    def plan(self, want: Want, unheard: Mapping[str, float]) -> tuple[RateRecord, Levels] | None:
        """Return the record as it should be, to be written under the revision that is known, and
        the levels that are given up with parts of rates, at once; None: as it is.

        `unheard` has seconds since other lives were heard of.
        """
        edges = _alive(self.record.edges, unheard)
        told = edges.pop(self.life, EdgePart(0, NONE))
        others = list(edges.values())
        parts = [self._wanted(kind, want, others) for kind in range(3)]
        lost, gained, levels = [0, 0], [0, 0], [*self.record.levels]
        for kind in RATES:
            own, new = self.parts[kind], parts[kind]
            if new < own:
                lost[kind] = want.levels[kind] * (own - new) // own
            gained[kind] = min(levels[kind], max(0, new - own))
            free = WHOLE - new - sum(each.parts[kind] for each in others)
            level = levels[kind] - gained[kind] + self._given[kind] + lost[kind]
            levels[kind] = max(0, min(level, free))
        mine = EdgePart(self._number + 1, _three(parts), want.demand, want.lacks)
        is_gone = want.gives_all and not any(parts)
        is_same = mine.parts == told.parts == self.parts
        if is_same and (is_gone or not _is_news(told, mine, others)):
            return None
        if not is_gone:
            edges[self.life] = mine
        planned = RateRecord(edges=edges, levels=_two(levels))
        for kind in RATES:
            self._given[kind] += lost[kind]
        self.parts = _three([min(each) for each in zip(self.parts, parts, strict=True)])
        self._pending = planned, _two(gained)
        return planned, _two(lost)

    def _wanted(self, kind: int, want: Want, others: Sequence[EdgePart]) -> int:
        """Return the part that this edge should have: that of its demand in all demand."""
        own, whole, demand = self.parts[kind], want.wholes[kind], max(1, want.demand[kind])
        least = min(own, want.running) if kind == PLACES else 0
        if not whole or want.gives_all:
            return least
        of_all = demand + sum(each.demand[kind] for each in others)
        free = whole - own - sum(each.parts[kind] for each in others)
        if free < 0:  # the whole was lowered
            return max(least, own + free)
        target = -(-demand * whole // of_all)
        if target > own and (want.lacks[kind] or not own):
            new = own + min(target - own, free)
            return new if kind == PLACES or new - own > LEAST_TAKEN * own else own
        lacking = [each for each in others if each.lacks[kind]]
        new = max(demand * whole // of_all, least)
        if lacking and new < own:
            is_urgent = kind == PLACES or any(not each.parts[kind] for each in lacking)
            return new if is_urgent or own - new > LEAST_GIVEN * own else own
        return own

    def stored(self, revision: int) -> Levels:
        """Take over what was planned: it is in the store. Returns levels that came with it."""
        assert self._pending is not None
        (planned, gained), self._pending = self._pending, None
        self._take_over(planned.edges.get(self.life, EdgePart(self._number + 1, NONE)))
        if revision > self.revision:
            self.record, self.revision = planned, revision
        return gained

    def found(self, record: RateRecord, revision: int) -> Levels:
        """Take over what is there in place of what was planned, or that it is part of it. Returns
        levels that came with it."""
        pending, self._pending = self._pending, None
        own = record.edges.get(self.life)
        self.record, self.revision = record, revision
        if pending is not None and own is not None and own.number > self._number:
            self._take_over(own)
            return pending[1] if own == pending[0].edges.get(self.life) else (0, 0)
        self._keep_at_most(own)
        return 0, 0

    def seen(self, record: RateRecord, revision: int) -> None:
        """Take over what somebody wrote. Who was taken for dead has lost what others took."""
        if revision <= self.revision:
            return
        self.record, self.revision = record, revision
        own = record.edges.get(self.life)
        if own is None or own.number <= self._number:
            self._keep_at_most(own)

    def lost(self) -> None:
        """Reset: the store has lost all parts."""
        self.record, self.revision, self.parts = RateRecord(), 0, NONE

    def _take_over(self, own: EdgePart) -> None:
        self._number, self.parts, self._given = own.number, own.parts, [0, 0]

    def _keep_at_most(self, own: EdgePart | None) -> None:
        parts = NONE if own is None else own.parts
        self.parts = _three([min(each) for each in zip(self.parts, parts, strict=True)])


def _three(parts: Sequence[int]) -> Amounts:
    requests, tokens, places = parts
    return requests, tokens, places


def _two(levels: Sequence[int]) -> Levels:
    requests, tokens = levels
    return requests, tokens


def _alive(edges: Mapping[str, EdgePart], unheard: Mapping[str, float]) -> dict[str, EdgePart]:
    """Return the edges without what others may take."""
    alive: dict[str, EdgePart] = {}
    for life, each in edges.items():
        seconds = unheard.get(life, 0.0)
        if seconds < DEAD_SECONDS:
            alive[life] = each
        elif seconds < PLACES_DEAD_SECONDS and each.parts[PLACES]:
            alive[life] = replace(
                each, parts=(0, 0, each.parts[PLACES]), demand=NONE, lacks=(False, False, False)
            )
    return alive


def _is_news(told: EdgePart, mine: EdgePart, others: Sequence[EdgePart]) -> bool:
    """Return whether others should know what this edge lacks, or how much it has use for."""
    if any(now and not before for before, now in zip(told.lacks, mine.lacks, strict=True)):
        return True
    if not (any(mine.lacks) or any(any(each.lacks) for each in others)):
        return False
    return any(
        abs(now - before) > STALE * max(now, before)
        for before, now in zip(told.demand, mine.demand, strict=True)
    )
