"""Files are read again when they change, and a bad one changes nothing."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from skerry_edge.reload import Followed, Follower, following


class Number:
    """A file that holds a number."""

    def __init__(self, path: Path, content: str = "1") -> None:
        self.path = path
        path.write_text(content)
        self.value = int(content)
        self.num_reads = 0
        self.changed = asyncio.Event()

    def read(self) -> Callable[[], None]:
        self.num_reads += 1
        return functools.partial(self._take_in, int(self.path.read_text()))

    def _take_in(self, value: int) -> None:
        self.value = value
        self.changed.set()

    def followed(self) -> Followed:
        return Followed((self.path,), self.read)


def look(follower: Follower, *, at_all: bool = False) -> None:
    asyncio.run(follower.look(at_all=at_all))


def test_only_what_changed_is_read(tmp_path: Path) -> None:
    numbers = [Number(tmp_path / name) for name in "ab"]
    follower = Follower([each.followed() for each in numbers])
    look(follower)
    assert [each.num_reads for each in numbers] == [0, 0]
    numbers[1].path.write_text("22")
    look(follower)
    look(follower)
    assert [each.num_reads for each in numbers] == [0, 1]
    assert numbers[1].value == 22
    look(follower, at_all=True)
    assert [each.num_reads for each in numbers] == [1, 2]


def test_a_file_that_is_replaced_or_comes_back(tmp_path: Path) -> None:
    number = Number(tmp_path / "a")
    follower = Follower([number.followed()])
    draft = tmp_path / "draft"
    draft.write_text("2")
    os.replace(draft, number.path)
    look(follower)
    assert number.value == 2
    number.path.unlink()
    look(follower)
    assert number.value == 2  # and that it is gone was told
    number.path.write_text("3")
    look(follower)
    assert number.value == 3


def test_a_bad_file_is_told_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    number = Number(tmp_path / "a")
    follower = Follower([number.followed()])
    number.path.write_text("one")
    look(follower)
    look(follower)
    assert number.value == 1
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert told == [
        "what was read before stays in force: invalid literal for int() with base 10: 'one'"
    ]


def test_a_change_is_seen_while_it_runs(tmp_path: Path) -> None:
    async def run() -> None:
        number = Number(tmp_path / "a")
        async with following([number.followed()], poll_seconds=0.001):
            number.path.write_text("22")
            await number.changed.wait()
            assert number.value == 22

    asyncio.run(run())


def test_sighup_reads_everything_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        number = Number(tmp_path / "a")
        async with following([number.followed()], poll_seconds=3600.0):
            os.kill(os.getpid(), signal.SIGHUP)
            await number.changed.wait()

    asyncio.run(run())
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


def test_a_bug_in_one_reader_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    number = Number(tmp_path / "a")

    def fail() -> Callable[[], None]:
        raise ZeroDivisionError

    follower = Follower([Followed((number.path,), fail), number.followed()])
    number.path.write_text("22")
    look(follower)
    assert number.value == 22
    assert "ZeroDivisionError" in caplog.text


ON_TERMINAL = """
import asyncio, fcntl, signal, termios
from skerry_regions.process.startup import on_sighup, stop_on_signals
fcntl.ioctl(0, termios.TIOCSCTTY, 0)

async def main():
    stop, told = stop_on_signals(), asyncio.Event()
    on_sighup(told.set)
    print("ready", flush=True)
    await told.wait()
    print("told", flush=True)
    await stop.wait()
    print("stopped", flush=True)

asyncio.run(main())
"""


def test_a_terminal_that_closes_is_no_wish_to_reload(subprocess_env: dict[str, str]) -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL],
        stdin=theirs,
        stdout=subprocess.PIPE,
        env=subprocess_env,
        start_new_session=True,
        text=True,
    )
    os.close(theirs)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "told\n"
        os.close(ours)
        assert process.stdout.readline() == "stopped\n"
    assert process.returncode == 0
