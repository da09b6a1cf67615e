"""Processes that go on without their supervisor, also those of an earlier version."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from skerry_cli.home.left_behind import adopt_fleet, end, left_behind
from skerry_cli.home.state import Home
from skerry_regions.process.launch_folder import LaunchedKind, LaunchFolder, LaunchRecord
from skerry_regions.process.process_lock import locked

NAMES: list[tuple[str, str, LaunchedKind]] = [
    ("edge", "edge", "edge"), ("edge~2", "edge", "edge"), ("fra-decode-1", "fra-decode-1", "node"),
    ("relays", "relays", "relays"),
]  # fmt: skip


def launch(
    folder: LaunchFolder, id: str, owner: str, kind: LaunchedKind
) -> subprocess.Popen[bytes]:
    """Start a process as a topology's supervisor before 0.2 did."""
    lock = locked(folder.path(id, "lock"))
    script = "import time; time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-c", script], pass_fds=(lock,), start_new_session=True
    )
    os.close(lock)
    record = LaunchRecord(
        id=id, owner=owner, kind=kind, region="fra", fingerprint="f", address="", control="",
        started=1.0,
    )  # fmt: skip
    folder.write(record)
    return process


def test_processes_of_an_earlier_version_have_the_names_of_this_one(tmp_path: Path) -> None:
    """Their pids and locks stay, so nothing is started twice."""
    old, home = LaunchFolder.of_fleet(tmp_path), Home(tmp_path)
    old.root.mkdir(parents=True)
    processes = [launch(old, *each) for each in NAMES]
    pids = [process.pid for process in processes]
    try:
        adopt_fleet(home)
        found = {record.id: (record.owner, pid) for record, pid in left_behind(home)}
        assert found == {
            "edge-0": ("edge", pids[0]),
            "edge-1": ("edge", pids[1]),
            "fra-decode-1": ("fra-decode", pids[2]),
            "~relays-0": ("~relays", pids[3]),
        }
        assert not old.root.exists()
    finally:
        end(left_behind(home), 10)
        for process in processes:
            process.kill()
            process.wait()
    assert left_behind(home) == []
