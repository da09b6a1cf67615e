"""Watches an event loop from a thread of its own: a loop that hangs cannot say so.

Every `BEAT_SECONDS` the thread calls the loop for a sign of life. A loop that is late by more than
`LATE_SECONDS` is counted, and logged with what its thread was doing. One that hangs for `patience`
seconds ends: `hung` is called on the thread, or, where something holds the interpreter's lock so
that no thread runs, `faulthandler`'s own thread prints all stacks and ends the process.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

BEAT_SECONDS = 0.25
LATE_SECONDS = 0.25
PATIENCE_SECONDS = 60.0  # a laptop that pages, a stopped process that goes on: not yet a hang
LOCKED_SECONDS = 30.0  # beyond the patience, until the lock's holder is given up
ARM_SECONDS = 5.0  # between two times that it is put off
EXIT_CODE = 70  # of `sysexits.h`: an internal error
MAX_FRAMES = 30

logger = logging.getLogger(__name__)


class LoopWatch:
    """Of the loop that it is made on, until it is closed."""

    def __init__(
        self,
        late: Callable[[float], None],
        *,
        patience: float = PATIENCE_SECONDS,
        hung: Callable[[], None] = lambda: os._exit(EXIT_CODE),
        ends_process: bool = True,
    ) -> None:
        """`late` is called on the thread with the seconds that the loop was late by.
        `ends_process`: also when the interpreter's lock is held all the time."""
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._patience = patience
        self._hung = hung
        self._ends_process = ends_process
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="skerry-loop-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no more. Does not block the loop."""
        self._closing.set()
        if self._ends_process:
            faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        armed = -ARM_SECONDS
        while not self._closing.wait(BEAT_SECONDS):
            if self._ends_process and time.monotonic() - armed > ARM_SECONDS:
                armed = time.monotonic()
                seconds = self._patience + LOCKED_SECONDS
                faulthandler.dump_traceback_later(seconds, exit=True, file=2)
            sign = threading.Event()
            asked = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(sign.set)
            except RuntimeError:  # the loop is closed
                return
            if not sign.wait(LATE_SECONDS):
                self._wait_for(sign, asked)

    def _wait_for(self, sign: threading.Event, asked: float) -> None:
        """Wait for a late loop, and call `hung` when the patience is over."""
        logger.warning("the event loop is late; it is in\n%s", self._stack())
        while not sign.wait(BEAT_SECONDS):
            if self._closing.is_set():
                return
            if time.monotonic() - asked > self._patience:
                logger.critical("the event loop hangs; it is in\n%s", self._stack())
                self._hung()
                return
        seconds = time.monotonic() - asked
        self._late(seconds)
        logger.warning("the event loop was late by %.2f s", seconds)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        return "".join(traceback.format_stack(frame, MAX_FRAMES)) if frame is not None else "?"
