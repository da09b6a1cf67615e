"""Exact shares of one payer's caps among edges, of which each spends without a round trip. Pure.

A *ceiling* is the most that one life (process) of an edge may ever spend in a period. One record
has them all, and is changed by compare-and-set alone, so that in every revision

    sum of ceilings + what is closed <= cap

An edge alone changes its own ceiling, lowers it before it writes and raises it when that is stored,
and writes absolute amounts under a number of its own: a change whose answer was lost is sent once
more as it was, and a record that has forgotten it is recognised. A dead edge's ceiling stays as if
it were spent: a cap bites early, never late. Amounts are whole nano-dollars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from skerry_edge.money.spending import Kind, before, kind_of

HORIZON_SECONDS = 75.0  # of spending that a lease should last: at half of it, it is renewed
PACE_SECONDS = 0.5  # between two looks at the pace
PACE_WEIGHT = 0.3  # of the newest look
LEAST_REQUESTS = 4  # of the largest size, that a lease holds
SMALL_REQUESTS = 20
"""Of the largest size: a cap of fewer has no leases, and so many are in all leases together at most
when one is refused."""
MAX_LIVES = 256  # in a record; of more, who changed longest ago counts as closed
UNCAPPED = 1 << 60

Amount = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
ByPeriod = dict[str, Amount]  # by "2026-11-21" or "2026-11"
Giving = Literal["nothing", "surplus", "all"]


class Ceiling(Struct, frozen=True, array_like=True):
    """What one life of an edge may spend."""

    number: int  # of its last change
    amounts: ByPeriod


class CapRecord(Struct, frozen=True, array_like=True):
    """What all edges know of a payer."""

    version: Literal[1] = 1
    caps: dict[Kind, Amount] = {}  # as the last edge has them whose configuration changed
    ceilings: dict[str, Ceiling] = {}  # by life, who changed last at the end
    closed: ByPeriod = {}  # ceilings of lives that are not listed any more
    wanted: dict[str, Amount] = {}  # by life: what it lacks, and others may give back

    def used(self, period: str) -> int:
        return self.closed.get(period, 0) + sum(
            each.amounts.get(period, 0) for each in self.ceilings.values()
        )


class Lease:
    """What one life of an edge knows of one payer, has of its caps, and has spent of that."""

    def __init__(self, life: str, caps: Mapping[Kind, int]) -> None:
        self.life = life
        self.record, self.revision = CapRecord(), 0
        self.caps = dict(caps)
        self.spent: ByPeriod = {}  # reservations included
        self._ceiling: ByPeriod = {}
        self._number = 0
        self._tells_caps = True  # to the others, with the next change
        self._pending: CapRecord | None = None
        self._largest = 0
        self._pace = 0.0  # nano-dollars a second
        self._paced_at, self._paced_spent = -float("inf"), 0

    def room(self, periods: Sequence[str]) -> int:
        """Return what may be spent at once in all of these."""
        return min([self._room(each) for each in periods])

    def _room(self, period: str) -> int:
        return self._ceiling.get(period, 0) - self.spent.get(period, 0)

    def spend(self, amount: int, periods: Sequence[str]) -> bool:
        """Spend it, if there is room."""
        self._largest = max(self._largest, amount)
        if amount > max(0, self.room(periods)):
            return False
        self.add(amount, periods)
        return True

    def add(self, amount: int, periods: Sequence[str]) -> None:
        """Count what was spent, or comes back, whatever there is room for."""
        for each in periods:
            self.spent[each] = self.spent.get(each, 0) + amount

    def used(self, period: str) -> int:
        """Return what is spent, by others at most."""
        return self._others(period) + self.spent.get(period, 0)

    def _others(self, period: str) -> int:
        own = self.record.ceilings.get(self.life)
        return self.record.used(period) - (own.amounts.get(period, 0) if own else 0)

    def _free(self, period: str) -> int:
        """Return what no edge may spend yet; less than 0 where the cap was lowered."""
        return self.cap(period) - self._others(period) - self._ceiling.get(period, 0)

    def cap(self, period: str) -> int:
        """Return the lower of the configuration's cap and the others'."""
        kind = kind_of(period)
        own = self.caps.get(kind, UNCAPPED)
        return own if self._tells_caps else min(own, self.record.caps.get(kind, UNCAPPED))

    def go_by(self, caps: Mapping[Kind, int]) -> bool:
        """Take over the configuration's caps; whether they are others than before."""
        if caps == self.caps:
            return False
        self.caps, self._tells_caps = dict(caps), True
        self._give_up_beyond_caps()
        return True

    def target(self, periods: Sequence[str], now: float) -> int:
        """Return what it should have room for: so many seconds at the pace of late."""
        if any(self.cap(each) < SMALL_REQUESTS * self._largest for each in periods):
            return 0
        spent = self.spent.get(periods[0], 0)
        if (elapsed := now - self._paced_at) > PACE_SECONDS:
            pace = max(0, spent - self._paced_spent) / elapsed
            self._pace += PACE_WEIGHT * (pace - self._pace)
            self._paced_at, self._paced_spent = now, spent
        return max(LEAST_REQUESTS * self._largest, int(self._pace * HORIZON_SECONDS))

    def is_low(self, periods: Sequence[str], now: float) -> bool:
        """Return whether it is time to renew the lease."""
        return self.room(periods) < self.target(periods, now) // 2

    def is_to_give(self, periods: Sequence[str], now: float, edges: int = 1) -> bool:
        """Return whether others of so many edges lack what is here, or the cap was lowered."""
        own = self.record.ceilings.get(self.life)
        is_lowered = own is not None and not _is_same(own.amounts, self._ceiling)
        return is_lowered or self.is_lacked(periods, now, edges)

    def is_lacked(self, periods: Sequence[str], now: float, edges: int = 1) -> bool:
        """Return whether others of so many edges lack what is here; all, where a cap is so small
        that there are no leases."""
        target, room = self.target(periods, now), self.room(periods)
        others = self.record.wanted.keys() - {self.life}
        if not target:
            return room > 0
        return bool(others) and room > self._kept(0, target, edges)

    def may_have(self, amount: int, periods: Sequence[str]) -> bool:
        """Return whether there is enough without what others hold, as far as is known."""
        return amount <= min([self.cap(each) - self.used(each) for each in periods])

    @property
    def is_forgotten(self) -> bool:
        """Return whether the store has lost what it had acknowledged."""
        own = self.record.ceilings.get(self.life)
        return self._number > (own.number if own else 0)

    def plan(
        self,
        periods: Sequence[str],
        need: int,
        now: float,
        *,
        least: int = 0,
        giving: Giving = "nothing",
        edges: int = 1,
    ) -> CapRecord | None:
        """Return the record as it should be, to be written under the revision that is known; None:
        as it is. What it gives back is given up at once.

        `need` is what waits to be spent here, `least` the smallest part of it that is of use, and
        `edges` how many share the cap.
        """
        target = self.target(periods, now)
        steps = {each: self._step(each, need, target, giving, edges) for each in periods}
        room = min([self._room(each) + step for each, step in steps.items()])
        if room < least and giving == "nothing":
            room = self.room(periods)
        steps = {  # what one period has beyond another is of no use
            each: min(step, max(0, room - self._room(each))) for each, step in steps.items()
        }
        changed = {each: self._ceiling.get(each, 0) + step for each, step in steps.items()}
        amounts = _kept(self._ceiling, periods) | changed
        wanted = dict(self.record.wanted)
        wanted.pop(self.life, None)
        if any(step < 0 for step in steps.values()):
            wanted.clear()  # whoever lacks it says so once more
        if need > room and giving == "nothing":
            wanted[self.life] = need - room
        caps = self.caps if self._tells_caps else self.record.caps
        own = self.record.ceilings.get(self.life, Ceiling(0, {}))
        is_same = wanted.keys() == self.record.wanted.keys() and caps == self.record.caps
        if is_same and _is_same(amounts, own.amounts) and not self.is_forgotten:
            return None
        ceilings = dict(self.record.ceilings)
        ceilings.pop(self.life, None)
        ceilings[self.life] = Ceiling(self._number + 1, amounts)
        ceilings, closed = _bounded(ceilings, self.record.closed, periods)
        planned = CapRecord(1, dict(caps), ceilings, closed, wanted)
        self._ceiling = {
            each: min(amount, self._ceiling.get(each, 0)) for each, amount in amounts.items()
        }
        self._pending = planned
        return planned

    def _step(self, period: str, need: int, target: int, giving: Giving, edges: int) -> int:
        room = self._room(period)
        free = self._free(period)
        if giving == "all":
            return -max(0, room)
        if giving == "surplus" or free < 0:
            given = max(room - max(need, self._kept(room, target, edges)), min(room, -free))
            return -max(0, given)
        fair = max(need - room, free // (2 * max(1, edges)))
        return max(0, min(max(need, target) - room, fair, free))

    def _kept(self, room: int, target: int, edges: int) -> int:
        """Return what is kept of some room while others lack it: what is needed soon, or of less
        than that one half, down to where all edges together have little."""
        least = SMALL_REQUESTS * self._largest // max(1, edges)
        return min(target // 4, max(room // 2, least))

    def stored(self, revision: int) -> None:
        """Take over what was planned: it is in the store."""
        assert self._pending is not None
        own = self._pending.ceilings[self.life]
        self._number, self._ceiling = own.number, dict(own.amounts)
        self._tells_caps &= self._pending.caps != self.caps  # which may have changed meanwhile
        if revision > self.revision:
            self.record, self.revision = self._pending, revision
        self._pending = None
        self._give_up_beyond_caps()

    def found(self, record: CapRecord, revision: int) -> bool:
        """Take over what is there in place of what was planned; whether that is part of it."""
        planned, self.record, self.revision, self._pending = self._pending, record, revision, None
        own = record.ceilings.get(self.life)
        if own is None or own.number < self._number:
            return False  # forgotten; what was given up stays so
        is_stored = own.number > self._number
        self._number, self._ceiling = own.number, dict(own.amounts)
        self._tells_caps &= not (is_stored and planned and planned.caps == self.caps)
        self._give_up_beyond_caps()
        return is_stored

    def seen(self, record: CapRecord, revision: int) -> None:
        """Take over what somebody wrote."""
        if revision > self.revision:
            self.record, self.revision = record, revision
            self._give_up_beyond_caps()

    def opened(self, record: CapRecord, revision: int) -> None:
        """Begin with a record. What this life had there once is spent."""
        self.record, self.revision = record, revision
        if (own := record.ceilings.get(self.life)) is not None:
            self._number, self._ceiling = own.number, dict(own.amounts)
            self.spent = dict(own.amounts)

    def _give_up_beyond_caps(self) -> None:
        """Spend no more of what is beyond a cap that was lowered."""
        for each, amount in self._ceiling.items():
            beyond = min(-self._free(each), amount - self.spent.get(each, 0))
            self._ceiling[each] = amount - max(0, beyond)

    def lost(self) -> None:
        """Accept whatever record comes next: the store was made again."""
        self.revision = 0


def _is_same(one: ByPeriod, other: ByPeriod) -> bool:
    """Return whether they have the same amounts; none is 0."""
    return all(one.get(each, 0) == other.get(each, 0) for each in one.keys() | other.keys())


def _bounded(
    ceilings: dict[str, Ceiling], closed: ByPeriod, periods: Sequence[str]
) -> tuple[dict[str, Ceiling], ByPeriod]:
    """Leave periods out that are over, and lives that have nothing in others; close who changed
    longest ago where there are too many."""
    kept = {
        life: replace(each, amounts=_kept(each.amounts, periods)) for life, each in ceilings.items()
    }
    last = next(reversed(kept))
    kept = {life: each for life, each in kept.items() if life == last or any(each.amounts.values())}
    closed = _kept(closed, periods)
    for life in list(kept)[: max(0, len(kept) - MAX_LIVES)]:
        for period, amount in kept.pop(life).amounts.items():
            closed[period] = closed.get(period, 0) + amount
    return kept, closed


def _kept(amounts: ByPeriod, periods: Sequence[str]) -> ByPeriod:
    """Return those of this period, of the one before, which others may be in yet, and later."""
    first = {kind_of(each): each for each in sorted(periods, reverse=True)}
    return {each: n for each, n in amounts.items() if each >= before(first[kind_of(each)])}
