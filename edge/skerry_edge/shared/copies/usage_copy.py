"""Usage, which a home and NATS servers exchange as its edges do: rows go both ways until both have
all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from skerry_edge.database import BUSY_SECONDS
from skerry_edge.ledger.usage_tables import STEPS
from skerry_edge.shared.copies.tables import CopiedTable
from skerry_edge.shared.nats_usage import NatsUsage
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.sqlite_file import SqliteFile

SENDER = "state-copy"  # in the place of an edge
SEND_ALL = "UPDATE usage SET change = ABS(change) WHERE change < 0"
SETTLED = "SELECT id FROM usage WHERE settled IS NOT NULL"


def send_all_again(journal: Path) -> None:
    """Have rows sent that other servers have got, of whatever home."""
    if journal.exists():
        file = SqliteFile(journal, STEPS, busy_seconds=BUSY_SECONDS)
        with file.transaction() as database:
            database.execute(SEND_ALL)
        file.close()


async def copy_usage(
    journal: Path, stream: KeyedStream, *, is_leaving: bool, progress: Callable[[int, int], None]
) -> CopiedTable:
    """Have all rows in the journal and in the stream; `is_leaving`: the journal is the source."""
    before = settled(journal)
    await exchange(journal, stream)
    after = settled(journal)
    shared = await shared_rows(stream)
    source, destination = (after, shared) if is_leaving else (shared, after)
    progress(len(source & destination), len(source))
    written = len(after - before) if not is_leaving else len(before)
    return CopiedTable("usage", len(source), written, len(source - destination))


async def exchange(journal: Path, stream: KeyedStream) -> None:
    """Send what the others lack, and take what they have sent. Raises `Unavailable`."""
    usage = NatsUsage(journal, stream, edge=SENDER)
    try:
        await usage.take()
        await usage.send()
        await usage.take()
    finally:
        await usage.close()


async def shared_rows(stream: KeyedStream) -> set[str]:
    """Return the ids of what has been sent."""
    with tempfile.TemporaryDirectory() as folder:
        usage = NatsUsage(Path(folder) / "usage.db", stream, edge=SENDER)
        try:
            await usage.take()
        finally:
            await usage.close()
        return settled(Path(folder) / "usage.db")


async def shared_length(stream: KeyedStream) -> int:
    """Return of how many requests the usage has been sent. Raises `Unavailable`."""
    return len(await shared_rows(stream))


def settled(journal: Path) -> set[str]:
    """Return the ids of requests that have ended."""
    if not journal.exists():
        return set()
    file = SqliteFile(journal, STEPS, busy_seconds=BUSY_SECONDS)
    with file.reading() as database:
        found = {id for (id,) in database.execute(SETTLED)}
    file.close()
    return found
