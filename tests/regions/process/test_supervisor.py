"""Real processes kept alive: ready gate, restarts, health, drain, and the end of it all."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skerry_regions.process.backoff import RestartPolicy
from skerry_regions.process.children import ProcessSpec
from skerry_regions.process.supervisor import HealthPolicy, Supervised

pytestmark = pytest.mark.anyio

IMPORTS = "import os, signal, socket, sys, time\n"
TELL = """
line = socket.socket(fileno=int(sys.argv[1]))
line.sendall(b'{"what": "loading", "share": 0.5}\\n{"ready": {"port": 7}}\\n')
"""
READY = IMPORTS + TELL
UNTIL_TOLD = f"{IMPORTS}signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n{TELL}signal.pause()"
STUBBORN = (
    f"{IMPORTS}signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{TELL}line.recv(1)\ntime.sleep(60)"
)
QUICK = RestartPolicy(first=0.01, most=0.02)


@asynccontextmanager
async def supervised(
    path: Path,
    script: str,
    *,
    healthy: Callable[[], bool] | None = None,
    stop_seconds: float = 60.0,
) -> AsyncGenerator[Supervised]:
    async def is_healthy() -> bool:
        return healthy is None or healthy()

    spec = ProcessSpec(
        id="child",
        command=[sys.executable, "-c", script],
        environ=os.environ,
        log=path / "child.log",
        healthy=is_healthy,
    )
    health = HealthPolicy(every=0.01, patience=0.05)
    process = Supervised(spec, restarts=QUICK, health=health)
    try:
        yield process
    finally:
        await process.stop(stop_seconds)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (a state, not an event)
            await asyncio.sleep(0.005)


async def test_it_is_ready_when_it_says_so(tmp_path: Path) -> None:
    async with supervised(tmp_path, UNTIL_TOLD) as process:
        assert process.state == "starting"
        await until(lambda: process.state == "ready")
        assert process.pid
    assert (process.state, process.pid, process.last_exit) == ("stopped", 0, 0)


async def test_one_that_is_killed_is_started_again(tmp_path: Path) -> None:
    async with supervised(tmp_path, UNTIL_TOLD) as process:
        await until(lambda: process.state == "ready")
        first = process.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: process.state == "ready" and process.pid not in (0, first))
        assert (process.restarts, process.last_exit) == (1, -signal.SIGKILL)


async def test_one_that_is_ill_for_long_is_killed(tmp_path: Path) -> None:
    is_well = True
    async with supervised(tmp_path, STUBBORN, healthy=lambda: is_well, stop_seconds=0.2) as process:
        await until(lambda: process.state == "ready")
        first = process.pid
        is_well = False
        await until(lambda: process.restarts > 0)
        is_well = True
        await until(lambda: process.state == "ready")
        assert process.pid != first


async def test_a_first_start_that_fails_is_not_tried_again(tmp_path: Path) -> None:
    async with supervised(tmp_path, "print('no such model'); raise SystemExit(1)") as process:
        await until(lambda: process.last_exit == 1)
        await asyncio.sleep(10 * QUICK.most)
        assert (process.restarts, process.pid) == (0, 0)
    assert (tmp_path / "child.log").read_text() == "no such model\n"


async def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    async with supervised(tmp_path, STUBBORN, stop_seconds=0.2) as process:
        await until(lambda: process.state == "ready")
    assert process.last_exit == -signal.SIGKILL


async def test_a_retired_one_is_not_started_again(tmp_path: Path) -> None:
    async with supervised(tmp_path, UNTIL_TOLD) as process:
        await until(lambda: process.state == "ready")
        process.retire()
        os.kill(process.pid, signal.SIGKILL)
        await until(lambda: process.pid == 0)
        await process.stop(1)
        assert process.restarts == 0


async def test_a_program_that_is_not_there_fails_to_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = ProcessSpec(id="child", command=["/no/such"], environ={}, log=tmp_path / "log")
    process = Supervised(spec)
    await until(lambda: "child cannot be started" in caplog.text)
    await process.stop(1)
    assert (process.pid, process.restarts) == (0, 0)
