"""A node's control API, asked over HTTP; and health that passes through the engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tests.regions.toy_node import MODEL, Events, Gate, node_of, submit, toy_engine

from skerry_core.engine.engine import Engine
from skerry_regions.address import Address, AddressError
from skerry_regions.node.canary import Canary
from skerry_regions.node.control_api import ControlAPI
from skerry_regions.process.pages import is_healthy
from skerry_regions.registry import Member

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def control(
    path: Path, engine: Engine, drained: list[bool], *, seconds: float = 60.0
) -> AsyncGenerator[tuple[httpx.AsyncClient, Address]]:
    address = Address(path=str(path / "control.sock"))
    async with node_of(engine) as node:
        api = ControlAPI(
            describe=lambda: Member(id="node-1", kind="node", region="here", state="ready"),
            edges=lambda: ["edge-1"],
            statistics=node.statistics,
            metrics=node.metrics.families,
            canary=Canary(node, seconds=seconds),
            drain=lambda: drained.append(True),
        )
        await api.listen(address)
        transport = httpx.AsyncHTTPTransport(uds=address.path)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client, address
        await api.close()


async def test_an_idle_engine_answers_a_canary(tmp_path: Path) -> None:
    drained: list[bool] = []
    async with control(tmp_path, toy_engine(), drained) as (client, address):
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        assert await is_healthy(address)
        status = (await client.get("/status")).json()
        assert status["node"]["id"] == "node-1"
        assert status["edges"] == ["edge-1"]
        assert status["engines"][MODEL]["blocks_used"] == 0
        metrics = (await client.get("/metrics")).text
        assert f'vllm:num_requests_running{{model_name="{MODEL}"}} 0' in metrics
        assert (await client.post("/drain")).status_code == 202
        assert drained == [True]


async def test_a_hung_engine_is_ill(tmp_path: Path) -> None:
    gate = Gate()
    engine = toy_engine(before_step=gate)
    async with control(tmp_path, engine, [], seconds=0.2) as (client, address):
        answer = await client.get("/healthz")
        assert answer.status_code == 503
        assert MODEL in answer.json()["reason"]
        assert not await is_healthy(address)
        gate.opened.set()


async def test_a_busy_engine_is_well_while_it_makes_steps(tmp_path: Path) -> None:
    engine = toy_engine(max_running=1, max_waiting=8)
    async with node_of(engine) as node:
        canary = Canary(node, seconds=60)
        events = Events()
        node.submit(submit(max_tokens=900), events)
        assert await canary.ailment() is None
        assert len((await events.all())[0]) == 900


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "content-type": "application/x-www-form-urlencoded"},
    ],
)
async def test_a_web_page_drains_no_node(tmp_path: Path, headers: dict[str, str]) -> None:
    drained: list[bool] = []
    async with control(tmp_path, toy_engine(), drained) as (client, _):
        answer = await client.post("/drain", headers=headers, content=b"a=b")
        assert (answer.status_code, drained) == (403, [])


async def test_strange_hosts_and_public_addresses_are_refused(tmp_path: Path) -> None:
    async with control(tmp_path, toy_engine(), []) as (client, _):
        answer = await client.get("/status", headers={"host": "evil.example"})
        assert answer.status_code == 421
    api = ControlAPI(
        describe=lambda: Member(id="n", kind="node", region="here"),
        edges=list,
        statistics=dict,
        metrics=tuple,
        canary=Canary.__new__(Canary),
        drain=lambda: None,
    )
    with pytest.raises(AddressError, match="loopback only"):
        await api.listen(Address(host="192.0.2.1", port=0))


async def test_nobody_there_is_not_healthy(tmp_path: Path) -> None:
    assert not await is_healthy(Address(path=str(tmp_path / "none.sock")))
    assert not await is_healthy(Address(host="127.0.0.1", port=1))
