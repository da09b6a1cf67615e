"""Processes that take each other's place at one socket."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from skerry_regions.process.backoff import RestartPolicy
from skerry_regions.process.children import ProcessSpec
from skerry_regions.process.succession import Succession
from skerry_regions.process.supervisor import Supervised

# Answers one connection after the other with its own pid; leaves when it is told to.
SERVER = """
import os, signal, socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
listener.settimeout(0.01)
leaving = []
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, lambda *_: leaving.append(True))
line = socket.socket(fileno=int(sys.argv[2]))
line.sendall(b'{"ready": {}}\\n')
while not leaving:
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        continue
    connection.sendall(str(os.getpid()).encode())
    connection.close()
"""
BROKEN = "raise SystemExit('out of order')"


pytestmark = pytest.mark.anyio


class Setting:
    def __init__(self, folder: Path) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.spec = ProcessSpec(
            id="server",
            command=[sys.executable, "-c", SERVER, str(self.listener.fileno())],
            environ=os.environ,
            log=folder / "server.log",
            descriptors=(self.listener.fileno(),),
        )
        quick = RestartPolicy(first=0.01, most=0.02)
        self.servers = Succession(
            lambda spec, beside: Supervised(spec, restarts=quick), patience=20
        )

    async def ask(self) -> int:
        """The pid of who answers."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        pid = int(await reader.read())
        writer.close()
        return pid


@asynccontextmanager
async def setting(folder: Path) -> AsyncGenerator[Setting]:
    made = Setting(folder)
    try:
        made.servers.begin([made.spec])
        await made.servers.wait_until_ready()
        yield made
    finally:
        await made.servers.stop(5)
        made.listener.close()


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def until_ended(pid: int) -> None:
    async with asyncio.timeout(60):
        while lives(pid):  # noqa: ASYNC110  (a process, not an event)
            await asyncio.sleep(0.01)


async def test_nobody_is_refused_while_one_takes_the_others_place(tmp_path: Path) -> None:
    async with setting(tmp_path) as it:
        old = it.servers["server"].pid
        answered: list[int] = []
        renewing = asyncio.create_task(it.servers.renew(it.spec))
        while not renewing.done():
            answered.append(await it.ask())
        new = it.servers["server"].pid
        assert new != old
        assert set(answered) <= {old, new}
        await until_ended(old)
        assert await it.ask() == new
        assert it.servers.failures == {}


async def test_who_has_no_successor_stays(tmp_path: Path) -> None:
    async with setting(tmp_path) as it:
        old = it.servers["server"].pid
        await it.servers.renew(replace(it.spec, command=[sys.executable, "-c", BROKEN]))
        assert (it.servers["server"].pid, await it.ask()) == (old, old)
        assert "server was not replaced at" in it.servers.failures["server"]
        assert "out of order" in it.servers.failures["server"]
        await it.servers.renew(it.spec)
        assert it.servers.failures == {}
        assert it.servers["server"].pid != old


async def test_all_end_also_those_that_leave_and_those_to_come(tmp_path: Path) -> None:
    async with setting(tmp_path) as it:
        old = it.servers["server"].pid
        await it.servers.renew(it.spec)
        renewing = asyncio.create_task(it.servers.renew(it.spec))
        await asyncio.sleep(0)
        renewing.cancel()
        it.servers.retire()
        await it.servers.stop(5)
        assert [process.pid for process in it.servers] == [0]
        assert not lives(old)
