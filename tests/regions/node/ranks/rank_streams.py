"""Streams between two ranks of every kind, and machines that serve stages."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.regions.wire.tls_links import KEY, LOOPBACK, Machines

from skerry_regions.address import Address
from skerry_regions.node.ranks.stage_server import StageServer
from skerry_regions.node.ranks.stream import RankStream, prove
from skerry_regions.wire.link_auth import LinkCredentials
from skerry_regions.wire.link_key import ConnectingEnd, ListeningEnd
from skerry_regions.wire.link_tls import TlsEnd

Streams = tuple[RankStream, RankStream]
End = ConnectingEnd | ListeningEnd | TlsEnd


def proven(one: LinkCredentials, other: LinkCredentials) -> Streams:
    """Both ends of a TCP connection; the second one listens. Raises what the first one does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname())
        answerer, _ = listener.accept()
    ends = (
        (caller, one.end(LOOPBACK, "ranks", listens=False)),
        (answerer, other.end(LOOPBACK, "ranks", listens=True)),
    )
    with ThreadPoolExecutor(2) as threads:
        one_stream, other_stream = threads.map(_proven, *zip(*ends, strict=True))
        return one_stream, other_stream


def _proven(connection: socket.socket, end: End) -> RankStream:
    try:
        return prove(connection, end, 60)
    except OSError:
        connection.close()
        raise


def streams_of(kind: str, folder: Path) -> Streams:
    """Both ends of a connection of a kind: unix, tcp, tls."""
    if kind == "unix":
        return socket.socketpair()
    if kind == "tcp":
        return proven(KEY, KEY)
    machines = Machines(folder)
    return proven(machines.of("a", "node"), machines.of("b", "node"))


@contextmanager
def serving(
    credentials: LinkCredentials, command: Callable[[int], list[str]], *, most: int = 1
) -> Generator[tuple[StageServer, Address]]:
    """A machine that serves stages, on a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def listen() -> tuple[StageServer, Address]:
        server = StageServer(command, most=most)
        return server, await server.listen(LOOPBACK, credentials)

    server, at = asyncio.run_coroutine_threadsafe(listen(), loop).result(60)
    try:
        yield server, at
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def stage_command(home: Path) -> Callable[[int], list[str]]:
    """What `skerry stage` starts for a rank."""
    return lambda descriptor: [
        sys.executable, "-m", "skerry", "stage", "--home", str(home), "--threads", "1",
        "--connection-fd", str(descriptor),
    ]  # fmt: skip
