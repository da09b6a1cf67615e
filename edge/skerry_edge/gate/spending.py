"""What tokens and accounts may spend, and have: US$ per UTC day and month, in a SQLite file.

    reserve(the most that a request can cost) ──▶ Hold ──▶ settle(what it did cost)

The reservation counts as spent until it is settled, so that a cap holds whatever runs at once, on
all edges that share the file. An edge that dies leaves its reservations as spent: a cap may then
bite early, never late. Amounts are whole nano-dollars.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from skerry.errors import QuotaExceeded, Unavailable
from skerry_edge.database import DatabaseThread
from skerry_edge.gate.principal import Budget, Payer
from skerry_regions.models.catalog import Price

NANO = 1_000_000_000
# Places bound what waits for the file; a settlement that it refused would stay spent.
MAX_WAITING = 65_536

Written = tuple[int, float]
"""Tokens that were computed and stay cached for a time, and what these cost in US$."""
UNWRITTEN: Written = (0, 0.0)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS spent (
    token TEXT NOT NULL, period TEXT NOT NULL, nanodollars INTEGER NOT NULL,
    PRIMARY KEY (token, period)
) WITHOUT ROWID
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Period:
    """A UTC day or month."""

    name: str  # "2026-11-21", "2026-11"
    what: Literal["day", "month"]
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


class Spending:
    """The spending of one home. The file is opened when something with a cap first needs it."""

    def __init__(self, path: Path, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._file = DatabaseThread(path, (_SCHEMA,), name="spending", max_waiting=MAX_WAITING)
        self._wall_clock = wall_clock
        self._swept = ""  # the day on which old periods were last removed

    async def reserve(self, budgets: tuple[Budget, ...], dollars: float) -> Hold:
        """Set the most that a request can cost aside, in each of the budgets or in none.

        Raises `QuotaExceeded` when a cap has no room for it, or `Unavailable` when that is not
        known.
        """
        now = self._wall_clock()
        work = functools.partial(self._reserve, budgets, _nano(dollars), now)
        reserving = asyncio.wrap_future(self._file.write(work))
        try:
            return await asyncio.shield(reserving)
        except Unavailable as error:
            raise Unavailable("What has been spent cannot be read now.") from error
        except asyncio.CancelledError:
            reserving.add_done_callback(self._give_back)
            raise

    def _give_back(self, reserving: asyncio.Future[Hold]) -> None:
        """Give back what a request reserved that was cancelled while its money was being set
        aside."""
        if not reserving.cancelled() and reserving.exception() is None:
            self.settle(reserving.result(), 0.0)

    def settle(self, hold: Hold, dollars: float) -> None:
        """Replace a reservation by what the request did cost. Returns at once."""
        work = functools.partial(_add, hold, _nano(dollars) - hold.nanodollars)
        self._file.write(work).add_done_callback(functools.partial(_noted, hold))

    def spent(self, payer: str) -> tuple[float, float]:
        """Return US$ of this UTC day and month, reservations included. Raises Unavailable."""
        day, month = periods_at(self._wall_clock())

        def read(database: sqlite3.Connection) -> tuple[float, float]:
            return (
                _read(database, payer, day.name) / NANO,
                _read(database, payer, month.name) / NANO,
            )

        return self._file.read(read).result()

    def close(self) -> None:
        """Settle what is left, and close the file."""
        self._file.close()

    def _reserve(
        self, budgets: tuple[Budget, ...], amount: int, now: float, database: sqlite3.Connection
    ) -> Hold:
        day, month = periods_at(now)
        self._sweep(database, day.name, now)
        for budget in budgets:
            for period, cap in ((day, budget.caps.per_day), (month, budget.caps.per_month)):
                if cap is None:
                    continue
                spent = _read(database, budget.id, period.name)
                if spent + amount > _nano(cap):
                    raise _exceeded(budget.payer, period, cap, spent, amount)
        hold = Hold(tuple(each.id for each in budgets), (day.name, month.name), amount)
        _add(hold, amount, database)
        return hold

    def _sweep(self, database: sqlite3.Connection, day: str, now: float) -> None:
        """Forget what is older than last month, once a day."""
        if day == self._swept:
            return
        last_month = datetime.fromtimestamp(now, UTC).replace(day=1) - timedelta(days=1)
        database.execute("DELETE FROM spent WHERE period < ?", (last_month.strftime("%Y-%m"),))
        self._swept = day


def _read(database: sqlite3.Connection, payer: str, period: str) -> int:
    row = database.execute(
        "SELECT nanodollars FROM spent WHERE token = ? AND period = ?", (payer, period)
    ).fetchone()
    return int(row[0]) if row is not None else 0


def _add(hold: Hold, amount: int, database: sqlite3.Connection) -> None:
    database.executemany(
        "INSERT INTO spent VALUES (?, ?, ?) ON CONFLICT (token, period)"
        " DO UPDATE SET nanodollars = nanodollars + excluded.nanodollars",
        [(payer, period, amount) for payer in hold.payers for period in hold.periods],
    )


def _noted(hold: Hold, settling: Future[None]) -> None:
    """Log a reservation that cannot be settled: it stays, as after a crash."""
    if (error := settling.exception()) is not None:
        payers = ", ".join(hold.payers)
        logger.error("%s: what a request did cost was not noted: %s", payers, error)


def _nano(dollars: float) -> int:
    return round(dollars * NANO)


WHO: dict[Payer, str] = {
    "token": "This API token",
    "ancestor": "The API token that this one was made with",
    "account": "This account",
}


def _exceeded(payer: Payer, period: Period, cap: float, spent: int, amount: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"{WHO[payer]} may spend US$ {cap:.9g} per {period.what}: {spent / NANO:.9g} is spent, "
        f"and this request may cost up to {amount / NANO:.9g}.",
        retry_after=period.seconds_left,
    )
