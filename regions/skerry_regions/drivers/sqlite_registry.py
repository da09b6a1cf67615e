"""The registry of one machine: a SQLite file in write-ahead mode, shared by its processes.

Time is the machine's boot clock, the same in every process and unmoved by a change of the hour.
After a reboot the clock starts again, so records of an earlier boot are known by its id, and void.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from skerry_regions.drivers.sqlite_file import open_database
from skerry_regions.process.local_launcher import boot_time
from skerry_regions.registry import LEASE_SECONDS, Member, RegistryUnavailable

logger = logging.getLogger(__name__)

_STEPS = (
    """
CREATE TABLE IF NOT EXISTS members (
    id TEXT PRIMARY KEY, boot TEXT NOT NULL, incarnation INTEGER NOT NULL,
    expires REAL NOT NULL, member BLOB NOT NULL
) WITHOUT ROWID;
""",
)
BUSY_SECONDS = 2.0


def boot_id() -> str:
    """Return what names this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class SqliteRegistry:
    """See `Registry`. Safe to use from several threads and processes.

    The file may be deleted or replaced while it is used: the next access opens what is there then.
    """

    def __init__(
        self, path: Path, *, clock: Callable[[], float] = boot_time, boot: str | None = None
    ) -> None:
        """The file is opened when it is first needed: whoever starts while its disk is full is in
        the registry when there is room."""
        self._path = path
        self._clock = clock
        self._boot = boot if boot is not None else boot_id()
        self._lock = threading.Lock()
        self._unread: set[str] = set()  # ids of records that cannot be read, and this was logged
        self._decoder = msgspec.msgpack.Decoder(Member)
        self._database: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # device and inode of what is open

    def announce(self, member: Member, lease_seconds: float = LEASE_SECONDS) -> int:
        record = (
            member.id, self._boot, member.incarnation,
            self._clock() + lease_seconds, msgspec.msgpack.encode(member),
        )  # fmt: skip
        with self._access() as database:
            database.execute(
                "INSERT INTO members VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
                " boot = excluded.boot, incarnation = excluded.incarnation,"
                " expires = excluded.expires, member = excluded.member"
                " WHERE members.boot <> excluded.boot"
                " OR members.incarnation <= excluded.incarnation",
                record,
            )
            held = database.execute("SELECT incarnation FROM members WHERE id = ?", (member.id,))
            row = held.fetchone()
        return member.incarnation if row is None else int(row[0])

    def withdraw(self, member_id: str, incarnation: int) -> None:
        with self._access() as database:
            database.execute(
                "DELETE FROM members WHERE id = ? AND incarnation <= ?", (member_id, incarnation)
            )

    def members(self) -> list[Member]:
        with self._access() as database:
            rows = database.execute(
                "SELECT id, member FROM members WHERE boot = ? AND expires > ? ORDER BY id",
                (self._boot, self._clock()),
            ).fetchall()
        self._unread &= {id_ for id_, _ in rows}
        read = [self._read(id_, record) for id_, record in rows]
        return [member for member in read if member is not None]

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _read(self, id_: str, record: bytes) -> Member | None:
        """Read a record; None of one that another version of Skerry wrote: the others are there all
        the same."""
        try:
            member = self._decoder.decode(record)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if id_ not in self._unread:
                logger.warning("%s: the record of %r cannot be read: %s", self._path, id_, error)
            self._unread.add(id_)
            return None
        self._unread.discard(id_)
        return member

    @contextmanager
    def _access(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connected()
            except (sqlite3.Error, OSError) as error:
                self._disconnect()
                raise RegistryUnavailable(f"{self._path}: {error}") from error

    def _connected(self) -> sqlite3.Connection:
        if self._database is None or self._file != _identity(self._path):
            self._disconnect()
            self._database = _open(self._path)
            self._file = _identity(self._path)
        return self._database

    def _disconnect(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = None


def _open(path: Path) -> sqlite3.Connection:
    database = open_database(path, _STEPS, is_durable=False, busy_seconds=BUSY_SECONDS)
    database.execute("PRAGMA synchronous = OFF")  # leases do not outlive a boot
    return database


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino
