"""The process that runs the platform of a home.

"Running" means that a process holds the lock: the kernel lets go of it however the process ends, so
a record left behind by `kill -9` is never mistaken for a running platform, nor a recycled pid.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

from msgspec import Struct

from skerry_cli.home.errors import StateError
from skerry_cli.home.room import give_up_room, has_room, keep_room
from skerry_cli.home.state import Home, read_record, write_record
from skerry_regions.process.process_lock import is_held, lock_in_time

CONTROL_NAME = "control.sock"
LOCK_SECONDS = 1.0  # longer than another command needs to look at the lock: microseconds
LOOK_SECONDS = 0.01


class Instance(Struct, frozen=True):
    """The process that runs the platform."""

    pid: int
    control: str  # path of its status socket
    ready: bool = False
    url: str = ""
    topology: bool = False  # of several processes, which outlive it


class AlreadyRunning(Exception):
    """Another process runs the platform of this home."""

    def __init__(self, instance: Instance | None) -> None:
        super().__init__("Skerry is already running")
        self.instance = instance


def running(home: Home) -> Instance | None:
    """Return the process that runs the platform, starting up included; None when there is none."""
    return read_record(home.instance, Instance) if is_held(home.lock) else None


@contextlib.contextmanager
def claim(home: Home) -> Generator[str]:
    """Hold this home as its platform for a while; yield the path of the status socket to be.

    Raises `AlreadyRunning`. Forgets what a killed predecessor left, and leaves nothing behind but
    the lock file.
    """
    home.create()
    with home.lock.open("wb") as lock:
        try:
            lock_in_time(lock, LOCK_SECONDS, pause=LOOK_SECONDS)
        except BlockingIOError:
            raise AlreadyRunning(read_record(home.instance, Instance)) from None
        _forget(home)
        if not has_room(home):
            give_up_room(home)
        control = _control_path(home)
        announce(home, Instance(pid=os.getpid(), control=control))
        try:
            yield control
        finally:
            _forget(home)


def announce(home: Home, instance: Instance) -> None:
    """Say who runs the platform; only the holder of the claim may."""
    write_record(home.instance, instance)
    if instance.ready:
        keep_room(home)


def _control_path(home: Home) -> str:
    """Return a new path for the status socket: in the home, or where a too long path
    leaves room."""
    path = home.run / CONTROL_NAME
    if len(os.fsencode(path)) < 100:  # Unix sockets take 108 bytes on Linux, 104 on macOS
        return str(path)
    return os.path.join(tempfile.mkdtemp(prefix="skerry-"), CONTROL_NAME)


def _forget(home: Home) -> None:
    """Remove the record and the status socket of whoever held the claim last."""
    with contextlib.suppress(StateError):
        instance = read_record(home.instance, Instance)
        if instance is not None and (control := Path(instance.control)).name == CONTROL_NAME:
            control.unlink(missing_ok=True)
            if control.parent != home.run:
                with contextlib.suppress(OSError):
                    control.parent.rmdir()
    home.instance.unlink(missing_ok=True)
