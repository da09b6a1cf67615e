"""Exact shares of one payer's caps among edges, of which each spends without a round trip. Pure.

A *ceiling* is the most that one life (process) of an edge may ever spend in a period. One record
has them all, and is changed by compare-and-set alone, so that in every revision

    sum of ceilings + what is closed <= cap

An edge alone changes its own ceiling, lowers it before it writes and raises it when that is stored,
and writes absolute amounts under a number of its own: a change whose answer was lost is sent once
more as it was. To a record that has forgotten it an edge writes its ceiling as it was, and raises
it once the others have had the time to write theirs. A dead edge's ceiling stays as if it were
spent: a cap bites early, never late. Amounts are whole nano-dollars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from skerry_edge.money.cap_record import (
    ByPeriod,
    CapRecord,
    Ceiling,
    bounded,
    have_same_amounts,
    kept_periods,
)
from skerry_edge.money.spending import Kind, kind_of

HORIZON_SECONDS = 75.0  # of spending that a lease should last: at half of it, it is renewed
PACE_SECONDS = 0.5  # between two looks at the pace
PACE_WEIGHT = 0.3  # of the newest look
RESTORE_SECONDS = 5.0  # in which all edges write to a record that has forgotten them
LEAST_REQUESTS = 4  # of the largest size, that a lease holds
SMALL_REQUESTS = 20
"""Of the largest size: a cap of fewer has no leases, and so many are in all leases together at most
when one is refused."""
UNCAPPED = 1 << 60

Giving = Literal["nothing", "surplus", "all"]


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
        self.restored_at = -float("inf")  # when the store was last found to have lost something
        self._restores_at = -float("inf")  # by what is planned

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
        is_low = self.room(periods) < self.target(periods, now) // 2
        return is_low and not self._is_restoring(now)

    def is_to_give(self, periods: Sequence[str], now: float, edges: int = 1) -> bool:
        """Return whether others of so many edges lack what is here, or the cap was lowered."""
        return self.is_lowered or self.is_lacked(periods, now, edges)

    @property
    def is_lowered(self) -> bool:
        """Return whether the record has more for this life than a lowered cap leaves. False during
        a write, which may be in the record before its answer comes, and where it is forgotten."""
        own = self.record.ceilings.get(self.life)
        if self._pending is not None or own is None or own.number != self._number:
            return False
        return not have_same_amounts(own.amounts, self._ceiling)

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

    def is_forgotten(self, periods: Sequence[str]) -> bool:
        """Return whether the store has lost what it had acknowledged."""
        if (own := self.record.ceilings.get(self.life)) is not None:
            return self._number > own.number
        return any(kept_periods(self._ceiling, periods).values())  # others drop who has nothing

    def _is_restoring(self, now: float) -> bool:
        """Return whether others may yet have to write what the store has lost."""
        return now - self.restored_at < RESTORE_SECONDS

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
        is_forgotten = self.is_forgotten(periods)
        if is_forgotten or self._is_restoring(now):
            need, steps = 0, {each: min(step, 0) for each, step in steps.items()}
        room = min([self._room(each) + step for each, step in steps.items()])
        if room < least and giving == "nothing":
            room = self.room(periods)
        steps = {  # what one period has beyond another is of no use
            each: min(step, max(0, room - self._room(each))) for each, step in steps.items()
        }
        changed = {each: self._ceiling.get(each, 0) + step for each, step in steps.items()}
        amounts = kept_periods(self._ceiling, periods) | changed
        wanted = dict(self.record.wanted)
        wanted.pop(self.life, None)
        if any(step < 0 for step in steps.values()):
            wanted.clear()  # whoever lacks it says so once more
        if need > room and giving == "nothing":
            wanted[self.life] = need - room
        caps = self.caps if self._tells_caps else self.record.caps
        own = self.record.ceilings.get(self.life, Ceiling(0, {}))
        is_same = wanted.keys() == self.record.wanted.keys() and caps == self.record.caps
        if is_same and have_same_amounts(amounts, own.amounts) and not is_forgotten:
            return None
        ceilings = dict(self.record.ceilings)
        ceilings.pop(self.life, None)
        ceilings[self.life] = Ceiling(self._number + 1, amounts)
        ceilings, closed = bounded(ceilings, self.record.closed, periods)
        planned = CapRecord(1, dict(caps), ceilings, closed, wanted)
        self._ceiling = {
            each: min(amount, self._ceiling.get(each, 0)) for each, amount in amounts.items()
        }
        self._pending = planned
        self._restores_at = now if is_forgotten else -float("inf")
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
        planned, self._pending = self._pending, None
        if revision > self.revision:
            self.record, self.revision = planned, revision
        self._take_over(planned.ceilings[self.life], planned)

    def found(self, record: CapRecord, revision: int) -> bool:
        """Take over what is there in place of what was planned; whether that is part of it."""
        planned, self.record, self.revision, self._pending = self._pending, record, revision, None
        own = record.ceilings.get(self.life)
        if own is None or own.number < self._number:
            return False  # forgotten; what was given up stays so
        is_stored = own.number > self._number
        self._take_over(own, planned if is_stored else None)
        return is_stored

    def _take_over(self, own: Ceiling, written: CapRecord | None) -> None:
        """Go by the ceiling in the record, after a write of this lease or another's."""
        self._number, self._ceiling = own.number, dict(own.amounts)
        if written is not None:
            self._tells_caps &= written.caps != self.caps  # which may have changed meanwhile
            self.restored_at = max(self.restored_at, self._restores_at)
        self._give_up_beyond_caps()

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

    def lost(self, now: float) -> None:
        """Accept whatever record comes next: the store was made again."""
        self.revision, self.restored_at = 0, now
