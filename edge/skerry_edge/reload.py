"""Configuration that changes while it is used: files that are read again when they change.

Looked at every second, and at once on SIGHUP. A file that cannot be used is logged once, and what
was read before stays.
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

from skerry_regions.process.startup import on_sighup

POLL_SECONDS = 1.0

logger = logging.getLogger(__name__)

Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Followed:
    """Files, and what takes them in.

    `read` is called on a thread, and raises ValueError or OSError for what it cannot use; what it
    returns is called on the event loop.
    """

    paths: tuple[Path, ...]
    read: Callable[[], Callable[[], None]]


class Follower:
    """Knows which files changed since it last looked. The first look is at its birth."""

    def __init__(self, followed: Sequence[Followed]) -> None:
        self._followed = followed
        self._stamps = [_stamps(each) for each in followed]

    async def look(self, *, at_all: bool = False) -> None:
        """Read what changed, or everything."""
        for index, each in enumerate(self._followed):
            stamps = _stamps(each)
            if at_all or stamps != self._stamps[index]:
                self._stamps[index] = stamps
                await self._read(each)

    async def _read(self, followed: Followed) -> None:
        try:
            take_in = await asyncio.to_thread(followed.read)
            take_in()
            logger.info("read again: %s", ", ".join(map(str, followed.paths)))
        except (ValueError, OSError) as error:
            logger.error("what was read before stays in force: %s", error)
        except Exception:  # a bug: the other files are followed all the same
            logger.exception("what was read before stays in force")


@asynccontextmanager
async def following(
    followed: Sequence[Followed],
    *,
    poll_seconds: float = POLL_SECONDS,
    reloading: Callable[[], None] = lambda: None,
) -> AsyncGenerator[None]:
    """Follow files while entered; `reloading` is called on SIGHUP besides, which is only heard on
    the main thread."""
    told = asyncio.Event()

    def heard() -> None:
        told.set()
        reloading()

    task = asyncio.create_task(_follow(Follower(followed), told, poll_seconds), name="reload")
    with contextlib.suppress(RuntimeError, ValueError):  # not the main thread
        on_sighup(heard)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(RuntimeError, ValueError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


async def _follow(follower: Follower, told: asyncio.Event, seconds: float) -> None:
    while True:
        try:
            async with asyncio.timeout(seconds):
                await told.wait()
        except TimeoutError:
            await follower.look()
        else:
            told.clear()
            await follower.look(at_all=True)


def _stamps(followed: Followed) -> list[Stamp]:
    return [stamp_of_file(path) for path in followed.paths]


def stamp_of_file(path: Path) -> Stamp:
    """Return what changes with a file's content; None when there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
