"""Blocks, offers of them, and a server that takes them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection

from skerry_core.device_pages import DevicePages
from skerry_regions.kv.frames import Committed, FirstToken, Offer, TransferRefused
from skerry_regions.kv.outgoing import LastWord, OutgoingTransfer
from skerry_regions.kv.receiver import TransferReceiver
from skerry_regions.kv.transfer_server import TransferServer

LAYERS, BLOCK, COUNT = 4, 1 << 16, 6
TOKEN = b"token"
MADE = FirstToken([42], [(-0.5, [(42, -0.5)])])


def digest(number: int) -> bytes:
    return number.to_bytes(16, "little")


def block(number: int) -> bytes:
    return random.Random(number).randbytes(BLOCK)


def offer(token: bytes = TOKEN) -> Offer:
    return Offer(
        transfer=1, token=token, request_id="r", epoch=0, numeric_build="b", kv_dtype="float16",
        block_bytes=BLOCK, num_layers=LAYERS,
        digests=[digest(i) for i in range(COUNT)], tail_tokens=3,
    )  # fmt: skip


def nothing_held(_: Collection[bytes]) -> set[bytes]:
    return set()


def server(held: set[bytes] | None = None, pages: DevicePages | None = None) -> TransferServer:
    receiver = TransferReceiver(
        numeric_build="b",
        block_elements=BLOCK // 2,
        budget_bytes=64 * BLOCK,
        credit_bytes=2 * BLOCK,
    )
    return TransferServer(receiver, lambda digests: set(digests) & (held or set()), lambda: pages)


async def outcome(sending: OutgoingTransfer) -> Committed | TransferRefused:
    """Return how it ended: refused also when the peer could not be reached, or at `cancel`."""
    over: asyncio.Future[LastWord] = asyncio.get_running_loop().create_future()
    sending.when_over(over.set_result)
    return await over or TransferRefused(1, "the peer is gone")
