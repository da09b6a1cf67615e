"""KV transfers that are offered before anybody asks for them, and blocks taken one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.regions.kv.links import BLOCK, COUNT, MADE, TOKEN, block, digest, offer, outcome, server
from tests.regions.toy_nodes import until

from skerry_regions.address import Address
from skerry_regions.kv import transfer_server
from skerry_regions.kv.frames import (
    Committed,
    Offer,
    Payload,
    TransferRefused,
    on_host,
)
from skerry_regions.kv.outgoing import OutgoingTransfer
from skerry_regions.kv.receiver import Arrived

pytestmark = pytest.mark.anyio


async def test_an_offer_may_come_before_the_request_it_is_for(tmp_path: Path) -> None:
    to = server()
    bound = await to.listen(Address(path=str(tmp_path / "kv.sock")))
    sending = OutgoingTransfer(bound, offer())
    for i in range(COUNT):
        sending.seal(digest(i), block(i))
    sending.finish(MADE)
    await until(lambda: len(to.early) == 1)
    arrived = await to.expect(1, TOKEN, lease_seconds=60)
    assert isinstance(arrived, Arrived)
    assert len(arrived.blocks) == COUNT
    assert await outcome(sending) == Committed(1)
    assert not to.early
    await to.close()


@pytest.mark.parametrize("end", ["in time", "the sender gives up"])
async def test_an_offer_that_nobody_asks_for_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(transfer_server, "EARLY_SECONDS", 0.05 if end == "in time" else 60.0)
    to = server()
    bound = await to.listen(Address(path=str(tmp_path / "kv.sock")))
    sending = OutgoingTransfer(bound, offer())
    await until(lambda: len(to.early) == 1)
    if end == "in time":
        refusal = await outcome(sending)
        assert isinstance(refusal, TransferRefused)
        assert "no such transfer" in refusal.reason
    else:
        sending.cancel()
    await until(lambda: not to.early)
    await to.close()


async def test_offers_that_nobody_asks_for_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_server, "MAX_EARLY", 0)
    to = server()
    bound = await to.listen(Address(path=str(tmp_path / "kv.sock")))
    assert isinstance(await outcome(OutgoingTransfer(bound, offer())), TransferRefused)
    await to.close()


async def test_blocks_can_be_taken_before_the_others_are_here(tmp_path: Path) -> None:
    to = server()
    bound = await to.listen(Address(path=str(tmp_path / "kv.sock")))
    seen: list[bytes] = []

    def take(
        offer: Offer, name: bytes, data: Payload, checksum: int | None, taken: Callable[[], None]
    ) -> None:
        assert bytes(on_host(data)) == block(len(seen))
        assert checksum == (2**64 - 1 if name == digest(1) else None)
        seen.append(name)
        if name != digest(3):  # too late for this one
            taken()

    arriving = to.expect(1, TOKEN, lease_seconds=60, take=take)
    sending = OutgoingTransfer(bound, offer())
    for i in range(COUNT - 1):
        sending.seal(digest(i), block(i), 2**64 - 1 if i == 1 else None)
    await until(lambda: len(seen) == COUNT - 1)
    assert to.receiver.staged_bytes == BLOCK
    sending.seal(digest(COUNT - 1), block(COUNT - 1))
    sending.finish(MADE)
    arrived = await arriving
    assert isinstance(arrived, Arrived)
    assert [name for name, _ in arrived.blocks] == [digest(3)]
    assert (arrived.num_blocks, arrived.num_bytes) == (COUNT, COUNT * BLOCK)
    assert seen == [digest(i) for i in range(COUNT)]
    await to.close()
