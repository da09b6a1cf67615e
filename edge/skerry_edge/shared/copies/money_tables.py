"""Spent money as the ends of a copy.

On NATS servers what a home has spent counts as the ceiling of a life that is over: an absolute
amount, so that it counts once however often it is written, beside those of other homes.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from skerry_edge.money.cap_record import ByPeriod, CapRecord, Ceiling
from skerry_edge.money.purse import record_of
from skerry_edge.money.spending import periods_at
from skerry_edge.money.sqlite_spending import SCHEMA
from skerry_edge.shared.copies.documents import NatsTable, SqliteTable
from skerry_regions.drivers.jetstream.specs import key_of, parts_of
from skerry_regions.drivers.jetstream.stream import KeyedStream, RevisionConflict, Stored, Write
from skerry_regions.drivers.jetstream.values import each_of

_encode = msgspec.msgpack.Encoder().encode


class CopiedSpending(Struct, frozen=True):
    """What a payer has spent, in nano-dollars."""

    payer: str
    amounts: ByPeriod


class SqliteMoney(SqliteTable):
    """See `StateTable`."""

    def __init__(self, path: Path) -> None:
        rows = "SELECT DISTINCT token FROM spent WHERE period IN (?, ?)"
        super().__init__(path, (SCHEMA,), rows)

    def now(self) -> tuple[str, ...]:
        return tuple(period.name for period in periods_at(time.time()))

    def read(self, key: str) -> CopiedSpending | None:
        (payer,) = parts_of(key)
        with self.file.reading() as database:
            rows = database.execute(
                "SELECT period, nanodollars FROM spent WHERE token = ?", (payer,)
            ).fetchall()
        return CopiedSpending(payer, dict(rows))

    def write(self, record: CopiedSpending, /) -> None:
        with self.file.transaction() as database:
            database.executemany(
                "INSERT OR REPLACE INTO spent VALUES (?, ?, ?)",
                [(record.payer, period, amount) for period, amount in record.amounts.items()],
            )


class NatsMoney(NatsTable):
    """See `StateTable`."""

    def __init__(
        self,
        stream: KeyedStream,
        loop: asyncio.AbstractEventLoop,
        life: str = "",
        *,
        replaces: bool = False,
    ) -> None:
        """`life` is that of the home whose money is written; `replaces`: it had taken all that was
        spent here back, and what it brings is all."""
        super().__init__(stream, loop)
        self._life = life
        self._replaces = replaces

    def keys(self) -> list[str]:
        """Return payers; where a home's are written, those of whom it is there already."""
        return self.wait(self._keys())

    def read(self, key: str) -> CopiedSpending | None:
        found, _ = record_of(self.wait(self.stream.last(key)))
        lists = [found.closed, *(each.amounts for each in found.ceilings.values())]
        periods = {period for amounts in lists for period in amounts}
        (payer,) = parts_of(key)
        return CopiedSpending(payer, {period: found.used(period) for period in sorted(periods)})

    def write(self, record: CopiedSpending, /) -> None:
        self.wait(self._write(record))

    async def _keys(self) -> list[str]:
        keys = await self.stream.keys("*")
        if not self._life:
            return keys
        records = await each_of(keys, self.stream.last)
        return [key for key, stored in zip(keys, records, strict=True) if self._is_there(stored)]

    def _is_there(self, stored: Stored | None) -> bool:
        ceilings = record_of(stored)[0].ceilings
        return self._life in ceilings and not (self._replaces and len(ceilings) > 1)

    async def _write(self, record: CopiedSpending) -> None:
        key = key_of(record.payer)
        while True:
            before, revision = record_of(await self.stream.last(key))
            number = before.ceilings[self._life].number if self._life in before.ceilings else 0
            kept = CapRecord() if self._replaces else before
            own = {self._life: Ceiling(number + 1, record.amounts)}
            after = replace(kept, caps=before.caps, ceilings=kept.ceilings | own)
            try:
                await self.stream.write(Write(key, _encode(after), revision))
            except RevisionConflict:  # an edge of another home spends of the same cap
                continue
            return
