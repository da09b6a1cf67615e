"""Relays that make regions far: nothing comes early, nothing is lost or out of order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from skerry_regions.address import Address
from skerry_regions.process.emulation import MAX_WAITING, Relay, RelayPlan, RunningRelays, relayed
from skerry_regions.topology.loading import parse_topology

pytestmark = pytest.mark.anyio

DELAY = 0.05  # seconds, one way
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Far(asyncio.Protocol):
    """Sends back what it reads; with a farewell, says that instead and goes."""

    def __init__(self, transports: list[asyncio.Transport], farewell: bytes) -> None:
        self._transports, self._farewell = transports, farewell

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._transports.append(transport)
        if self._farewell:
            transport.write(self._farewell)
            transport.close()

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@asynccontextmanager
async def relayed_to_far(
    folder: Path, delay: float = DELAY, farewell: bytes = b""
) -> AsyncGenerator[Pair]:
    """A connection through a relay."""
    transports: list[asyncio.Transport] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: Far(transports, farewell), folder / "far")
    async with relay(folder, delay) as pair:
        yield pair
    server.close()
    for transport in transports:
        transport.abort()
    await asyncio.sleep(0)


async def test_a_rate_holds_bytes_back(tmp_path: Path) -> None:
    transports: list[asyncio.Transport] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: Far(transports, b""), tmp_path / "far")
    near = tmp_path / "near"
    slow = Relay(Address(path=str(near)), Address(path=str(tmp_path / "far")), DELAY, 1e5)
    await slow.listen()
    reader, writer = await asyncio.open_unix_connection(near)
    began = loop.time()
    writer.write(bytes(20_000))
    assert await reader.readexactly(20_000) == bytes(20_000)
    assert loop.time() - began >= 2 * DELAY + 0.4  # 0.2 s out, and 0.2 s back
    writer.close()
    await slow.close()
    server.close()
    for transport in transports:
        transport.abort()
    await asyncio.sleep(0)


@asynccontextmanager
async def relay(folder: Path, delay: float = DELAY) -> AsyncGenerator[Pair]:
    """A connection to a relay before `folder / "far"`."""
    near, far = folder / "near", folder / "far"
    made = Relay(Address(path=str(near)), Address(path=str(far)), delay)
    await made.listen()
    reader, writer = await asyncio.open_unix_connection(near)
    async with asyncio.timeout(60):
        yield reader, writer
    writer.transport.abort()
    await made.close()


async def test_a_round_trip_takes_its_time(tmp_path: Path) -> None:
    async with relayed_to_far(tmp_path) as (reader, writer):
        start = asyncio.get_running_loop().time()
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert asyncio.get_running_loop().time() - start >= 2 * DELAY


async def test_much_comes_whole_and_in_order(tmp_path: Path) -> None:
    sent = bytes(range(256)) * (3 * MAX_WAITING // 2 // 256)
    async with relayed_to_far(tmp_path, 0.01) as (reader, writer):
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent


async def test_the_end_of_a_connection_comes_through_after_what_was_sent(tmp_path: Path) -> None:
    async with relayed_to_far(tmp_path, farewell=b"goodbye") as (reader, _):
        assert await reader.read() == b"goodbye"


async def test_nobody_behind_it_is_a_connection_that_ends(tmp_path: Path) -> None:
    async with relay(tmp_path) as (reader, _):
        assert await reader.read() == b""


def test_each_socket_has_one_for_every_other_region() -> None:
    topology = parse_topology(
        b"regions: [{name: fra, iata: FRA}, {name: iad, iata: IAD}, {name: nrt, iata: NRT}]\n"
        b"links: [{between: [iad, fra], rtt: 0.08}]\n"
        b"emulate: {rtt: links}\n"
    )
    a, b = "unix:/run/a.node", "unix:/run/b.node"
    made = RelayPlan(rtts=topology.rtts(), sockets=((a, "fra"), (b, "iad"))).relays()
    assert made.keys() == {
        relayed(a, "iad"), relayed(a, "nrt"), relayed(b, "fra"), relayed(b, "nrt"),
    }  # fmt: skip
    assert (made[relayed(a, "iad")], made[relayed(b, "fra")]) == ((a, 0.04), (b, 0.04))
    far, delay = made[relayed(a, "nrt")]
    assert (far, delay) == (a, pytest.approx((0.014 + 15.7e-6 * 9370) / 2, rel=0.02))


async def test_relays_follow_their_plan(tmp_path: Path) -> None:
    """What stays in the plan goes on, connections and all; a socket that left it is gone."""
    far, gone, plan = tmp_path / "far", tmp_path / "gone", tmp_path / "plan"
    loop = asyncio.get_running_loop()
    transports: list[asyncio.Transport] = []
    server = await loop.create_unix_server(lambda: Far(transports, b""), far)
    some = RelayPlan(rtts=(("a", "b", 0.01),), sockets=((f"unix:{far}", "a"),))
    both = replace(some, sockets=(*some.sockets, (f"unix:{gone}", "b")))
    relays = RunningRelays()
    plan.write_bytes(msgspec.json.encode(both))
    await relays.follow(plan)
    before = Path(relayed(str(gone), "a")).name

    def names() -> set[str]:
        return {path.name for path in tmp_path.iterdir()}

    assert before in names()
    reader, writer = await asyncio.open_unix_connection(relayed(str(far), "b"))
    plan.write_bytes(msgspec.json.encode(some))
    await relays.follow(plan)
    assert before not in names()
    writer.write(b"still here")
    assert await reader.readexactly(10) == b"still here"
    plan.write_bytes(msgspec.json.encode(replace(some, rtts=(("a", "b", 0.3),))))
    await relays.follow(plan)
    start = loop.time()
    writer.write(b"further")
    assert await reader.readexactly(7) == b"further"
    assert loop.time() - start >= 0.3
    writer.close()
    await relays.close()
    server.close()
    for transport in transports:
        transport.abort()
    await asyncio.sleep(0)
