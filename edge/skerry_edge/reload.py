"""Configuration that changes while it is used: files that are read again when they change.

Looked at every second, and at once on SIGHUP. A file that cannot be used is told once, and what was
read before stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 1.0

logger = logging.getLogger(__name__)

Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Followed:
    """Files, and what takes them in. `read` raises ValueError or OSError for what it cannot use."""

    paths: tuple[Path, ...]
    read: Callable[[], None]


class Follower:
    """Knows which files changed since it last looked. The first look is at its birth."""

    def __init__(self, followed: Sequence[Followed]) -> None:
        self._followed = followed
        self._stamps = [_stamps(each) for each in followed]

    def look(self) -> None:
        """Read what changed."""
        for index, each in enumerate(self._followed):
            if (stamps := _stamps(each)) != self._stamps[index]:
                self._stamps[index] = stamps
                self._read(each)

    def look_at_all(self) -> None:
        """Read everything, changed or not."""
        for index, each in enumerate(self._followed):
            self._stamps[index] = _stamps(each)
            self._read(each)

    def _read(self, followed: Followed) -> None:
        names = ", ".join(map(str, followed.paths))
        try:
            followed.read()
            logger.info("read again: %s", names)
        except (ValueError, OSError) as error:
            logger.error("what was read before stays in force: %s", error)


@asynccontextmanager
async def following(
    followed: Sequence[Followed], *, poll_seconds: float = POLL_SECONDS
) -> AsyncGenerator[Follower]:
    """Follow files while entered. SIGHUP is only heard on the main thread."""
    follower = Follower(followed)
    loop = asyncio.get_running_loop()
    polling = asyncio.create_task(_poll(follower, poll_seconds), name="reload")
    with contextlib.suppress(RuntimeError, ValueError):  # not the main thread
        loop.add_signal_handler(signal.SIGHUP, follower.look_at_all)
    try:
        yield follower
    finally:
        polling.cancel()
        with contextlib.suppress(RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGHUP)


async def _poll(follower: Follower, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        follower.look()


def _stamps(followed: Followed) -> list[Stamp]:
    return [_stamp(path) for path in followed.paths]


def _stamp(path: Path) -> Stamp:
    """What changes with a file's content; None when there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
