"""The store of one of several control planes: the file is a picture of a log that they all share.

    lead      append that a term begins ─▶ from here on no control plane of a lower term can append
    write     transaction in the file ─▶ append its rows behind what was read ─▶ commit
    follow    read on ─▶ change the same rows, one transaction for each of theirs

An append says behind which sequence it belongs, and the servers refuse all others. So whoever was
replaced while it slept, or has not read everything, writes nothing. Where an answer is lost, the
same bytes are sent until the outcome is known; where that takes too long the file is left as it
was, and reading on shows it.

Every `PICTURE_EVERY` transactions the leader stores its whole database beside the log. Control
planes begin with the newest of these.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from skerry_regions.control.desired.backup import backup
from skerry_regions.control.desired.migrations import VERSION, migrate
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.transaction_log import Outdated, TransactionLog
from skerry_regions.control.desired.transactions import (
    FORMAT,
    TABLES,
    Transaction,
    Unreadable,
    changed_rows,
    decoded,
    encoded,
    note_changes,
    replace_all,
    take_in,
)
from skerry_regions.control.desired.writing import Writing
from skerry_regions.control.errors import Busy, NotLeading
from skerry_regions.drivers.jetstream.stream import Stored

PICTURE_EVERY = 1000  # transactions
MAX_PICTURE_BYTES = 1 << 30
POSITION = "SELECT sequence FROM log_position WHERE stream = ?"
USED = ("audit", "resources", "machines", "join_tokens")

logger = logging.getLogger(__name__)


class UnfitLog(Exception):
    """The log cannot be followed with this file; the message says why and what to do."""


class LoggedStore(Store):
    """A `Store` that writes while it leads. Safe to use from several threads."""

    def __init__(
        self,
        path: Path,
        log: TransactionLog,
        *,
        clock: Callable[[], float] = time.time,
        picture_every: int = PICTURE_EVERY,
    ) -> None:
        """Open, and read the log to its end, unless its servers cannot be used now. Raises what
        `Store` does, NewerSchema or UnfitLog."""
        self._log = log
        self._picture_every = picture_every
        self._term = 0  # that we lead in; 0: we do not
        super().__init__(path, clock=clock)
        try:
            note_changes(self._database)
            with contextlib.suppress(Busy):
                self.check_log()
                self.read_on()
        except BaseException:
            self.close()
            raise

    @property
    def sequence(self) -> int:
        """Return that of the last transaction in the file."""
        rows = self.select(POSITION, (self._log.name,))
        return int(rows[0][0]) if rows else 0

    @property
    def term(self) -> int:
        """Return the term that this control plane leads in; 0 when it does not lead."""
        return self._term

    # --- leading ---------------------------------------------------------------------------------

    def next_term(self, above: int) -> int:
        """Begin to lead, and return the term. What the file had before there was a log is the
        log's beginning. Raises Busy where another was faster, or UnfitLog."""
        self.read_on()
        if not self.sequence and self._is_used():
            self._replace(self._copy(), term=0)
        self._term = 1  # for one transaction, which says which it is
        try:
            with self.writing() as writing:
                self._term = term = writing.next_term(above)
        except BaseException:
            self._term = 0
            raise
        return term

    def resign(self) -> None:
        """End the lead."""
        self._term = 0

    @contextmanager
    def writing(self) -> Generator[Writing]:
        """Open one transaction: all of it is kept, or nothing. Raises NotLeading, or Busy."""
        if not self._term:
            raise NotLeading("another control plane leads")
        try:
            with super().writing() as writing:
                yield writing
        except Outdated:
            self.read_on()
            if not self._term:
                raise NotLeading("another control plane leads now") from None
            raise Busy("what is wanted was changed meanwhile: try again") from None

    def replace(self, database: Path) -> None:
        """Have all control planes want what a copy of a database says, while leading. Raises Busy,
        sqlite3.Error, OSError or NewerSchema."""
        with contextlib.closing(sqlite3.connect(database)) as copy:
            self._replace(_packed(copy), term=self._term)

    def keep_picture(self) -> bool:
        """Store the whole database for those that begin, if that is due; return whether it was.
        Raises Busy."""
        made = self._log.pictures()
        if self.sequence < (made[-1] if made else 0) + self._picture_every:
            return False
        sequence, picture = self.sequence, self._copy()  # which may have more: it is read again
        self._log.keep_picture(f"after.{sequence}", picture)
        self._log.forget_pictures()
        return True

    def _keep(self) -> None:
        rows = changed_rows(self._database)
        if not rows:
            return
        if not self._term:  # since this transaction began to wait for the one before it
            raise NotLeading("another control plane leads now")
        ((term,),) = self._database.execute("SELECT value FROM counters WHERE name = 'term'")
        transaction = Transaction(FORMAT, VERSION, term, rows)
        self._move(self._log.append(encoded(transaction), self._position()))

    def _replace(self, picture: bytes, *, term: int) -> None:
        name = f"replacing.{secrets.token_hex(8)}"
        self._log.keep_picture(name, picture)
        data = encoded(Transaction(FORMAT, VERSION, term, [], name))
        try:
            sequence = self._log.append(data, self.sequence)
        except Outdated:
            raise Busy("what is wanted was changed meanwhile: try again") from None
        self._take(Stored("", data, sequence))

    # --- following -------------------------------------------------------------------------------

    def read_on(self) -> None:
        """Take in what others have appended. Raises Busy, NewerSchema or UnfitLog."""
        while (stored := self._log.next(self.sequence + 1)) is not None:
            if stored.sequence == self.sequence + 1 and (self.sequence or not self._is_used()):
                self._take(stored)
            elif stored.sequence > self.sequence:
                self._begin()

    def check_log(self) -> None:
        """Start over with a log that was made again and is not empty; the file is copied first.
        Raises UnfitLog for one that has lost what it had; or Busy."""
        state, sequence = self._log.state(), self.sequence
        rows = self.select("SELECT created FROM log_position WHERE stream = ?", (self._log.name,))
        if not rows or (state.created == rows[0][0] and state.last_sequence >= sequence):
            return
        if state.created == rows[0][0] or not state.last_sequence:
            raise UnfitLog(
                f"the log {self._log.name} has lost what it had acknowledged: {self.path} knows "
                f"{sequence} transactions, the log {state.last_sequence}; `skerry control backup` "
                "copies the file, and `skerry control restore` puts that into the log"
            )
        copy = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        backup(self.path, copy)
        logger.warning("%s was made again; the former desired state is in %s", self._log.name, copy)
        with self._transaction():
            for table in (*TABLES, "log_position"):
                self._database.execute(f"DELETE FROM {table}")
            self._database.execute("INSERT INTO counters VALUES ('revision', 0)")
            changed_rows(self._database)  # these changes belong to no transaction

    def _begin(self) -> None:
        """Begin with the newest picture beside the log."""
        if not self.sequence and self._is_used():
            raise UnfitLog(
                f"{self.path} has another desired state than the log {self._log.name}, and was "
                "never a part of it: move it away, or `skerry control restore` a copy of it"
            )
        made = self._log.pictures()
        picture = self._log.picture(f"after.{made[-1]}") if made else None
        if picture is None or made[-1] <= self.sequence:
            raise UnfitLog(f"the log {self._log.name} goes back only to what has no picture")
        with self._attached(picture), self._transaction():
            replace_all(self._database)
            self._move(made[-1])

    def _take(self, stored: Stored) -> None:
        try:
            transaction = decoded(stored.data)
        except Unreadable as error:
            raise UnfitLog(f"{self._log.name}: message {stored.sequence}: {error}") from None
        picture = self._log.picture(transaction.picture) if transaction.picture else b""
        if picture is None:
            return self._begin()  # with what came after it
        with self._attached(picture), self._transaction():
            if stored.sequence != self._position() + 1:
                return  # it was our own
            if transaction.picture:
                replace_all(self._database)
            take_in(self._database, transaction)
            self._move(stored.sequence)
            if transaction.term > self._term:
                self._term = 0  # before anything can be appended behind it

    def _move(self, sequence: int) -> None:
        """Note, within a transaction, up to where the file is the log's picture."""
        name = self._log.name
        if not self._position():
            self._database.execute(
                "INSERT OR REPLACE INTO log_position VALUES (?, ?, 0)",
                (name, self._log.state().created),
            )
        self._database.execute(
            "UPDATE log_position SET sequence = ? WHERE stream = ?", (sequence, name)
        )

    def _position(self) -> int:
        """Return the sequence of the last transaction, within a transaction."""
        row = self._database.execute(POSITION, (self._log.name,)).fetchone()
        return int(row[0]) if row else 0

    def _is_used(self) -> bool:
        """Return whether anything was ever wanted here."""
        return any(self.select(f"SELECT 1 FROM {table} LIMIT 1") for table in USED)

    def _copy(self) -> bytes:
        with self.reading() as reader:
            return _packed(reader)

    @contextmanager
    def _attached(self, picture: bytes) -> Generator[None]:
        """Attach a picture, of whatever schema before ours; none if it is empty."""
        if not picture:
            yield
            return
        with self._lock, tempfile.TemporaryDirectory(dir=self.path.parent) as folder:
            path = Path(folder) / "picture.db"
            path.touch(mode=0o600)
            path.write_bytes(zlib.decompressobj().decompress(picture, MAX_PICTURE_BYTES))
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
                migrate(database, Path(folder))
            self._database.execute("ATTACH DATABASE ? AS picture", (str(path),))
            try:
                yield
            finally:
                self._database.execute("DETACH DATABASE picture")


def _packed(database: sqlite3.Connection) -> bytes:
    """Return a database, whole at one moment."""
    with contextlib.closing(sqlite3.connect(":memory:")) as copy:
        database.backup(copy)
        return zlib.compress(copy.serialize())
