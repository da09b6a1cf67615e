"""Silent connections to a node's link without a key: whoever holds it gets in all the same."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest
import xxhash
from tests.regions.wire.tls_links import Machines

from skerry_regions.address import Address
from skerry_regions.kv import frames
from skerry_regions.kv.frames import KVFrameDecoder, TransferError
from skerry_regions.wire import link_auth
from skerry_regions.wire.link_auth import LinkCredentials, connect, listen
from skerry_regions.wire.link_key import LinkKey

KEY = LinkCredentials(LinkKey(b"k" * 32))
ATTEMPTS = 35


class Caller(asyncio.Protocol):
    """A connection that says this much."""

    def __init__(self, said: bytes = b"") -> None:
        self.said = said
        self.lost = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.said)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    async def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
            await self.lost.wait()


async def hold(port: int, said: bytes, held: asyncio.Semaphore) -> None:
    """Hold a connection, and open another as soon as it is closed."""
    while True:
        caller = Caller(said)
        await asyncio.get_running_loop().create_connection(lambda c=caller: c, "127.0.0.1", port)
        held.release()
        try:
            await caller.lost.wait()
        finally:
            await caller.close()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("said", "is_tls"), [(b"", False), (b"sk", False), (b"", True), (b"\x16\x03\x01", True)]
)
def test_who_is_of_the_platform_gets_in_past_hundreds_who_say_nothing(
    said: bytes, is_tls: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """64 of them were enough: 34 of 35 rightful attempts were refused."""
    caplog.set_level(logging.WARNING)

    machines = Machines(tmp_path)
    ours = [machines.of(name, "node") for name in "ab"] if is_tls else [KEY, KEY]

    async def main() -> int:
        server, bound = await listen(Address(host="127.0.0.1", port=0), Caller, ours[0], "kv")
        port, held = bound.port, asyncio.Semaphore(0)
        assert port is not None
        number = link_auth.MAX_UNPROVEN + 40
        attackers = [asyncio.create_task(hold(port, said, held)) for _ in range(number)]
        for _ in range(number):
            await held.acquire()
        rightful = [await connect(bound, Caller, ours[1], "kv") for _ in range(ATTEMPTS)]
        for attacker in attackers:
            attacker.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)
        for each in rightful:
            await each.close()
        server.close()
        return len(rightful)

    assert asyncio.run(main()) == ATTEMPTS
    lines = [each for each in caplog.messages if "link was refused" in each]
    assert len(lines) <= 30  # 23,064 in half a minute before


def test_a_frame_of_broken_utf8_is_a_broken_protocol() -> None:
    """What msgspec raises for it is no `MsgspecError`."""
    body = bytearray(msgspec.msgpack.encode({"type": "refused", "transfer": 1, "reason": "xyz"}))
    body[-1] = 0xFF
    checksum = xxhash.xxh3_128_digest(bytes(body))
    header = frames._HEADER.pack(
        frames.MAGIC, frames.VERSION, frames._CONTROL, 0, 1, bytes(16), 0, 0, len(body), checksum
    )
    with pytest.raises(TransferError, match="malformed"):
        list(KVFrameDecoder().feed(header + bytes(body)))
