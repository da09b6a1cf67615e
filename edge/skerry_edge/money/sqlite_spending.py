"""Spending in a SQLite file, which the edges of one home share."""

from __future__ import annotations

import asyncio
import functools
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path

from skerry.errors import Unavailable
from skerry_edge.database import DatabaseThread
from skerry_edge.money.caps import Budget
from skerry_edge.money.spending import NANO, Hold, exceeded, nano, periods_at

# Places bound what waits for the file; a settlement that it refused would stay spent.
MAX_WAITING = 65_536

SCHEMA = """
CREATE TABLE IF NOT EXISTS spent (
    token TEXT NOT NULL, period TEXT NOT NULL, nanodollars INTEGER NOT NULL,
    PRIMARY KEY (token, period)
) WITHOUT ROWID
"""

logger = logging.getLogger(__name__)


class SqliteSpending:
    """See `Spending`. The file is opened when something with a cap first needs it."""

    def __init__(self, path: Path, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._file = DatabaseThread(path, (SCHEMA,), name="spending", max_waiting=MAX_WAITING)
        self._wall_clock = wall_clock
        self._swept = ""  # the day on which old periods were last removed

    async def reserve(self, budgets: tuple[Budget, ...], dollars: float) -> Hold:
        now = self._wall_clock()
        work = functools.partial(self._reserve, budgets, nano(dollars), now)
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
        work = functools.partial(_add, hold, nano(dollars) - hold.nanodollars)
        self._file.write(work).add_done_callback(functools.partial(_noted, hold))

    async def spent(self, payer: str) -> tuple[float, float]:
        day, month = periods_at(self._wall_clock())

        def read(database: sqlite3.Connection) -> tuple[float, float]:
            return (
                _read(database, payer, day.name) / NANO,
                _read(database, payer, month.name) / NANO,
            )

        return await asyncio.wrap_future(self._file.read(read))

    async def close(self) -> None:
        await asyncio.to_thread(self._file.close)

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
                if spent + amount > nano(cap):
                    raise exceeded(budget.payer, period, cap, spent, amount)
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
