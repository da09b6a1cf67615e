"""A loop that is late is counted and logged with its stack; one that hangs is ended."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time

import pytest

from skerry_regions.process import loop_watch
from skerry_regions.process.loop_watch import EXIT_CODE, LATE_SECONDS, LoopWatch


def void(_: float) -> None:
    """Nobody counts."""


def hold_the_loop(seconds: float) -> None:
    time.sleep(seconds)


def test_a_late_loop_is_counted_and_logged_with_what_it_does(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "BEAT_SECONDS", 0.01)
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        watch = LoopWatch(late.append, ends_process=False)
        await asyncio.sleep(0.05)
        hold_the_loop(0.6)
        for _ in range(6000):
            await asyncio.sleep(0.01)
            if late:
                break
        watch.close()

    late: list[float] = []
    asyncio.run(main())
    assert len(late) == 1
    assert late[0] > LATE_SECONDS
    assert "hold_the_loop" in caplog.text


def test_a_loop_that_waits_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "BEAT_SECONDS", 0.001)

    hung: list[bool] = []

    async def main() -> None:
        watch = LoopWatch(void, ends_process=False, patience=60, hung=lambda: hung.append(True))
        await asyncio.sleep(0.2)
        watch.close()

    asyncio.run(main())
    assert not hung


def test_a_loop_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "BEAT_SECONDS", 0.01)
    hung = threading.Event()

    async def main() -> None:
        watch = LoopWatch(void, patience=0.1, hung=hung.set, ends_process=False)
        hung.wait(60)  # holds the loop until the watch says so
        watch.close()

    asyncio.run(main())
    assert hung.is_set()


HELD = """
import asyncio, re
from skerry_regions.process import loop_watch
loop_watch.LOCKED_SECONDS = 0.2
async def main():
    loop_watch.LoopWatch(print, patience=0.3)
    await asyncio.sleep(0.5)
    re.match("(a*)*b", "a" * 40)  # keeps the interpreter's lock for years
asyncio.run(main())
"""


def test_a_process_whose_lock_is_held_ends_with_its_stacks(subprocess_env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELD], capture_output=True, text=True, timeout=120, check=False,
        env=subprocess_env,
    )  # fmt: skip
    assert done.returncode in (1, EXIT_CODE)
    assert "re/__init__.py" in done.stderr or "in match" in done.stderr
