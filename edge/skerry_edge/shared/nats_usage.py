"""Usage that every edge of a zone sums: the journal of a home is the outbox to a stream of
JetStream, and has what the others sent besides.

    settle ──▶ row of the journal ──▶ stream `usage`, many rows a message ──▶ journals of the others

A row is sent when its request has ended, and again when that changes. Of two versions of a row
every journal keeps the one that came furthest, then the one that changed last; so it makes no
difference how often and in which order they come. Sums are read in the journal, whether servers are
there or not: what is settled meanwhile waits in it, as long as it keeps rows.

Running rows are not sent: each would be a second message for each request, and an edge that was
killed settles its own when it starts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from skerry.errors import Unavailable
from skerry_edge.database import BUSY_SECONDS
from skerry_edge.ledger.usage_tables import STEPS, Outcome
from skerry_regions.drivers.jetstream.specs import key_of
from skerry_regions.drivers.jetstream.stream import KeyedStream, Stored, Write
from skerry_regions.drivers.sqlite_file import SqliteFile
from skerry_regions.process.cancellation import cancel_tasks

PAUSE_SECONDS = 0.5  # between two looks for what is to be sent, or taken
AWAY_SECONDS = 2.0  # the same, after one that failed
WRITE_SECONDS = 2.0
CLOSE_SECONDS = 5.0
BATCH_ROWS = 128  # of at most 2.5 KiB each, by the bound of a message
READS_AT_ONCE = 32
VERSION = 1

logger = logging.getLogger(__name__)


class UsageRow(Struct, frozen=True, array_like=True):
    """A settled row of the table `usage`: its columns. Later versions add theirs behind."""

    id: str
    edge: str
    tenant: str
    token: str
    model: str
    admitted: float
    settled: float
    outcome: Outcome
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    written_tokens: int
    written_cost: float
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    prompt_price: float
    cached_price: float
    output_price: float
    change: int


class UsageBatch(Struct, frozen=True, array_like=True):
    """A message."""

    version: int
    rows: list[UsageRow]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(UsageBatch)

_COLUMNS = UsageRow.__struct_fields__
_ORDER = ("output_tokens", "ABS({}change)", *(name for name in _COLUMNS if name not in (
    "id", "output_tokens", "change", "settled")), "settled")  # fmt: skip


def _furthest(table: str) -> str:
    """Return by what versions of a row are compared: all of it, so that no two are equal that
    differ. What is not settled comes before what is."""
    values = (name.format(f"{table}.") if "{" in name else f"{table}.{name}" for name in _ORDER)
    return f"({table}.outcome = 'completed', {', '.join(values)})"


PREPARE = """
CREATE INDEX IF NOT EXISTS usage_unsent ON usage (number) WHERE change > 0 AND settled IS NOT NULL
"""  # of a home with NATS servers alone: without, it would have every row
UNSENT = f"""
SELECT {", ".join(_COLUMNS)} FROM usage INDEXED BY usage_unsent
WHERE change > 0 AND settled IS NOT NULL ORDER BY number LIMIT {BATCH_ROWS}
"""
SENT = """
UPDATE usage SET change = -change WHERE id = ? AND change = ?
"""
SEND_AGAIN = """
UPDATE usage SET change = -change WHERE change < 0 AND life <> ''
    AND EXISTS (SELECT 1 FROM followed WHERE stream = ?)
