"""Who follows a stream over a connection that swallows what comes notices, and misses nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from nats.aio.client import Client
from tests.regions.drivers.nats_server import NatsCluster

from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.follower import LOOK_SECONDS, StreamFollower
from skerry_regions.drivers.jetstream.stream import KeyedStream, Write
from skerry_regions.drivers.jetstream.tables import MONEY
from skerry_regions.state_url import StateURL
from skerry_regions.zones import GLOBAL

pytestmark = pytest.mark.slow

NOTICED_SECONDS = 10.0


class Swallowing:
    """A relay before a server, that may let connections stand and pass nothing on."""

    def __init__(self, url: str) -> None:
        self._port = urlsplit(url).port
        self._tasks: set[asyncio.Task[None]] = set()
        self._swallows: list[asyncio.Event] = []  # of each connection
        self.num_connections = 0

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        yield int(server.sockets[0].getsockname()[1])
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def swallow(self) -> None:
        """Pass nothing on over the connections that there are."""
        for each in self._swallows:
            each.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        swallows = asyncio.Event()
        self._swallows.append(swallows)
        behind, ahead = await asyncio.open_connection("127.0.0.1", self._port)
        for source, sink in ((reader, ahead), (behind, writer)):
            task = asyncio.create_task(self._pass_on(source, sink, swallows))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, swallows: asyncio.Event
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if not swallows.is_set():
                    sink.write(data)
        sink.close()


class Deaf(Client):
    """A client whose subscriptions get nothing while `is_deaf`; requests are answered."""

    is_deaf = False

    async def subscribe(self, subject: str, *args: Any, **options: Any) -> Any:
        heard = options["cb"]

        async def hear(message: Any) -> None:
            if not Deaf.is_deaf or subject.endswith("*"):  # answers of requests
                await heard(message)

        return await super().subscribe(subject, *args, **options | {"cb": hear})


@asynccontextmanager
async def opened(url: StateURL, client: type[Client] = Client) -> AsyncGenerator[KeyedStream]:
    jetstream = JetStream(url, make_client=client)
    await jetstream.open((MONEY, GLOBAL))
    yield KeyedStream(jetstream, MONEY, GLOBAL)
    await jetstream.close()


async def followed(writer: KeyedStream, follower: KeyedStream, cut: Any) -> float:
    """Seconds until a follower has what was written after it was cut off."""
    seen: dict[str, bytes] = {}
    following = StreamFollower(follower, lambda stored: seen.update({stored.key: stored.data}))
    following.start()
    await writer.write(Write("a", b"1"))
    async with asyncio.timeout(30):
        while seen.get("a") != b"1":  # noqa: ASYNC110  (another task's)
            await asyncio.sleep(0.01)
    cut()
    loop = asyncio.get_running_loop()
    began = loop.time()
    await writer.write(Write("a", b"2"))
    await writer.write(Write("b", b"3"))
    async with asyncio.timeout(NOTICED_SECONDS + LOOK_SECONDS):
        while seen != {"a": b"2", "b": b"3"}:  # noqa: ASYNC110  (another task's)
            await asyncio.sleep(0.01)
    took = loop.time() - began
    await following.close()
    return took


def test_a_connection_that_swallows_all_is_made_again(tmp_path: Path) -> None:
    async def run() -> None:
        relay = Swallowing(cluster.state.servers[0])
        async with relay.listening() as port:
            through = StateURL.parse(
                f"nats://skerry:loopback@127.0.0.1:{port}?system=sys:sys&replicas=1"
            )
            assert through is not None
            async with opened(cluster.state) as writer, opened(through) as follower:
                took = await followed(writer, follower, relay.swallow)
        assert took < NOTICED_SECONDS
        assert relay.num_connections >= 2

    cluster = NatsCluster(tmp_path, size=1)
    try:
        asyncio.run(run())
    finally:
        cluster.stop()


def test_a_consumer_that_falls_silent_is_replaced(tmp_path: Path) -> None:
    async def run() -> None:
        def silence() -> None:
            Deaf.is_deaf = True
            asyncio.get_running_loop().call_later(0.5, setattr, Deaf, "is_deaf", False)

        async with opened(cluster.state) as writer, opened(cluster.state, Deaf) as follower:
            took = await followed(writer, follower, silence)
        assert 0.5 < took < 3 * LOOK_SECONDS

    cluster = NatsCluster(tmp_path, size=1)
    try:
        asyncio.run(run())
    finally:
        cluster.stop()
        Deaf.is_deaf = False
