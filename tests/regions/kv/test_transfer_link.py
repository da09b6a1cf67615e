"""KV transfers over real sockets: whole blocks arrive, and failure is only ever a lost lease."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tests.regions.kv.links import BLOCK, COUNT, MADE, TOKEN, block, digest, offer, outcome, server

from skerry_regions.address import Address
from skerry_regions.kv.frames import (
    Committed,
    TransferError,
    TransferRefused,
    on_host,
)
from skerry_regions.kv.outgoing import OutgoingTransfer
from skerry_regions.kv.receiver import Arrived
from skerry_regions.kv.transfer_server import TransferServer
from skerry_regions.wire.link_auth import LinkCredentials
from skerry_regions.wire.link_key import LinkKey

pytestmark = pytest.mark.anyio

KEY = LinkCredentials(LinkKey(b"k" * 32))


async def test_a_transfer_that_is_expected_is_not_expected_again() -> None:
    to = server()
    arriving = to.expect(1, TOKEN, lease_seconds=60)
    with pytest.raises(TransferError, match="KV transfer 1 is expected already"):
        to.expect(1, b"another token 32 bytes", lease_seconds=60)
    assert len(to.expected) == 1
    assert not arriving.done()
    await to.close()


@pytest.mark.parametrize("address", ["unix", "tcp"])
async def test_blocks_arrive_with_the_first_token(tmp_path: Path, address: str) -> None:
    to = server(held={digest(2)})
    where = (
        Address(path=str(tmp_path / "kv.sock")) if address == "unix" else Address(host="127.0.0.1")
    )
    bound = await to.listen(where, KEY)
    arriving = to.expect(1, TOKEN, lease_seconds=60)
    sending = OutgoingTransfer(bound, offer(), KEY)
    for i in range(COUNT):
        sending.seal(digest(i), block(i))
        await asyncio.sleep(0)
    sending.finish(MADE)
    arrived = await arriving
    assert isinstance(arrived, Arrived)
    assert [(d, bytes(on_host(b))) for d, b in arrived.blocks] == [
        (digest(i), block(i)) for i in range(COUNT) if i != 2
    ]
    assert (arrived.first_token, arrived.tail_tokens) == (MADE, 3)
    assert await outcome(sending) == Committed(1)
    assert (to.receiver.staged_bytes, len(to.expected)) == (0, 0)
    await to.close()


class Cutting:
    """A relay between the two that cuts each connection after some bytes."""

    def __init__(self, target: Address, path: Path, cuts: list[int]) -> None:
        self.target, self.path, self.cuts = target, path, cuts
        self.tasks: list[asyncio.Task[None]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        left = self.cuts.pop(0) if self.cuts else 1 << 40
        far_reader, far_writer = await asyncio.open_unix_connection(self.target.path)
        back = asyncio.create_task(self.pump(far_reader, writer))
        with suppress(ConnectionError):
            while left > 0 and (data := await reader.read(min(left, 1 << 16))):
                far_writer.write(data)
                left -= len(data)
        for each in (far_writer, writer):
            each.transport.abort()
        await back

    @staticmethod
    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)


async def test_a_transfer_goes_on_after_cut_connections(tmp_path: Path) -> None:
    to = server()
    target = await to.listen(Address(path=str(tmp_path / "kv.sock")))
    relay = Cutting(target, tmp_path, [100, 2 * BLOCK + 50, BLOCK + 10])
    listening = await asyncio.start_unix_server(relay.serve, tmp_path / "relay.sock")
    arriving = to.expect(1, TOKEN, lease_seconds=60)
    sending = OutgoingTransfer(Address(path=str(tmp_path / "relay.sock")), offer())
    for i in range(COUNT):
        sending.seal(digest(i), block(i))
    sending.finish(MADE)
    arrived = await arriving
    assert isinstance(arrived, Arrived)
    assert [bytes(on_host(b)) for _, b in arrived.blocks] == [block(i) for i in range(COUNT)]
    assert relay.cuts == []
    sending.cancel()
    await to.close()
    await asyncio.gather(*relay.tasks)
    listening.close()


async def test_a_lapsed_lease_gives_none_and_frees_the_staging(tmp_path: Path) -> None:
    to = server()
    bound = await to.listen(Address(path=str(tmp_path / "kv.sock")))
    arriving = to.expect(1, TOKEN, lease_seconds=0.1)
    sending = OutgoingTransfer(bound, offer())
    sending.seal(digest(0), block(0))
    assert await arriving is None
    assert to.receiver.staged_bytes == 0
    sending.finish(MADE)
    sending.cancel()
    await to.close()


async def test_a_wrong_token_is_refused_and_the_lease_goes_on(tmp_path: Path) -> None:
    to = server()
    bound = await to.listen(Address(path=str(tmp_path / "kv.sock")))
    arriving = to.expect(1, TOKEN, lease_seconds=60)
    refused = await outcome(OutgoingTransfer(bound, offer(token=b"guess")))
    assert refused == TransferRefused(1, "wrong token")
    assert not arriving.done()
    arriving.cancel()
    await asyncio.sleep(0)
    assert not to.expected
    await to.close()


async def test_nobody_there_is_a_refusal(tmp_path: Path) -> None:
    sending = OutgoingTransfer(Address(path=str(tmp_path / "nobody.sock")), offer())
    assert await outcome(sending) == TransferRefused(1, "the peer is gone")


async def until_staged(to: TransferServer) -> None:
    while not to.receiver.staged_bytes:  # noqa: ASYNC110  (nobody is told of it)
        await asyncio.sleep(0)


async def test_a_sender_that_gives_up_ends_the_wait(tmp_path: Path) -> None:
    to = server()
    bound = await to.listen(Address(path=str(tmp_path / "kv.sock")))
    arriving = to.expect(1, TOKEN, lease_seconds=60)
    sending = OutgoingTransfer(bound, offer())
    sending.seal(digest(0), block(0))
    await until_staged(to)
    sending.cancel()
    assert await arriving is None
    assert (to.receiver.staged_bytes, len(to.expected)) == (0, 0)
    await to.close()


async def test_a_sender_that_vanishes_is_not_waited_for_long(tmp_path: Path) -> None:
    to = server()
    target = await to.listen(Address(path=str(tmp_path / "kv.sock")))
    relay = Cutting(target, tmp_path, [BLOCK * 2])
    async with await asyncio.start_unix_server(relay.serve, tmp_path / "relay.sock") as listening:
        arriving = to.expect(1, TOKEN, lease_seconds=60)
        sending = OutgoingTransfer(Address(path=str(tmp_path / "relay.sock")), offer())
        for i in range(COUNT):
            sending.seal(digest(i), block(i))
        await until_staged(to)
        listening.close()
        assert await arriving is None
        assert await outcome(sending) == TransferRefused(1, "the peer is gone")
    await asyncio.gather(*relay.tasks)
    await to.close()


async def test_a_refusal_ends_the_wait(tmp_path: Path) -> None:
    to = server()
    bound = await to.listen(Address(path=str(tmp_path / "kv.sock")))
    arriving = to.expect(1, TOKEN, lease_seconds=60)
    other = msgspec.structs.replace(offer(), numeric_build="other")
    refused = await outcome(OutgoingTransfer(bound, other))
    assert isinstance(refused, TransferRefused)
    assert await arriving is None
    await to.close()
