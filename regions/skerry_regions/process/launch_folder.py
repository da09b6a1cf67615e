"""The files of launched processes.

FOLDER/ID.lock    held by the process
       ID.json    what it was launched as (`LaunchRecord`)
FOLDER.term       the highest term of whoever launches there
FOLDER.placed     where all are, which edges read
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from skerry_regions.process.process_lock import holder, locked
from skerry_regions.zones import GLOBAL

LaunchedKind = Literal["node", "edge", "dns", "relays"]
HOLDER_SECONDS = 1.0  # in which whoever holds a lock is found: not while it begins, or ends
LOOK_SECONDS = 0.01
# The lock last: it guards the others.
FILES = ("json", "draft", "prompts", "topology", "relays", "lock")


class Slot(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a host offers, or what one node has of it."""

    cpus: Annotated[int, Meta(ge=0, le=65_536)]
    memory: Annotated[int, Meta(ge=0, le=1 << 50)] = 0  # bytes
    gpus: Annotated[tuple[Annotated[int, Meta(ge=0, le=1023)], ...], Meta(max_length=1024)] = ()
    """By number, as NVIDIA's tools count them."""


class LaunchRecord(Struct, frozen=True, kw_only=True):
    """What a process was launched as. Times are the machine's boot clock's."""

    id: str
    owner: str  # whose process it is: a pool, an edge; several of one owner may run at once
    kind: LaunchedKind
    region: str
    fingerprint: str  # of all that decides what it is
    address: str
    control: str  # where it answers health checks …
    tls: bool = False  # … and whether by TLS
    residency: str = GLOBAL
    model: str = ""  # of a node
    gateway: str = ""  # of an edge, where it takes other regions' streams
    started: float
    incarnation: int = 0  # of a node on a host …
    slot: Slot | None = None  # … and what it has of it
    was_ready: bool = False
    draining_since: float | None = None


class LaunchFolder:
    """What is written of the processes of one supervisor. It is made when it is first claimed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._term = root.with_suffix(".term")
        self.placed = root.with_suffix(".placed")

    @classmethod
    def of_fleet(cls, home: Path) -> LaunchFolder:
        """Return that of `skerry up --topology` before 0.2."""
        return cls(home / "run" / "supervised")

    @classmethod
    def of_control(cls, home: Path) -> LaunchFolder:
        """Return that of the control plane."""
        return cls(home / "run" / "launched")

    def path(self, id: str, kind: str) -> Path:
        """Return where the file `kind` (of `FILES`) of a process lies."""
        return self.root / f"{id}.{kind}"

    def running(self) -> Generator[tuple[LaunchRecord, int]]:
        """Yield what runs, with its pid; what has ended is cleared away.

        A process whose record cannot be read is left alone.
        """
        for lock in sorted(self.root.glob("*.lock")):
            deadline = time.monotonic() + HOLDER_SECONDS
            while self._is_held(lock):
                if (pid := holder(lock)) is not None:
                    with contextlib.suppress(OSError, msgspec.DecodeError):
                        yield self.read(lock.stem), pid
                    break
                if time.monotonic() > deadline:
                    break  # by what it has started: it is not ours to end
                time.sleep(LOOK_SECONDS)
            else:
                self.remove(lock.stem)

    def _is_held(self, lock: Path) -> bool:
        try:
            os.close(locked(lock))
        except BlockingIOError:
            return True
        return False

    def read(self, id: str) -> LaunchRecord:
        """Raises OSError or msgspec.DecodeError."""
        return msgspec.json.decode(self.path(id, "json").read_bytes(), type=LaunchRecord)

    def write(self, record: LaunchRecord) -> None:
        """Replace a record. Raises OSError where there is no room, and none of before."""
        draft = self.path(record.id, "draft")
        replace_file(self.path(record.id, "json"), draft, msgspec.json.encode(record))

    def remove(self, id: str) -> None:
        """Remove everything of a process that has ended."""
        for kind in FILES:
            self.path(id, kind).unlink(missing_ok=True)

    @property
    def term(self) -> int:
        """Return the highest that has launched here; 0 where none has."""
        try:
            return int(self._term.read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def claim(self, term: int) -> None:
        """Refuse everybody of a lower term from now on. Raises OSError."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._term, self._term.with_suffix(".term-draft"), str(term).encode())

    def close(self) -> None:
        """Remove what was written, and the folder, unless what runs on uses it."""
        for _ in self.running():
            pass  # what has ended is cleared away
        with contextlib.suppress(OSError):
            self.root.rmdir()
            self._term.unlink(missing_ok=True)
            self.placed.unlink(missing_ok=True)


def replace_file(path: Path, draft: Path, data: bytes) -> None:
    """Replace a file whole: we may die at any moment. On a full disk it is written in its place."""
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        if not path.exists():
            raise
        with path.open("r+b") as file:
            file.write(data)
            file.truncate()
