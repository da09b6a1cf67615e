"""The status socket."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from skerry_cli.home.control import (
    EdgeStatus,
    NoAnswer,
    NodeStatus,
    Status,
    answer_status,
    ask_status,
)

STATUS = Status(
    url="http://127.0.0.1:8787",
    edges=[EdgeStatus(id="edge-1", pid=1, url="http://127.0.0.1:8787", region="local")],
    nodes=[
        NodeStatus(
            id="node-1",
            pid=1,
            role="hybrid",
            region="local",
            model="m",
            state="ready",
            streams=3,
        )
    ],
)


def test_every_question_gets_the_status_of_now(tmp_path: Path) -> None:
    path = str(tmp_path / "control.sock")
    answers = iter([STATUS, Status(url="later", edges=[], nodes=[])])

    async def scenario() -> None:
        async def status() -> Status:
            return next(answers)

        async with answer_status(path, status):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
            assert await asyncio.to_thread(ask_status, path) == STATUS
            assert (await asyncio.to_thread(ask_status, path)).url == "later"

    asyncio.run(scenario())
    with pytest.raises(NoAnswer, match="does not answer"):
        ask_status(path)


def test_one_who_asks_and_leaves_harms_nobody(tmp_path: Path) -> None:
    path = str(tmp_path / "control.sock")

    async def scenario() -> None:
        async def status() -> Status:
            return STATUS

        async with answer_status(path, status):
            for _ in range(5):
                with socket.socket(socket.AF_UNIX) as visitor:
                    visitor.connect(path)
            assert await asyncio.to_thread(ask_status, path) == STATUS

    asyncio.run(scenario())


def test_nonsense_is_no_answer(tmp_path: Path) -> None:
    path = str(tmp_path / "control.sock")

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"url": 3}')
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_unix_server(nonsense, path):
            with pytest.raises(NoAnswer, match="does not answer"):
                await asyncio.to_thread(ask_status, path)

    asyncio.run(scenario())
