"""Metrics of a process without other HTTP, asked for as Prometheus does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from skerry_edge.telemetry.metrics_page import MAX_HEADER, MetricsPage
from skerry_regions.address import Address, AddressError
from skerry_regions.prometheus import CONTENT_TYPE, Counter, exposition

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def page(address: Address, *metrics: Counter) -> AsyncGenerator[Address]:
    page = MetricsPage(lambda: metrics)
    yield await page.listen(address)
    page.close()


async def test_a_unix_socket(tmp_path: Path) -> None:
    eggs = Counter("skerry_eggs_total", "Eggs.")
    async with page(Address(path=str(tmp_path / "page")), eggs) as address:
        transport = httpx.AsyncHTTPTransport(uds=address.path)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            eggs.add(3)
            answer = await client.get("/metrics")
            assert (answer.status_code, answer.content) == (200, exposition([eggs]))
            assert answer.headers["content-type"] == CONTENT_TYPE
            for method, path in (("GET", "/"), ("POST", "/metrics"), ("GET", "/metrics/")):
                assert (await client.request(method, path)).status_code == 404
            for host in ("attacker.example", "192.0.2.1:80", ""):
                answer = await client.get("/metrics", headers={"host": host})
                assert (answer.status_code, answer.text) == (421, "unknown host\n")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_loopback(host: str) -> None:
    async with page(Address(host=host)) as address:
        name = f"[{host}]" if ":" in host else host
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"http://{name}:{address.port}/metrics")
        assert answer.status_code == 200


async def test_nowhere_else() -> None:
    with pytest.raises(AddressError, match="unix: or loopback only"):
        await MetricsPage(tuple).listen(Address(host="192.0.2.1", port=9103))


async def test_what_is_no_request_gets_no_answer() -> None:
    async with page(Address(host="127.0.0.1")) as address:
        for sent in (b"GET /metrics", b"x" * (2 * MAX_HEADER)):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(sent)
            writer.write_eof()
            with contextlib.suppress(ConnectionResetError):  # something of it was never read
                assert await reader.read() == b""
            writer.close()
