"""The launcher of one machine: processes by name, which outlive whoever starts them.

    start    idempotent by name: who runs already is returned, and no second one started
    list     what runs, whoever has started it
    drain    let one take nothing new, and end when what it does is done
    stop     end one at once

Each process holds a lock on a file of its own from before its first instruction until its end,
however it ends. So whoever looks at the folder later knows what runs, a second process of the same
name cannot be started, and a recycled pid is taken for none of ours.

Whoever starts and stops has a term, above that of all before: of two that take themselves for the
supervisor, the one that was replaced meanwhile is refused, whatever it wakes up with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from msgspec.structs import replace

from skerry_regions.process.launch_folder import LaunchFolder, LaunchRecord
from skerry_regions.process.process_lock import locked
from skerry_regions.process.spawning import spawn

logger = logging.getLogger(__name__)


class Deposed(Exception):
    """A launcher of a later term has taken over; nothing was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a process is to execute."""

    command: list[str]
    environ: Mapping[str, str]
    log: Path
    descriptors: Sequence[int] = ()  # to inherit, under their numbers


class LaunchedProcess:
    """One process that runs, or ran."""

    def __init__(self, record: LaunchRecord, pid: int) -> None:
        self.record = record
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.returncode: int | None = None  # of a child of ours
        self.has_ended = asyncio.Event()

    async def wait(self) -> int | None:
        """Wait for its end; return its status, which only its parent knows."""
        await self.has_ended.wait()
        return self.returncode

    @property
    def seconds(self) -> float:
        """Return how long ago it was started."""
        return boot_time() - self.record.started

    def send_signal(self, number: signal.Signals) -> None:
        """Raises ProcessLookupError."""
        if self.has_ended.is_set():
            raise ProcessLookupError
        signal.pidfd_send_signal(self.pidfd, number)


class LocalLauncher:
    """Lives on one event loop. Whatever runs in its folder is known from the beginning."""

    def __init__(
        self,
        folder: LaunchFolder,
        term: int,
        *,
        ended: Callable[[LaunchedProcess], None] = lambda process: None,
    ) -> None:
        """`ended` is called on the loop when a process has. Raises Deposed, or OSError."""
        self._folder = folder
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, LaunchedProcess] = {}
        self.claim(term)
        for record, pid in folder.running():
            with contextlib.suppress(ProcessLookupError):  # it ended this moment
                self._know(LaunchedProcess(record, pid))
                logger.info("adopted %s, process %d", record.id, pid)

    def claim(self, term: int) -> None:
        """Launch for whoever has this term from now on. Raises Deposed, or OSError."""
        self._term = term
        self._fence()
        self._folder.claim(term)

    def list(self) -> Mapping[str, LaunchedProcess]:
        """Return what runs, by name."""
        return MappingProxyType(self._known)

    def start(
        self, record: LaunchRecord, program: Callable[[], Program]
    ) -> tuple[LaunchedProcess, bool]:
        """Return the process of the record's name, and whether it was started now.

        `program` is called once no one else can start one of this name. Raises OSError where none
        can be started, or Deposed.
        """
        self._fence()
        if (running := self._known.get(record.id)) is not None:
            return running, False
        lock = locked(self._folder.path(record.id, "lock"))
        try:
            what = program()
            self._write(record)
            pid = spawn(what.command, what.environ, what.log, [lock, *what.descriptors])
        finally:
            os.close(lock)  # ours; the process keeps its own
        process = LaunchedProcess(record, pid)
        self._know(process)
        return process, True

    def drain(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """Signal a process to end when it has drained. Of none such: nothing. Raises Deposed."""
        self._fence()
        if (process := self._known.get(name)) is not None:
            if process.record.draining_since is None:
                self.note(process, replace(process.record, draining_since=boot_time()))
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(how)

    def stop(self, name: str) -> None:
        """Kill a process. Of none such: nothing. Raises Deposed."""
        self._fence()
        if (process := self._known.get(name)) is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)

    def note(self, process: LaunchedProcess, record: LaunchRecord) -> None:
        """Change what is known of a process, in memory and, while it runs, on disk."""
        process.record = record
        if not process.has_ended.is_set():
            self._write(record)

    def close(self) -> None:
        """Let go of what runs; it goes on."""
        for process in [*self._known.values()]:
            self._let_go(process)
        self._folder.close()

    def _write(self, record: LaunchRecord) -> None:
        try:
            self._folder.write(record)
        except OSError as error:  # a full disk: the next launcher knows less
            logger.warning("%s is not written down: %s", record.id, error)

    def _fence(self) -> None:
        if (term := self._folder.term) > self._term:
            raise Deposed(f"another has taken over (its term is {term}, ours {self._term})")

    def _know(self, process: LaunchedProcess) -> None:
        self._known[process.record.id] = process
        self._loop.add_reader(process.pidfd, self._has_ended, process)

    def _has_ended(self, process: LaunchedProcess) -> None:
        with contextlib.suppress(ChildProcessError):  # adopted: its parent has died
            _, status = os.waitpid(process.pid, os.WNOHANG)
            process.returncode = os.waitstatus_to_exitcode(status)
        self._let_go(process)
        if process.record.draining_since is not None:
            self._folder.remove(process.record.id)
        # Else one of its name comes next, whose record may have no room but that of this one.
        process.has_ended.set()
        self._ended(process)

    def _let_go(self, process: LaunchedProcess) -> None:
        self._known.pop(process.record.id, None)
        self._loop.remove_reader(process.pidfd)
        os.close(process.pidfd)


def boot_time() -> float:
    """Return seconds since the machine's boot, those that it slept included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
