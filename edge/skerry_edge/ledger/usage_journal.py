"""The usage journal: what each request cost, written down when it is admitted and when it ends.

    admit ──▶ row "running" ──▶ tokens so far, once a second ──▶ settle: row with its outcome
                  └── the edge dies ──▶ at its next start the row is settled as "aborted"

A row is one request, whatever happened to it: a stream that went on elsewhere after a failure is
settled once, and a retry with the same `Idempotency-Key` has the row of the first attempt. Rows are
written by a thread, in batches: what an edge was given within its last few milliseconds dies with
it. Prices stand in the row, so a later price does not change what was.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from skerry_edge.database import BUSY_SECONDS
from skerry_edge.ledger.usage_tables import (
    ADMIT,
    CHAIN,
    CLOSE,
    PROGRESS,
    SETTLE,
    SETTLE_DEAD,
    SETTLE_LOST,
    STEPS,
    Amount,
    Outcome,
    Statement,
    execute,
)
from skerry_regions.drivers.sqlite_file import open_database
from skerry_regions.drivers.sqlite_steps import transaction
from skerry_regions.models.catalog import Price

KEEP_SECONDS = 90 * 24 * 3600.0
MAX_ROWS = 4_000_000  # about 400 bytes each with its indices, and 50 to 600 of a chain
MAX_WAITING = 65_536  # statements, while the disk does not take them
MAX_UNNAMED = 256  # statements that wait, beyond which prompts do not wait with them
BATCH_SECONDS = 0.005  # in which statements gather
PROGRESS_SECONDS = 1.0
PRUNE_SECONDS = 3600.0
LONGEST_SECONDS = 24 * 3600.0  # no request takes so long
RETRY_SECONDS = 1.0  # after a write that failed
CLOSE_SECONDS = 5.0

logger = logging.getLogger(__name__)


class UsageEntry:
    """The row of one request. `progress` returns the output tokens so far, from any thread."""

    def __init__(self, journal: UsageJournal, id: str, progress: Callable[[], int]) -> None:
        self.id = id
        self.progress = progress
        self._journal = journal
        self._is_settled = False

    def settle(self, outcome: Outcome, amount: Amount) -> None:
        """Settle the request, which has ended. Idempotent, and returns at once."""
        if not self._is_settled:
            self._is_settled = True
            self._journal.settle(self, outcome, amount)


class UsageJournal:
    """The journal of one edge, in a file that the edges of a zone share.

    `admit` and `settle` belong to one event loop; neither waits nor fails. When the disk takes
    nothing for so long that `MAX_WAITING` statements wait, the oldest are lost, and said so.
    """

    def __init__(
        self,
        path: Path,
        *,
        edge: str,
        keep_seconds: float = KEEP_SECONDS,
        max_rows: int = MAX_ROWS,
        keeps_chains: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives Unix seconds: rows outlive the process. `keeps_chains`: of prompts, for
        replays."""
        self.path = path
        self._edge = edge
        self._life = secrets.token_hex(8)  # distinguishes this process from its predecessors
        self._keep_seconds = keep_seconds
        self._max_rows = max_rows
        self._keeps_chains = keeps_chains
        self._clock = clock
        self.reporting = asyncio.Lock()  # held by who reads sums, which may take long
        self._live: set[UsageEntry] = set()
        self._waiting: deque[Statement | Future[None]] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._num_lost = 0
        self._failing_since: float | None = None  # seconds, monotonic
        # Of the writer alone.
        self._written_progress: dict[UsageEntry, int] = {}
        self._next_progress = self._next_prune = time.monotonic()
        self._writer = threading.Thread(target=self._write, name="usage-journal", daemon=True)
        self._writer.start()

    def admit(
        self,
        id: str,
        *,
        tenant: str,
        token: str,
        model: str,
        prompt_tokens: int,
        price: Price,
        progress: Callable[[], int] = lambda: 0,
        chain: Callable[[], bytes] | None = None,
    ) -> UsageEntry:
        """Open the row of a request that begins. `progress` is called on another thread, for its
        output tokens so far; so is `chain`, once, for that of its prompt."""
        entry = UsageEntry(self, id, progress)
        self._live.add(entry)
        self._put(
            (
                ADMIT,
                (id, self._edge, self._life, tenant, token, model, self._clock(), prompt_tokens,
                 price.prompt, price.cached, price.output),
            )
        )  # fmt: skip
        if chain is not None and self._keeps_chains and len(self._waiting) < MAX_UNNAMED:
            self._put((CHAIN, lambda: (chain(), id)))
        return entry

    def settle(self, entry: UsageEntry, outcome: Outcome, amount: Amount) -> None:
        """See `UsageEntry.settle`."""
        self._live.discard(entry)
        values: dict[str, str | float] = {
            "id": entry.id, "outcome": outcome, "now": self._clock(),
            "prompt": amount.prompt_tokens, "cached": amount.cached_tokens,
            "output": amount.output_tokens, "queue": amount.queue_seconds,
            "prefill": amount.prefill_seconds, "decode": amount.decode_seconds,
            "written": amount.written_tokens, "written_cost": amount.written_dollars,
        }  # fmt: skip
        self._put((SETTLE, values), (CLOSE, values))

    def written(self) -> Future[None]:
        """Return a future that is done when all entries are on disk."""
        written: Future[None] = Future()
        self._waiting.append(written)
        self._wake.set()
        return written

    @property
    def seconds_unwritten(self) -> float:
        """Return for how many seconds nothing could be written; 0 while all is well."""
        since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    def close(self) -> None:
        """Write what is left, and end the thread; what still runs is settled as aborted later."""
        self._closing = True
        self._wake.set()
        self._writer.join(CLOSE_SECONDS)

    def _put(self, *statements: Statement) -> None:
        for statement in statements:
            if len(self._waiting) >= MAX_WAITING:
                self._waiting.popleft()
                self._num_lost += 1
            self._waiting.append(statement)
        if not self._wake.is_set():
            self._wake.set()

    # --- the writer's thread ---------------------------------------------------------------------

    def _write(self) -> None:
        database: sqlite3.Connection | None = None
        closing = False
        while not closing or self._waiting:
            closing = self._gather()
            batch = self._drain()
            try:
                database = database or self._open()
                self._commit(database, batch)
            except Exception as error:  # whatever it is, the thread must live to try again
                if self._failing_since is None:
                    self._failing_since = time.monotonic()
                logger.error("the usage journal cannot be written: %r", error)
                self._waiting.extendleft(reversed(batch))
                if closing:
                    break
                time.sleep(RETRY_SECONDS)
            else:
                self._failing_since = None
                self._tend(database)
                for statement in batch:
                    if isinstance(statement, Future) and statement.set_running_or_notify_cancel():
                        statement.set_result(None)
        if database is not None:
            database.close()

    def _gather(self) -> bool:
        """Wait for statements, or for the time to note progress; whether these are the last."""
        self._wake.wait(PROGRESS_SECONDS)
        closing = self._closing
        self._wake.clear()
        if not closing:
            time.sleep(BATCH_SECONDS)
        return closing

    def _commit(self, database: sqlite3.Connection, batch: list[Statement | Future[None]]) -> None:
        """Write a batch, without the statements that can never be written. Raises what is wrong
        with the file, and then nothing was written."""
        with transaction(database, "BEGIN"):
            for statement in batch:
                if not isinstance(statement, Future):
                    execute(database, statement)
        if self._num_lost:
            logger.error("%d statements of the usage journal were lost", self._num_lost)
            self._num_lost = 0

    def _tend(self, database: sqlite3.Connection) -> None:
        """Do what is due; what fails is tried again when it is due again."""
        now = time.monotonic()
        if now >= self._next_progress:
            self._next_progress = now + PROGRESS_SECONDS
            _try(database, self._note_progress)
        if now >= self._next_prune:
            self._next_prune = now + PRUNE_SECONDS
            _try(database, self._prune)

    def _drain(self) -> list[Statement | Future[None]]:
        batch = []
        while self._waiting:
            batch.append(self._waiting.popleft())
        return batch

    def _open(self) -> sqlite3.Connection:
        """Return the file; rows of this edge's dead predecessors are settled with what is known."""
        database = open_database(self.path, STEPS, is_durable=False, busy_seconds=BUSY_SECONDS)
        with transaction(database, "BEGIN"):
            database.execute(SETTLE_DEAD, (self._clock(), self._edge, self._life))
        return database

    def _note_progress(self, database: sqlite3.Connection) -> None:
        known = self._written_progress
        current = {entry: entry.progress() for entry in list(self._live)}
        changed = [(n, entry.id) for entry, n in current.items() if n != known.get(entry, 0)]
        database.executemany(PROGRESS, changed)
        self._written_progress = current

    def _prune(self, database: sqlite3.Connection) -> None:
        """Forget what is old, and settle what edges left that never came back."""
        now = self._clock()
        database.execute(SETTLE_LOST, (now, now - LONGEST_SECONDS))
        database.execute("DELETE FROM usage WHERE admitted < ?", (now - self._keep_seconds,))
        database.execute(
            "DELETE FROM usage WHERE number <= (SELECT MAX(number) FROM usage) - ?",
            (self._max_rows,),
        )


def _try(database: sqlite3.Connection, work: Callable[[sqlite3.Connection], None]) -> None:
    try:
        with transaction(database, "BEGIN"):
            work(database)
    except Exception:
        logger.exception("the usage journal is not tended")
