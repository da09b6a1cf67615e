"""Where a home keeps its control plane, and being the only one of it."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Generator
from pathlib import Path

from skerry_cli.home.state import Home

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8788
LOCK_SECONDS = 1.0  # longer than another command needs to look at the lock
LOOK_SECONDS = 0.1  # a lock cannot be waited for with a deadline


class ControlRunning(Exception):
    """Another process is the control plane of this home."""


def control_database(home: Home) -> Path:
    return home.root / "control.db"


def control_runs(home: Home) -> bool:
    """Return whether a process is the control plane of this home."""
    with contextlib.suppress(FileNotFoundError), _lock_path(home).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _lock_path(home: Home) -> Path:
    return home.root / "control.lock"


@contextlib.contextmanager
def claim_control(home: Home, *, patience: float = LOCK_SECONDS) -> Generator[None]:
    """Hold this home as its control plane for a while. The kernel ends the claim with the process.

    Raises ControlRunning when another one still runs after `patience` seconds.
    """
    deadline = time.monotonic() + patience
    with _lock_path(home).open("wb") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise ControlRunning(f"a control plane of {home.root} runs already") from None
                time.sleep(LOOK_SECONDS)
        yield
