"""The far end of a link that is measured: it drops what comes, and answers with its CPU time.

    python -m bench.workers.link_sink HOME

It prints where it listens. `SKERRY_LINK_TLS` says what kind of link it is.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import time
from pathlib import Path

import uvloop

from skerry_cli.home.keys import link_credentials
from skerry_cli.home.state import Home
from skerry_regions.address import Address
from skerry_regions.wire import link_auth

SIZE, SECONDS = struct.Struct("<Q"), struct.Struct("<d")


class Sink(asyncio.Protocol):
    """Either end: what is to come is announced by its size, and answered when it is there."""

    def __init__(self, answers: bool = False) -> None:
        self._answers = answers
        self._head = b""
        self._left = 0
        self._cpu = 0.0
        self._transport: asyncio.Transport | None = None
        self.answered: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]  # uvloop's is none by inheritance

    def send(self, pieces: list[bytes]) -> None:
        assert self._transport is not None
        self._transport.writelines([SIZE.pack(sum(map(len, pieces))), *pieces])

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if not self._answers:
            self._head += data
            if len(self._head) == SECONDS.size:
                self.answered.set_result(SECONDS.unpack(self._head)[0])
            return
        if not self._left:
            self._cpu = time.process_time()
            self._left, data = SIZE.unpack(data[: SIZE.size])[0], data[SIZE.size :]
        self._left -= len(data)
        if not self._left:
            self._transport.write(SECONDS.pack(time.process_time() - self._cpu))

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


async def run(home: Home) -> None:
    credentials = link_credentials(home, os.environ)
    where = Address(host="127.0.0.1")
    server, bound = await link_auth.listen(where, lambda: Sink(answers=True), credentials, "kv")
    print(bound, flush=True)
    async with server:  # type: ignore[attr-defined]  # of asyncio's own servers, and uvloop's
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(run(Home(Path(sys.argv[1]))))
