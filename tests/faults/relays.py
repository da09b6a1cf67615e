"""Relays in front of nodes' unix sockets: to cut, hold up, slow down and spoil what passes.

A node's socket is renamed, and the relay listens at its name, again each time the node starts. For
both ends a held-up relay is a network partition: connections stay, and nothing comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from random import Random

CHUNK = 1 << 14
LOOK_SECONDS = 0.01  # between looks for sockets of nodes that have started


class Relay:
    """One socket of one node."""

    def __init__(self, path: Path, rng: Random) -> None:
        self._path = path
        self._behind = path.with_name(f"{path.name}.behind")
        self._rng = rng
        self._server: asyncio.AbstractServer | None = None
        self._inode = 0  # of our own listening socket
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._bytes_per_second: float | None = None
        self.to_spoil = 0  # chunks

    @property
    def is_interposed(self) -> bool:
        """Whether it stands before a socket."""
        return self._server is not None

    async def interpose(self) -> None:
        """Stand before a socket that the node has just opened, if it has."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                return
            self._path.rename(self._behind)
            if self._server is not None:
                self._server.close()
            self._server = await asyncio.start_unix_server(self._serve, self._path)
            self._inode = self._path.stat().st_ino

    async def hold_up(self, seconds: float) -> None:
        """Nothing passes, either way."""
        self._flows.clear()
        await asyncio.sleep(seconds)
        self._flows.set()

    async def slow_down(self, seconds: float, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        await asyncio.sleep(seconds)
        self._bytes_per_second = None

    def cut(self) -> None:
        """Break every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._flows.set()
        self.cut()
        await asyncio.gather(*self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self._behind)
        except OSError:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = {writer, far_writer}
        self._writers |= ends
        try:
            await asyncio.gather(
                self._pass_on(reader, far_writer, spoils=True),
                self._pass_on(far_reader, writer, spoils=False),
            )
        finally:
            self._writers -= ends
            self._tasks.discard(task)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, spoils: bool
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                await self._flows.wait()
                if self._bytes_per_second is not None:
                    await asyncio.sleep(len(data) / self._bytes_per_second)
                if spoils and self.to_spoil:
                    self.to_spoil -= 1
                    data = self._spoiled(data)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    def _spoiled(self, data: bytes) -> bytes:
        where = self._rng.randrange(len(data))
        return data[:where] + bytes([data[where] ^ 1 << self._rng.randrange(8)]) + data[where + 1 :]


class Relays:
    """Relays for all sockets of some nodes, by node and kind (`node`: frames of edges, `kv`)."""

    def __init__(self, folder: Callable[[], Path | None], nodes: list[str], rng: Random) -> None:
        self._folder, self._nodes, self._rng = folder, nodes, rng
        self._relays: dict[tuple[str, str], Relay] = {}
        self._task = asyncio.create_task(self._watch())

    def __getitem__(self, key: tuple[str, str]) -> Relay:
        return self._relays[key]

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for relay in self._relays.values():
            await relay.close()

    async def _watch(self) -> None:
        while (folder := self._folder()) is None:  # noqa: ASYNC110  (another process makes it)
            await asyncio.sleep(LOOK_SECONDS)
        self._relays = {
            (node, kind): Relay(folder / f"{node}.{kind}", self._rng)
            for node in self._nodes
            for kind in ("node", "kv")
        }
        while True:
            for relay in self._relays.values():
                await relay.interpose()
            await asyncio.sleep(LOOK_SECONDS)
