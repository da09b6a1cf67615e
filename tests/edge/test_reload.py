"""Files are read again when they change, and a bad one changes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
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

    def read(self) -> None:
        self.num_reads += 1
        self.value = int(self.path.read_text())
        self.changed.set()

    def followed(self) -> Followed:
        return Followed((self.path,), self.read)


def test_only_what_changed_is_read(tmp_path: Path) -> None:
    numbers = [Number(tmp_path / name) for name in "ab"]
    follower = Follower([each.followed() for each in numbers])
    follower.look()
    assert [each.num_reads for each in numbers] == [0, 0]
    numbers[1].path.write_text("22")
    follower.look()
    follower.look()
    assert [each.num_reads for each in numbers] == [0, 1]
    assert numbers[1].value == 22
    follower.look_at_all()
    assert [each.num_reads for each in numbers] == [1, 2]


def test_a_file_that_is_replaced_or_comes_back(tmp_path: Path) -> None:
    number = Number(tmp_path / "a")
    follower = Follower([number.followed()])
    draft = tmp_path / "draft"
    draft.write_text("2")
    os.replace(draft, number.path)
    follower.look()
    assert number.value == 2
    number.path.unlink()
    follower.look()
    assert number.value == 2  # and that it is gone was told
    number.path.write_text("3")
    follower.look()
    assert number.value == 3


def test_a_bad_file_is_told_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    number = Number(tmp_path / "a")
    follower = Follower([number.followed()])
    number.path.write_text("one")
    follower.look()
    follower.look()
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
