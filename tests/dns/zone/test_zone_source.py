"""A zone of a control plane as a server follows it, over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.edge.serving import serving
from tests.regions.control.support import Api

from skerry_dns.zone.zone_source import ZoneAway, ZoneSource
from skerry_edge.limits import Limits
from skerry_regions.control.api.app import create_app
from skerry_regions.topology.spec import Topology

pytestmark = pytest.mark.anyio


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    api = Api(tmp_path / "control")
    await api.make("regions", name="fra", iata="FRA")
    await api.make("dns_zones", name="example.test", nameservers=[{"name": "ns1"}])
    yield api
    await api.close()


@pytest.fixture
def port(api: Api) -> Iterator[int]:
    with serving(create_app(api.control), Limits()) as port:
        yield port


def source(
    port: int, folder: Path, *, token: str = "admin", zone: str = "example.test"
) -> ZoneSource:
    kept = folder / "dns" / "example.test.zone.json"
    return ZoneSource(url=f"http://127.0.0.1:{port}", token=token, zone=zone, kept=kept)


class Server:
    """Adopts what it is told; `looked` tells of every look."""

    def __init__(self) -> None:
        self.adopted: list[Topology] = []
        self.looks: asyncio.Queue[None] = asyncio.Queue()
        self._go_on = asyncio.Event()
        self.refuses = False

    async def adopt(self, topology: Topology) -> None:
        if self.refuses:
            raise ZoneAway("it makes no zone")
        self.adopted.append(topology)

    async def sleep(self, seconds: float) -> None:
        self.looks.put_nowait(None)
        await self._go_on.wait()
        self._go_on.clear()

    async def next_look(self) -> None:
        self._go_on.set()
        await self.looks.get()


@asynccontextmanager
async def following(source: ZoneSource) -> AsyncGenerator[Server]:
    """After its first look."""
    server = Server()
    task = asyncio.create_task(source.follow(server.adopt, server.sleep))
    await server.looks.get()
    yield server
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def records(topology: Topology) -> tuple[str, ...]:
    assert topology.dns is not None
    return topology.dns.records


async def test_changes_are_adopted_and_kept(api: Api, port: int, tmp_path: Path) -> None:
    followed = source(port, tmp_path)
    assert followed.last() is None
    async with following(followed) as server:
        assert [records(each) for each in server.adopted] == [()]
        await server.next_look()
        assert len(server.adopted) == 1  # nothing has changed
        await api.make("dns_records", zone="example.test", name="a", type="TXT", values=["x"])
        await server.next_look()
        assert records(server.adopted[-1]) == ('a 300 IN TXT "x"',)
    assert followed.last() == server.adopted[-1]
    assert followed.kept.stat().st_mode & 0o777 == 0o600


async def test_what_cannot_be_served_is_not_kept(
    api: Api, port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    followed = source(port, tmp_path)
    async with following(followed) as server:
        good = followed.last()
        server.refuses = True
        await api.http.patch("/dns_zones/example.test", json={"contact": "other"})
        await server.next_look()
        await server.next_look()
        assert [each.message for each in caplog.records if each.levelno == logging.WARNING] == [
            "zone example.test stays as it is: it makes no zone"
        ]
        assert followed.last() == good
        server.refuses = False  # and it is tried again
        await server.next_look()
        assert followed.last() == server.adopted[-1] != good


@pytest.mark.parametrize(
    ("token", "zone", "told"),
    [("wrong", "example.test", "answers 401"), ("admin", "other.test", "answers 404")],
)
async def test_who_is_told_nothing(
    port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, token: str, zone: str, told: str
) -> None:
    async with following(source(port, tmp_path, token=token, zone=zone)) as server:
        assert not server.adopted
    assert told in caplog.text


async def test_nobody_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    followed = source(1, tmp_path)
    followed.kept.parent.mkdir()
    followed.kept.write_text("{")
    assert followed.last() is None
    async with following(followed) as server:
        assert not server.adopted
    assert "cannot be used" in caplog.text
    assert "connection" in caplog.text.lower()
