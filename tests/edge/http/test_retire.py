"""An edge that leaves to its successor: both listen at one socket, and nobody is turned away."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from skerry_edge.http.server import listen, serve
from skerry_edge.limits import Limits

LIMITS = Limits(drain_seconds=1, retire_seconds=20.0)
GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n"
LATE = b"GET /late HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Served:
    """One of several servers at a socket."""

    def __init__(self, name: str, limits: Limits = LIMITS) -> None:
        self.name = name
        self._limits = limits
        self.ready, self.retire, self.stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.go_on = asyncio.Event()  # for the slow answer
        self.asked = asyncio.Event()  # for the late answer
        routes = [
            Route("/", self._answer),
            Route("/slow", self._answer_slowly),
            Route("/late", self._answer_late),
        ]
        self._app = Starlette(routes=routes)
        self.task: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket) -> Served:
        self.task = asyncio.create_task(
            serve(
                self._app,
                listener=listener,
                limits=self._limits,
                ready=self.ready.set,
                stop=self.stop,
                retire=self.retire,
            )
        )
        await self.ready.wait()
        return self

    async def ended(self) -> None:
        assert self.task is not None
        await asyncio.wait_for(self.task, 30)

    async def _answer(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse(self.name)

    async def _answer_late(self, request: Request) -> PlainTextResponse:
        self.asked.set()
        await self.go_on.wait()
        return PlainTextResponse("late")

    async def _answer_slowly(self, request: Request) -> StreamingResponse:
        async def pieces() -> AsyncGenerator[str]:
            yield "begun "
            await self.go_on.wait()
            yield "done"

        return StreamingResponse(pieces())


class Client:
    """A connection that stays open between requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, request: bytes) -> None:
        self._writer.write(request)

    async def get(self) -> tuple[str, str]:
        """The head of the answer, and its body."""
        self.send(GET)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        return head, (await self.reader.readexactly(length)).decode()

    def close(self) -> None:
        self._writer.close()


async def ask_once(port: int) -> str:
    client = await Client.connect(port)
    _, body = await client.get()
    client.close()
    return body


def test_a_successor_takes_over_and_nobody_is_turned_away() -> None:
    async def run() -> None:
        listener = listen("127.0.0.1", 0, LIMITS)
        port = listener.getsockname()[1]
        old = await Served("old").start(listener.dup())
        idle, streaming = await Client.connect(port), await Client.connect(port)
        assert (await idle.get())[1] == "old"
        streaming.send(SLOW)
        await streaming.reader.readuntil(b"begun ")

        new = await Served("new").start(listener.dup())
        old.retire.set()
        await asyncio.sleep(0)  # it has heard
        assert {await ask_once(port) for _ in range(50)} == {"new"}
        head, body = await idle.get()  # its connection is still the old one's
        assert body == "old"
        assert "connection: close" in head
        assert await idle.reader.read() == b""
        assert old.task is not None
        assert not old.task.done()  # a stream runs

        old.go_on.set()
        assert b"done" in await streaming.reader.readuntil(b"0\r\n\r\n")
        streaming.close()  # it may send one request more, and would be waited for
        await old.ended()
        again = await Client.connect(port)
        assert (await again.get())[1] == "new"
        for client in (idle, again):
            client.close()
        new.stop.set()
        await new.ended()
        listener.close()

    asyncio.run(run())


def test_idle_connections_are_closed_after_a_while() -> None:
    async def run() -> None:
        listener = listen("127.0.0.1", 0, LIMITS)
        served = await Served("only", Limits(retire_seconds=0.1)).start(listener)
        client = await Client.connect(listener.getsockname()[1])
        await client.get()
        served.retire.set()
        last = await client.reader.read()
        assert last.startswith(b"HTTP/1.1 408 ")  # whoever asks at this moment may ask again
        assert b"connection: close" in last
        client.close()
        await served.ended()

    asyncio.run(run())


def test_a_connection_whose_stream_ends_meanwhile_takes_one_request_more() -> None:
    """The stream's head said that the connection stays: its client may send the next request
    before it can see anything else."""

    async def run() -> None:
        listener = listen("127.0.0.1", 0, LIMITS)
        served = await Served("only").start(listener)
        client = await Client.connect(listener.getsockname()[1])
        client.send(SLOW)
        await client.reader.readuntil(b"begun ")
        served.retire.set()
        await asyncio.sleep(0.3)  # uvicorn's own shutdown has begun
        served.go_on.set()
        await client.reader.readuntil(b"0\r\n\r\n")
        await asyncio.sleep(0.1)
        head, body = await client.get()
        assert body == "only"
        assert "connection: close" in head
        assert await client.reader.read() == b""
        client.close()
        await served.ended()

    asyncio.run(run())


def test_an_answer_that_has_not_begun_says_that_it_is_the_last() -> None:
    async def run() -> None:
        listener = listen("127.0.0.1", 0, LIMITS)
        served = await Served("only").start(listener)
        client = await Client.connect(listener.getsockname()[1])
        client.send(LATE)
        await served.asked.wait()
        served.retire.set()
        await asyncio.sleep(0.1)
        served.go_on.set()
        answer = await client.reader.read()
        assert b"connection: close" in answer.lower()
        assert answer.endswith(b"late")
        client.close()
        await served.ended()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["event", "signal"])
def test_one_that_is_stopped_while_it_retires_hurries(how: str) -> None:
    async def run() -> None:
        listener = listen("127.0.0.1", 0, LIMITS)
        served = await Served("only").start(listener)
        client = await Client.connect(listener.getsockname()[1])
        client.send(SLOW)
        await client.reader.readuntil(b"begun ")
        served.retire.set()
        while listener.fileno() >= 0:  # noqa: ASYNC110  (until it has closed it)
            await asyncio.sleep(0.01)
        if how == "event":
            served.stop.set()
        else:
            os.kill(os.getpid(), signal.SIGTERM)
        await served.ended()  # though the stream would go on for ever
        client.close()

    previous = signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it again at its end
    try:
        asyncio.run(run())
    finally:
        signal.signal(signal.SIGTERM, previous)
