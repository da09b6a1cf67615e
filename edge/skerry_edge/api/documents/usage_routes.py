"""`GET …/ai/usage`: what the caller's account used, by the journal of this edge's zone."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import Response

from skerry.errors import InvalidInput, Overloaded, Unavailable
from skerry_edge.api.edge_request import edge_of, principal_of
from skerry_edge.envelopes import JSONBytes, encode, envelope
from skerry_edge.ledger.usage_journal import UsageJournal
from skerry_edge.ledger.usage_report import dimensions_of, reading, since_of, totals

DEFAULT_SINCE = "30d"
TURN_SECONDS = 5.0  # that a request waits for others' reports
FLUSH_SECONDS = 0.5  # that it waits for what was reported before it
READ_SECONDS = 2.0  # that a report may be read


async def usage(request: Request) -> Response:
    """Return sums of the account's requests since `since`, one for each value of the dimensions
    `by`."""
    edge = edge_of(request)
    tenant = principal_of(request).account_id
    journal = edge.stores.journal
    if journal is None:
        raise Unavailable("This edge keeps no usage journal.")
    try:
        by = dimensions_of(request.query_params.get("by", ""))
        since = since_of(request.query_params.get("since", DEFAULT_SINCE), edge.wall_clock())
    except ValueError as error:
        raise InvalidInput(f"Bad input: {error}") from None

    def read() -> bytes:
        with reading(journal.path, READ_SECONDS) as database:
            return encode(totals(database, by, since=since, tenant=tenant))

    async with _turn(journal):
        try:
            return JSONBytes(envelope(await asyncio.to_thread(read)))
        except (sqlite3.Error, OSError) as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                raise InvalidInput(
                    f"Bad input: since: the sums of so long a time take more than {READ_SECONDS:g}"
                    " seconds; ask for a shorter one",
                    param="since",
                ) from None
            raise Unavailable("The usage journal cannot be read now.") from error


@asynccontextmanager
async def _turn(journal: UsageJournal) -> AsyncGenerator[None]:
    """Wait for a turn: one report is read at a time, and soon after what was reported before it is
    on disk.

    No thread waits for either. Raises `Overloaded`.
    """
    try:
        async with asyncio.timeout(TURN_SECONDS):
            await journal.reporting.acquire()
    except TimeoutError:
        raise Overloaded("Too many requests for usage now.", retry_after=TURN_SECONDS) from None
    try:
        with contextlib.suppress(TimeoutError):  # the disk is slow: the sums are of what it has
            async with asyncio.timeout(FLUSH_SECONDS):
                await asyncio.wrap_future(journal.written())
        yield
    finally:
        journal.reporting.release()
