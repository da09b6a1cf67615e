"""Processes that go on after whoever supervised them has died."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass

from skerry_cli.home.control_home import control_runs
from skerry_cli.home.state import Home
from skerry_regions.process.launch_folder import LaunchFolder, LaunchRecord
from skerry_regions.process.socket_paths import SocketPaths

KILL_SECONDS = 10.0
SOCKETS = "nodes"  # folder of the sockets of a topology's processes, in the home's run/


@dataclass(frozen=True, slots=True)
class LeftProcess:
    """One of them."""

    record: LaunchRecord
    pid: int


def left_behind(home: Home) -> list[LeftProcess]:
    """Return what runs in a home where no `skerry up` does, and that nothing supervises."""
    folders = [LaunchFolder.of_fleet(home.root)]
    if not control_runs(home):
        folders.append(LaunchFolder.of_control(home.root))
    found = []
    for folder in folders:
        for record, pid in folder.running():
            found.append(LeftProcess(record, pid))
    return found


def end(processes: Collection[LeftProcess], seconds: float) -> None:
    """Drain and end them, edges first: nodes compute on for their streams. Kill what is left
    after `seconds`."""
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        for are_edges in (True, False):
            pidfds = []
            for each in processes:
                if (each.record.kind == "edge") == are_edges:
                    with contextlib.suppress(ProcessLookupError):
                        pidfds.append(os.pidfd_open(each.pid))
                        stack.callback(os.close, pidfds[-1])
            living = _signalled(pidfds, signal.SIGTERM, deadline)
            _signalled(living, signal.SIGKILL, time.monotonic() + KILL_SECONDS)


def _signalled(pidfds: Collection[int], number: signal.Signals, deadline: float) -> list[int]:
    """Signal processes; return those that live on at the deadline."""
    for pidfd in pidfds:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)
    return [
        pidfd
        for pidfd in pidfds
        if not select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))[0]
    ]


def forget_fleet(home: Home) -> None:
    """Remove what processes of a topology have written that run no more: it says nothing about
    those to come."""
    LaunchFolder.of_fleet(home.root).close()
    SocketPaths.of(home.root, SOCKETS).remove()
    for path in home.run.glob(f"{home.registry.name}*"):
        path.unlink(missing_ok=True)
