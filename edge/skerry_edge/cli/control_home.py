"""Where a home keeps its control plane, and being the only one of it."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Generator
from pathlib import Path

from skerry_edge.cli.state import Home


class ControlRunning(Exception):
    """Another process is the control plane of this home."""


def control_database(home: Home) -> Path:
    return home.root / "control.db"


@contextlib.contextmanager
def claim_control(home: Home) -> Generator[None]:
    """Be the control plane of this home for a while. Raises ControlRunning.

    The kernel lets go of the lock however the process ends.
    """
    with (home.run / "control.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ControlRunning(f"a control plane of {home.root} runs already") from None
        yield
