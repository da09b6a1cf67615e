"""The files of a home's control plane, and the lock that keeps it the only one."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

from skerry_cli.home.state import Home
from skerry_regions.process.process_lock import is_held, lock_in_time

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8788
ALONE = b"alone"  # what its lock says of a control plane that no `skerry up` has started
LOCK_SECONDS = 1.0  # longer than another command needs to look at the lock
LOOK_SECONDS = 0.1


class ControlRunning(Exception):
    """Another process is the control plane of this home."""


def control_database(home: Home) -> Path:
    return home.root / "control.db"


def control_runs(home: Home) -> bool:
    """Return whether a process is the control plane of this home."""
    return is_held(_lock_path(home))


def control_is_alone(home: Home) -> bool:
    """Return whether a control plane runs in this home that is no part of a `skerry up`."""
    return control_runs(home) and _lock_path(home).read_bytes() == ALONE


def _lock_path(home: Home) -> Path:
    return home.root / "control.lock"


@contextlib.contextmanager
def claim_control(
    home: Home, *, patience: float = LOCK_SECONDS, alone: bool = False
) -> Generator[None]:
    """Hold this home as its control plane for a while. The kernel ends the claim with the process.

    `alone`: it is no part of a `skerry up`. Raises ControlRunning when another one still runs
    after `patience` seconds.
    """
    with _lock_path(home).open("ab") as lock:
        try:
            lock_in_time(lock, patience, pause=LOOK_SECONDS)
        except BlockingIOError:
            raise ControlRunning(f"a control plane of {home.root} runs already") from None
        lock.truncate(0)
        lock.write(ALONE if alone else b"")
        lock.flush()
        yield
