"""Listeners that a page's name may be resolved to, each over a real socket of loopback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.edge.serving import serving
from tests.regions.control.joining import platform
from tests.regions.control.support import Api

from skerry_edge.limits import Limits
from skerry_edge.telemetry.metrics_page import MetricsPage
from skerry_regions.address import Address
from skerry_regions.control.api.app import create_app
from skerry_regions.node.canary import Canary
from skerry_regions.node.control_api import ControlAPI
from skerry_regions.registry import Member

PAGES: tuple[dict[str, str], ...] = (
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "same-origin"},
)
Reached = tuple[httpx.Client, str, dict[str, str]]
"""A client of a listener, a path that it answers, and headers of who may ask."""
Listener = Callable[[Path], AbstractContextManager[Reached]]


@contextmanager
def control_plane(folder: Path) -> Generator[Reached]:
    api = Api(folder)
    try:
        with serving(create_app(api.control), Limits(drain_seconds=1)) as port, _client(port) as it:
            yield it, "/control/v1/regions", {"authorization": "Bearer admin"}
    finally:
        asyncio.run(api.close())


@contextmanager
def joining(folder: Path) -> Generator[Reached]:
    """Where machines join, for one that has not."""
    with (
        platform(folder) as control,
        httpx.Client(base_url=control.url, verify=False, trust_env=False, timeout=60) as client,
    ):
        yield client, "/machines/v1/ca", {}


@contextmanager
def node(folder: Path) -> Generator[Reached]:
    api = ControlAPI(
        describe=lambda: Member(id="n", kind="node", region="here"),
        edges=list,
        statistics=dict,
        metrics=tuple,
        canary=Canary.__new__(Canary),
        drain=lambda: None,
    )
    with _listening(api.listen, api.close) as port, _client(port) as client:
        yield client, "/status", {}


@contextmanager
def metrics_page(folder: Path) -> Generator[Reached]:
    page = MetricsPage(tuple)

    async def close() -> None:
        page.close()

    with _listening(page.listen, close) as port, _client(port) as client:
        yield client, "/metrics", {}


@contextmanager
def _listening(
    listen: Callable[[Address], Awaitable[Address]], close: Callable[[], Awaitable[Any]]
) -> Generator[int]:
    """Run a listener on a loop of a thread; gives its port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin() -> int:
        return (await listen(Address(host="127.0.0.1", port=0))).port

    async def end() -> None:
        await close()

    try:
        yield asyncio.run_coroutine_threadsafe(begin(), loop).result(60)
        asyncio.run_coroutine_threadsafe(end(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _client(port: int) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60)