"""
TAKE = f"""
INSERT INTO usage ({", ".join(_COLUMNS)}, life) VALUES ({"?, " * (len(_COLUMNS) - 1)}-?, '')
ON CONFLICT (id) DO UPDATE
SET {", ".join(f"{name} = excluded.{name}" for name in _COLUMNS)}, life = ''
WHERE {_furthest("excluded")} > {_furthest("usage")}
"""
FOLLOWED = """
SELECT sequence FROM followed WHERE stream = ? AND created = ? AND sequence <= ?
"""
FOLLOW = """
INSERT INTO followed (stream, created, sequence) VALUES (?, ?, 0)
ON CONFLICT (stream) DO UPDATE SET created = excluded.created, sequence = 0
"""
TAKEN = """
UPDATE followed SET sequence = MAX(sequence, ?) WHERE stream = ? AND created = ?
"""


class NatsUsage:
    """Sends and takes rows from `start` to `close`. Lives on the loop of its stream's connection,
    where nothing waits for it."""

    def __init__(self, path: Path, stream: KeyedStream, *, edge: str) -> None:
        """`path`: the journal, which edges of one home may share."""
        self._file = SqliteFile(path, STEPS, _prepare, is_durable=False, busy_seconds=BUSY_SECONDS)
        self._stream = stream
        self._key = key_of(edge)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(_repeat(work), name=f"usage {work.__name__}")
            for work in (self.send, self.take)
        ]

    async def close(self) -> None:
        """Send what is left, for as long as the servers take it; the rest is for the next start."""
        await cancel_tasks(*self._tasks)
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.send()
        await asyncio.to_thread(self._file.close)

    async def send(self) -> None:
        """Send what the others do not have. Raises `Unavailable`: some of it may be sent."""
        while rows := await asyncio.to_thread(self._unsent):
            batch = Write(self._key, _encode(UsageBatch(VERSION, rows)))
            await self._stream.write(batch, seconds=WRITE_SECONDS)
            await asyncio.to_thread(self._mark, rows)
            if len(rows) < BATCH_ROWS:
                return

    async def take(self) -> None:
        """Take what all have sent since. Raises `Unavailable`: some of it may be taken."""
        state = await self._stream.state()
        seen = await asyncio.to_thread(self._followed, state.created, state.last_sequence)
        while seen < state.last_sequence:
            numbers = range(seen + 1, min(seen + READS_AT_ONCE, state.last_sequence) + 1)
            found: list[Stored] = []
            for stored in await asyncio.gather(*map(self._stream.next, numbers)):
                if stored is None:  # or not yet, at a new leader: what follows is read again
                    break
                found.append(stored)
            if not found:
                return
            seen = found[-1].sequence
            await asyncio.to_thread(self._merge, found, state.created)

    # --- on threads -------------------------------------------------------------------------------

    def _unsent(self) -> list[UsageRow]:
        with self._file.reading() as database:
            return [UsageRow(*row) for row in database.execute(UNSENT)]

    def _mark(self, rows: Sequence[UsageRow]) -> None:
        """Note that rows were sent, but for those that have changed since."""
        with self._file.transaction() as database:
            database.executemany(SENT, [(row.id, row.change) for row in rows])

    def _followed(self, created: str, last: int) -> int:
        """Return the sequence up to which the stream was taken. One that was made again, or lost
        what it had, is sent all of this home's rows once more."""
        with self._file.reading() as database:
            row = database.execute(FOLLOWED, (self._stream.name, created, last)).fetchone()
        if row is not None:
            return int(row[0])
        with self._file.transaction() as database:
            database.execute(SEND_AGAIN, (self._stream.name,))
            database.execute(FOLLOW, (self._stream.name, created))
        return 0

    def _merge(self, found: Sequence[Stored], created: str) -> None:
        """Take messages into the journal, each whole and once."""
        rows = [row for stored in found for row in _rows(stored)]
        with self._file.transaction() as database:
            database.executemany(TAKE, map(msgspec.structs.astuple, rows))
            database.execute(TAKEN, (found[-1].sequence, self._stream.name, created))


def _prepare(database: sqlite3.Connection) -> None:
    database.execute(PREPARE)


def _rows(stored: Stored) -> list[UsageRow]:
    """Return a message's rows; one that is none of this version is left out."""
    try:
        batch = _decoder.decode(stored.data)
        if batch.version == VERSION:
            return batch.rows
        problem = f"version {batch.version}"
    except msgspec.MsgspecError as error:
        problem = str(error)
    logger.error("usage of %s, message %d: %s", stored.key, stored.sequence, problem)
    return []


async def _repeat(work: Callable[[], Awaitable[None]]) -> None:
    """Do it again and again, and log where it begins to fail."""
    is_failing = False
    while True:
        try:
            await work()
            is_failing = False
        except Exception as error:  # whatever it is, rows wait and are sent later
            if not is_failing:
                logger.warning("usage is not shared now: %r; it is tried again", error)
            is_failing = True
        await asyncio.sleep(AWAY_SECONDS if is_failing else PAUSE_SECONDS)
