"""What tokens and accounts may spend, and have: US$ per UTC day and month.

    reserve(the most that a request can cost) ──▶ Hold ──▶ settle(what it did cost)

The reservation counts as spent until it is settled, so that a cap holds whatever runs at once. An
edge that dies leaves its reservations as spent: a cap may then bite early, never late. Amounts are
whole nano-dollars.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal, Protocol

from skerry.errors import QuotaExceeded
from skerry_edge.money.caps import Budget, Payer
from skerry_regions.models.catalog import Price

NANO = 1_000_000_000

Kind = Literal["day", "month"]

Written = tuple[int, float]
"""Tokens that were computed and stay cached for a time, and what these cost in US$."""
UNWRITTEN: Written = (0, 0.0)


@dataclass(frozen=True, slots=True)
class Period:
    """A UTC day or month."""

    name: str  # "2026-11-21", "2026-11"
    what: Kind
    seconds_left: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Money reserved for one request."""

    payers: tuple[str, ...]  # ids of tokens and accounts
    periods: tuple[str, ...]
    nanodollars: int


def dollars(
    price: Price,
    prompt_tokens: int,
    output_tokens: int,
    cached_tokens: int = 0,
    written: Written = UNWRITTEN,
) -> float:
    """Return what a request costs. `cached_tokens` are part of the prompt's, and so are those that
    were `written`."""
    written_tokens, written_dollars = written
    computed = (prompt_tokens - cached_tokens - written_tokens) * price.prompt
    phases = computed + cached_tokens * price.cached + output_tokens * price.output
    return phases / 1e6 + written_dollars


def periods_at(now: float) -> tuple[Period, Period]:
    """Return the UTC day and month of a moment in Unix seconds."""
    moment = datetime.fromtimestamp(now, UTC)
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    first = (moment.replace(day=1) + timedelta(days=32)).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    return (
        Period(moment.strftime("%Y-%m-%d"), "day", (midnight - moment).total_seconds()),
        Period(moment.strftime("%Y-%m"), "month", (first - moment).total_seconds()),
    )


def kind_of(period: str) -> Kind:
    """Return what a period is, by its name."""
    return "day" if len(period) == len("2026-11-21") else "month"


def before(period: str) -> str:
    """Return the day before a day, or the month before a month."""
    if kind_of(period) == "day":
        return (date.fromisoformat(period) - timedelta(days=1)).isoformat()
    return (date.fromisoformat(f"{period}-01") - timedelta(days=1)).isoformat()[: len("2026-11")]


class Spending(Protocol):
    """What one edge knows of spending, on its event loop. Every driver passes one conformance
    suite."""

    async def reserve(self, budgets: tuple[Budget, ...], dollars: float) -> Hold:
        """Set the most that a request can cost aside, in each of the budgets or in none.

        Raises `QuotaExceeded` when a cap has no room for it, or `Unavailable` when that is not
        known.
        """
        ...

    def settle(self, hold: Hold, dollars: float) -> None:
        """Replace a reservation by what the request did cost. Returns at once."""
        ...

    async def spent(self, payer: str) -> tuple[float, float]:
        """Return US$ of this UTC day and month, reservations included. Raises `Unavailable`."""
        ...

    async def close(self) -> None:
        """Settle what is left, and end."""
        ...


def nano(dollars: float) -> int:
    """Return whole nano-dollars."""
    return round(dollars * NANO)


WHO: dict[Payer, str] = {
    "token": "This API token",
    "ancestor": "The API token that this one was made with",
    "account": "This account",
}


def exceeded(payer: Payer, period: Period, cap: float, spent: int, amount: int) -> QuotaExceeded:
    """Return the error of a request that a cap has no room for."""
    return QuotaExceeded(
        f"{WHO[payer]} may spend US$ {cap:.9g} per {period.what}: {spent / NANO:.9g} is spent, "
        f"and this request may cost up to {amount / NANO:.9g}.",
        retry_after=period.seconds_left,
    )
