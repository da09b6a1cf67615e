"""Processes that outlive whoever starts them: found again, never twice, by the last term alone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.disks import fill, small_disk
from tests.regions.process.test_supervisor import UNTIL_TOLD, until

from skerry_regions.process.backoff import RestartPolicy
from skerry_regions.process.children import LaunchedChildren, ProcessSpec
from skerry_regions.process.launch_folder import LaunchFolder, LaunchRecord
from skerry_regions.process.local_launcher import Deposed, LocalLauncher, Program, boot_time
from skerry_regions.process.spawning import HeldListener
from skerry_regions.process.succession import Succession
from skerry_regions.process.supervisor import Supervised

pytestmark = pytest.mark.anyio

SLEEPER = "import time; time.sleep(600)"
# Answers with its pid at the socket behind `--listener-fd`, until it is to leave.
SERVER = """
import os, signal, socket, sys
leaving = []
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, lambda *_: leaving.append(True))
line = socket.socket(fileno=int(sys.argv[1]))
listener = socket.socket(fileno=int(sys.argv[3]))
listener.listen()
listener.settimeout(0.01)
line.sendall(b'{"ready": {}}\\n')
while not leaving:
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        continue
    connection.sendall(str(os.getpid()).encode())
    connection.close()
"""
QUICK = RestartPolicy(first=0.01, most=0.02)


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


def spec_of(folder: Path, script: str = UNTIL_TOLD) -> ProcessSpec:
    return ProcessSpec(
        id="child", command=[sys.executable, "-c", script], environ=os.environ,
        log=folder / "child.log",
    )  # fmt: skip


async def test_a_supervisor_adopts_what_its_predecessor_has_started(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    with nobody_left(tmp_path):
        with launching(tmp_path) as launcher:
            before = Supervised(spec, LaunchedChildren(spec, launcher))
            await before.wait_until_ready()
            pid = before.pid
            before._task.cancel()
        with launching(tmp_path, 2) as launcher:
            process = Supervised(spec, LaunchedChildren(spec, launcher), restarts=QUICK)
            await process.wait_until_ready()
            assert (process.pid, process.state, process.restarts) == (pid, "ready", 0)
            os.kill(pid, signal.SIGKILL)
            await until(lambda: process.state == "ready" and process.pid not in (0, pid))
            assert process.restarts == 1
            await process.stop(20)
            assert process.last_exit == 0


async def test_what_is_to_be_another_is_drained_first(tmp_path: Path) -> None:
    with nobody_left(tmp_path):
        with launching(tmp_path) as launcher:
            before = Supervised(spec_of(tmp_path), LaunchedChildren(spec_of(tmp_path), launcher))
            await before.wait_until_ready()
            pid = before.pid
            before._task.cancel()
        with launching(tmp_path, 2) as launcher:
            spec = replace(spec_of(tmp_path), inputs=b"another file")
            process = Supervised(spec, LaunchedChildren(spec, launcher))
            await process.wait_until_ready()
            assert process.pid != pid
            assert process.restarts == 0
            assert len(launcher.list()) == 1
            await process.stop(20)


async def test_a_listener_goes_on_to_whoever_takes_over(tmp_path: Path) -> None:
    """Callers of an adopted one find its successor, and what is started after its death."""
    held = HeldListener("127.0.0.1", 0, socket.create_server(("127.0.0.1", 0)))
    spec = replace(spec_of(tmp_path, SERVER), listener=held, kind="edge")

    async def ask() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", held.port)
        pid = int(await reader.read())
        writer.close()
        return pid

    with nobody_left(tmp_path):
        with launching(tmp_path) as launcher:
            first = Supervised(spec, LaunchedChildren(spec, launcher))
            await first.wait_until_ready()
            pid = first.pid
            first._task.cancel()
            held.close()
        with launching(tmp_path, 2) as launcher:
            heir = HeldListener("127.0.0.1", held.port)
            spec = replace(spec, listener=heir, inputs=b"other")
            edges = Succession(
                lambda each, beside: Supervised(
                    each, LaunchedChildren(each, launcher, beside=beside), restarts=QUICK
                ),
                patience=20,
            )
            edges.begin([spec])
            await edges.wait_until_ready()
            assert (await ask(), edges["child"].is_outdated) == (pid, True)
            await edges.renew(spec)
            successor = edges["child"].pid
            await until(lambda: [*launcher.list()] == ["child~2"])
            assert (await ask(), edges["child"].is_outdated) == (successor, False)
            os.kill(successor, signal.SIGKILL)
            assert await ask() not in (pid, successor)
            edges.retire()
            await edges.stop(20)
            heir.close()


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


async def test_a_name_that_another_supervisor_has_is_taken(tmp_path: Path) -> None:
    """Two of one name would be one in the registry."""
    ours, theirs = LaunchFolder(tmp_path / "ours"), LaunchFolder(tmp_path / "theirs")
    other = LocalLauncher(theirs, 1)
    process, _ = other.start(record("a"), lambda: sleeper(tmp_path))
    launcher = LocalLauncher(ours, 1, beside=theirs)
    with pytest.raises(FileExistsError, match="another supervisor of this home has started a"):
        launcher.start(record("a"), lambda: sleeper(tmp_path))
    other.stop("a")
    await process.wait()
    mine, is_new = launcher.start(record("a"), lambda: sleeper(tmp_path))
    assert is_new
    launcher.stop("a")
    await mine.wait()
    launcher.close()
    other.close()
