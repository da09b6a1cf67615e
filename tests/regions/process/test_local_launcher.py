"""Processes that outlive whoever starts them: found again, never twice, by the last term alone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.disks import fill, small_disk

from skerry_regions.process.launch_folder import LaunchFolder, LaunchRecord
from skerry_regions.process.local_launcher import Deposed, LocalLauncher, Program, boot_time

pytestmark = pytest.mark.anyio

SLEEPER = "import time; time.sleep(600)"


def record(name: str) -> LaunchRecord:
    return LaunchRecord(
        id=name, owner=name, kind="node", region="fra", fingerprint="f", address="", control="",
        started=boot_time(),
    )  # fmt: skip


def sleeper(folder: Path) -> Program:
    return Program(command=[sys.executable, "-c", SLEEPER], environ=os.environ, log=folder / "log")


@contextmanager
def launching(folder: Path, term: int = 1) -> Generator[LocalLauncher]:
    launcher = LocalLauncher(LaunchFolder(folder / "launched"), term)
    try:
        yield launcher
    finally:
        launcher.close()


@contextmanager
def nobody_left(folder: Path) -> Generator[None]:
    try:
        yield
    finally:
        for _, pid in LaunchFolder(folder / "launched").running():
            os.kill(pid, signal.SIGKILL)


async def test_one_of_a_name_is_started_once_and_found_by_the_next(tmp_path: Path) -> None:
    with nobody_left(tmp_path):
        with launching(tmp_path) as first:
            started, is_new = first.start(record("a"), lambda: sleeper(tmp_path))
            assert is_new
            assert first.start(record("a"), lambda: sleeper(tmp_path)) == (started, False)
        with launching(tmp_path, 2) as second:
            [found] = second.list().values()
            assert (found.pid, found.record) == (started.pid, started.record)
            second.drain("a")
            assert await found.wait() == -signal.SIGTERM
            assert found.record.draining_since is not None
            assert second.list() == {}
            second.drain("a")  # of none such: nothing
            second.stop("a")
    assert not (tmp_path / "launched").exists()


async def test_who_was_replaced_is_refused(tmp_path: Path) -> None:
    with nobody_left(tmp_path), launching(tmp_path, 4) as old:
        running, _ = old.start(record("a"), lambda: sleeper(tmp_path))
        with launching(tmp_path, 5) as new:
            for act in (
                lambda: old.start(record("b"), lambda: sleeper(tmp_path)),
                lambda: old.drain("a"),
                lambda: old.stop("a"),
            ):
                with pytest.raises(Deposed, match="its term is 5, ours 4"):
                    act()
            with pytest.raises(Deposed):
                LocalLauncher(LaunchFolder(tmp_path / "launched"), 4)
            assert [*new.list()] == ["a"]
            assert not running.has_ended.is_set()


async def test_one_that_another_holds_is_not_started(tmp_path: Path) -> None:
    """Such as by a launcher whose records this one cannot read."""
    with nobody_left(tmp_path), launching(tmp_path) as launcher:
        launcher.start(record("a"), lambda: sleeper(tmp_path))
        path = tmp_path / "launched" / "a.json"
        kept = path.read_bytes()
        path.write_text("{}")
        with launching(tmp_path, 2) as other:
            assert other.list() == {}
            with pytest.raises(BlockingIOError):
                other.start(record("a"), lambda: sleeper(tmp_path))
        path.write_bytes(kept)


async def test_one_is_started_again_where_the_disk_has_no_room(tmp_path: Path) -> None:
    """Its record takes the place of the former one, so that it is found again."""
    with small_disk(tmp_path / "disk", 1 << 20) as disk, nobody_left(disk):
        with launching(disk) as launcher:
            first, _ = launcher.start(record("a"), lambda: sleeper(tmp_path))
            fill(disk)
            launcher.stop("a")
            await first.wait()
            again, is_new = launcher.start(record("a"), lambda: sleeper(tmp_path))
            assert is_new
            other, _ = launcher.start(record("b"), lambda: sleeper(tmp_path))  # not written down
        with launching(disk, 2) as launcher:
            assert {id: each.pid for id, each in launcher.list().items()} == {"a": again.pid}
        os.kill(other.pid, signal.SIGKILL)
