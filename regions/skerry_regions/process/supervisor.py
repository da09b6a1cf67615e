"""Keeps processes of this machine alive: starts them, sees them ready, restarts and stops them.

A process that ends unasked is started again after a growing, jittered pause; one that lives but
answers no health check for too long is killed first. Stopping is SIGTERM, which drains, and after
a deadline SIGKILL.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from skerry_regions.process.backoff import Backoff, RestartPolicy
from skerry_regions.process.children import ProcessSpec, signal_child, start_child
from skerry_regions.process.lifeline import reports
from skerry_regions.process.pauses import until_set

logger = logging.getLogger(__name__)


State = Literal["starting", "ready", "draining", "failed", "stopped"]


class FirstStartFailed(Exception):
    """A process ended before it was ever ready; the message has the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """Seconds between health checks of a ready process, and of patience with an ill one."""

    every: float = 2.0
    patience: float = 20.0


class Supervised:
    """One process that is kept alive. Lives on one event loop."""

    def __init__(
        self,
        spec: ProcessSpec,
        *,
        restarts: RestartPolicy | None = None,
        health: HealthPolicy | None = None,
    ) -> None:
        self.spec = spec
        self.state: State = "starting"
        self.restarts = 0
        self.last_exit: int | None = None  # status of the last run that ended; -9: by SIGKILL
        self._health = health or HealthPolicy()
        self._backoff = Backoff(restarts or RestartPolicy(), Random())
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()  # the last time
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._was_ready = False
        self._task = asyncio.create_task(self._keep_alive(), name=f"supervise {spec.id}")

    @property
    def pid(self) -> int:
        """Return it; 0 while no process runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else 0

    def retire(self) -> None:
        """Do not start it again when it ends."""
        self._stopping.set()

    async def stop(self, seconds: float) -> None:
        """Have it drain and end; kill it after `seconds`. Idempotent."""
        self.retire()
        if self.state in ("ready", "starting"):
            self.state = "draining"
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._task)
        except TimeoutError:
            logger.warning("%s has not ended within %g s: killing it", self.spec.id, seconds)
            self._signal(signal.SIGKILL)
            await self._task
        self.state = "stopped"

    def kill(self) -> None:
        """Kill it at once; it is started again unless it is being stopped."""
        self._signal(signal.SIGKILL)

    # --- one process after the other -------------------------------------------------------------

    async def _keep_alive(self) -> None:
        while not self._stopping.is_set():
            self._started = self._clock()
            self.state = "starting"
            await self._run_once()
            if self._stopping.is_set() or not self._was_ready:
                return
            self.state = "failed"
            delay = self._backoff.failed(self._clock() - self._started)
            logger.warning(
                "%s ended with status %s; starting it again in %.1f s",
                self.spec.id, self.last_exit, delay,
            )  # fmt: skip
            await until_set(self._stopping, delay)
            self.restarts += 1

    async def _run_once(self) -> None:
        """Run a process from its start to its end."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                try:
                    self._process = process = await start_child(self.spec, theirs.fileno())
                except OSError as error:  # no memory, too many processes: it may pass
                    logger.error("%s cannot be started: %s", self.spec.id, error)
                    return
            if self._stopping.is_set():  # requested while it was being started
                self._signal(signal.SIGTERM)
            await self._watch_over(process, self._follow(ours))

    async def _watch_over(
        self, process: asyncio.subprocess.Process, following: Coroutine[Any, Any, None]
    ) -> None:
        tasks = [asyncio.create_task(each) for each in (following, self._watch_health())]
        try:
            self.last_exit = await process.wait()
            await tasks[0]  # what it said last
        finally:
            for task in tasks:
                task.cancel()
            self._process = None

    async def _follow(self, lifeline: socket.socket) -> None:
        """Note when the process is ready; until its end closes."""
        async for report in reports(lifeline.dup()):
            self._was_ready = self._was_ready or "ready" in report
            if "ready" in report and not self._stopping.is_set():
                self.state = "ready"

    async def _watch_health(self) -> None:
        """Kill the process once it has answered no check for too long."""
        if self.spec.healthy is None:
            return
        healthy_at = self._clock()
        while True:
            await asyncio.sleep(self._health.every)
            if self.state != "ready" or await self.spec.healthy():
                healthy_at = self._clock()
            elif self._clock() - healthy_at > self._health.patience:
                logger.warning("%s answers no health check: killing it", self.spec.id)
                return self.kill()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            signal_child(self._process, number)
