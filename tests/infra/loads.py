"""Clients that keep a platform busy, and a brake on an engine."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.command import MODEL, Skerry

SEIZE, INTERRUPT, CONTINUE, DETACH = 0x4206, 0x4207, 7, 17  # of ptrace(2)
ALL_THREADS = 0x40000000  # `__WALL` of waitpid(2)
BUSY_SECONDS = 0.5  # in which the busiest thread is found
LOOK_SECONDS = 0.01  # between looks at an engine's steps
PAUSE = 0.1  # of a client whose request failed

Body = Callable[[int], dict[str, Any]]
Steps = Callable[[], int | None]
"""Returns how many steps an engine has made; None while it is not to be stopped."""


def a_prompt(words: int, tokens: int) -> Body:
    """Return requests of so many words and tokens, each with another beginning."""
    return lambda number: {
        "prompt": f"{number} " + "sea " * words, "raw": True, "stream": True,
        "max_tokens": tokens, "ignore_eos": True, "seed": number,
    }  # fmt: skip


@contextlib.contextmanager
def load(
    skerry: Skerry,
    edge: str,
    clients: int,
    body: Body,
    *,
    model: str = MODEL,
    pause: float = 0.0,
    tenant: tuple[str, str] | None = None,
    **headers: str,
) -> Generator[None]:
    """Ask again and again until the block ends, whatever the answers are; then hang up.

    `edge` is an id. Each client waits for `pause` seconds between its requests. `tenant` is an
    account and its token; without it they are the platform's own.
    """
    config = json.loads((skerry.home / "config.json").read_text())
    account, token = tenant or (config["account_id"], config["api_token"])
    path = f"{edge_url(skerry, edge)}/client/v4/accounts/{account}/ai/run/{model}"
    own = {"authorization": f"Bearer {token}"}
    given = own | {name.replace("_", "-"): value for name, value in headers.items()}

    async def ask_on(client: httpx.AsyncClient, number: int) -> None:
        while True:
            number += clients
            try:
                async with client.stream("POST", path, json=body(number)) as answer:
                    async for _ in answer.aiter_raw():
                        pass
                is_good = answer.status_code == 200
            except httpx.HTTPError:
                is_good = False
            await asyncio.sleep(pause if is_good else max(pause, PAUSE))

    async def ask_all() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(headers=given, timeout=None, limits=limits) as client:
            await asyncio.gather(*(ask_on(client, number) for number in range(clients)))

    loop = asyncio.new_event_loop()
    asking = loop.create_task(ask_all())

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(asking)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(asking.cancel)
        thread.join()
        loop.close()


def edge_url(skerry: Skerry, edge: str) -> str:
    """Return that of an edge, whoever runs it."""
    status = skerry.status()
    urls = {each["id"].rpartition("-")[0]: each["url"] for each in status["edges"]}
    wanted = status.get("control", {"edge_nodes": []})["edge_nodes"]
    return str((urls | {each["id"]: each["status"]["url"] for each in wanted})[edge])


@contextlib.contextmanager
def braked(process: int, answers: Callable[[], bool], steps: Steps, hold: float) -> Generator[None]:
    """Stop the thread of a busy engine for `hold` seconds after each of its steps.

    However slow the machine is, the next step is made before the thread is stopped again. It is
    stopped in its kernels: where it has the interpreter, the process no longer `answers`, and it
    goes on at once.
    """
    over = threading.Event()
    try_to_trace(process)

    def brake() -> None:
        before = None
        with traced(busiest_thread(process)) as thread:
            while not over.wait(LOOK_SECONDS):
                if (now := steps()) in (None, before):
                    continue
                before = now
                thread.stop()
                while not answers() and not over.is_set():
                    thread.go_on()
                    time.sleep(0.003)
                    thread.stop()
                over.wait(hold)
                thread.go_on()

    braking = threading.Thread(target=brake)  # all of ptrace(2) is one thread's
    braking.start()
    try:
        yield
    finally:
        over.set()
        braking.join()


def busiest_thread(process: int) -> int:
    """Return the thread beside the main one that took most of the processor for a moment."""

    def ticks() -> dict[int, int]:
        found = {}
        for task in Path(f"/proc/{process}/task").iterdir():
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            found[int(task.name)] = int(fields[11]) + int(fields[12])
        return found

    before = ticks()
    time.sleep(BUSY_SECONDS)
    used = {id: after - before.get(id, after) for id, after in ticks().items() if id != process}
    return max(used, key=lambda id: used[id])


class Traced:
    """A thread that runs, of a process that is traced."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._ask(SEIZE)

    def stop(self) -> None:
        self._ask(INTERRUPT)
        os.waitpid(self._thread, ALL_THREADS)

    def go_on(self) -> None:
        self._ask(CONTINUE)

    def leave(self) -> None:
        self.stop()
        self._ask(DETACH)

    def _ask(self, request: int) -> None:
        if self._libc.ptrace(request, self._thread, None, None) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def traced(thread: int) -> Generator[Traced]:
    """As a debugger does. Raises OSError."""
    made = Traced(thread)
    try:
        yield made
    finally:
        made.leave()


def try_to_trace(thread: int) -> None:
    """Skip the test where that is forbidden."""
    try:
        with traced(thread):
            pass
    except OSError as error:
        pytest.skip(f"ptrace: {error}")


@contextlib.contextmanager
def repeated(harm: Callable[[], None]) -> Generator[None]:
    """Do harm again and again until the block ends."""
    over = threading.Event()

    def do() -> None:
        while not over.is_set():
            harm()

    thread = threading.Thread(target=do)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
