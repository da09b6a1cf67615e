"""What is stored of one payer's caps: the ceilings of all edges (see `ceilings.py`). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from skerry_edge.money.spending import Kind, before, kind_of

MAX_LIVES = 256  # in a record; of more, who changed longest ago counts as closed

Amount = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
ByPeriod = dict[str, Amount]  # by "2026-11-21" or "2026-11"


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


def have_same_amounts(one: ByPeriod, other: ByPeriod) -> bool:
    """Return whether they have the same amounts; none is 0."""
    return all(one.get(each, 0) == other.get(each, 0) for each in one.keys() | other.keys())


def bounded(
    ceilings: dict[str, Ceiling], closed: ByPeriod, periods: Sequence[str]
) -> tuple[dict[str, Ceiling], ByPeriod]:
    """Leave periods out that are over, and lives that have nothing in others; close who changed
    longest ago where there are too many."""
    kept = {
        life: replace(each, amounts=kept_periods(each.amounts, periods))
        for life, each in ceilings.items()
    }
    last = next(reversed(kept))
    kept = {life: each for life, each in kept.items() if life == last or any(each.amounts.values())}
    closed = kept_periods(closed, periods)
    for life in list(kept)[: max(0, len(kept) - MAX_LIVES)]:
        for period, amount in kept.pop(life).amounts.items():
            closed[period] = closed.get(period, 0) + amount
    return kept, closed


def kept_periods(amounts: ByPeriod, periods: Sequence[str]) -> ByPeriod:
    """Return those of this period, of the one before, which others may be in yet, and later."""
    first = {kind_of(each): each for each in sorted(periods, reverse=True)}
    return {each: n for each, n in amounts.items() if each >= before(first[kind_of(each)])}
