"""Processes that go on after whoever supervised them has died."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import Counter
from collections.abc import Collection

from msgspec.structs import replace

from skerry_cli.home.control_home import control_runs
from skerry_cli.home.instance import Instance
from skerry_cli.home.state import Home, read_record
from skerry_regions.control.planning.launcher import RELAYS
from skerry_regions.process.launch_folder import LaunchFolder, LaunchRecord
from skerry_regions.process.socket_paths import SocketPaths

KILL_SECONDS = 10.0
FLEET_SOCKETS = "nodes"  # folder in the home's run/ that a topology's processes had before 0.2

LeftProcess = tuple[LaunchRecord, int]  # and its pid


def left_behind(home: Home) -> list[LeftProcess]:
    """Return what runs in a home where no `skerry up` does, and that nothing supervises."""
    folders = [LaunchFolder.of_fleet(home.root)]
    if not control_runs(home):
        folders.append(LaunchFolder.of_control(home.root))
    return [each for folder in folders for each in folder.running()]


def left_by_topology(home: Home) -> bool:
    """Return whether processes run that a `skerry up --topology` has left, which was killed."""
    instance = read_record(home.instance, Instance)
    return instance is not None and instance.topology and bool(left_behind(home))


def end(processes: Collection[LeftProcess], seconds: float) -> None:
    """Drain and end them, edges first: nodes compute on for their streams. Kill what is left
    after `seconds`."""
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        for are_edges in (True, False):
            pidfds = []
            for record, pid in processes:
                if (record.kind == "edge") == are_edges:
                    with contextlib.suppress(ProcessLookupError):
                        pidfds.append(os.pidfd_open(pid))
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


def adopt_fleet(home: Home) -> None:
    """Have the control plane find what a topology's supervisor before 0.2 has started, under the
    names that it would give. Each process keeps its lock, which moves. Raises OSError."""
    old, new = LaunchFolder.of_fleet(home.root), LaunchFolder.of_control(home.root)
    numbers = Counter[str]()
    for record, _ in [*old.running()]:
        owner = RELAYS if record.kind == "relays" else record.owner
        if record.kind == "node":
            owner, _, number = record.id.rpartition("-")
        else:
            number = str(numbers[owner])
            numbers[owner] += 1
        id = f"{owner}-{number}"
        new.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.rename(old.path(record.id, "lock"), new.path(id, "lock"))
        new.write(replace(record, id=id, owner=owner))
        old.remove(record.id)
    old.close()


def forget_processes(home: Home) -> None:
    """Remove what processes have written that run no more: it says nothing about those to come."""
    LaunchFolder.of_control(home.root).close()
    SocketPaths.of(home.root, FLEET_SOCKETS).remove()
    SocketPaths.of(home.root).remove()
    for path in home.run.glob(f"{home.registry.name}*"):
        path.unlink(missing_ok=True)
