"""Calls between two edges over a link: whole answers, at the reader's pace, within bounds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send
from tests.regions.toy_nodes import PATIENCE, hello, until
from tests.regions.wire.tls_links import KEY, Machines, Tap

from skerry.errors import Overloaded, Unavailable
from skerry_edge.http.edge_calls import MAX_TENANT_CALLS, ZONE_KEY, CallDoor, ZoneCalls
from skerry_regions.address import Address
from skerry_regions.region.gateway import RegionGateway
from skerry_regions.wire.edge_calls import PART_BYTES, EdgeCall
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.link_auth import NO_CREDENTIALS, LinkCredentials
from skerry_regions.wire.listener import NodeServer
from skerry_regions.wire.reports import Report

pytestmark = pytest.mark.anyio

PIECE = bytes(range(256)) * 512  # two parts
CALL = EdgeCall(
    stream=1, zone="us", method="POST", target=b"/a%20b?c=d", headers=[(b"x-a", b"y")], body=b"in"
)


class Application:
    """Answers with as many pieces as it is told to, then waits or ends."""

    def __init__(self) -> None:
        self.num_pieces = 3
        self.stays = False
        self.error: Exception | None = None
        self.scopes: list[Scope] = []
        self.bodies: list[bytes] = []
        self.num_sent = 0
        self.num_cancelled = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        self.bodies.append((await receive())["body"])
        if self.error is not None:
            raise self.error
        fields = [(b"content-type", b"a/b"), (b"x-request-id", b"its own")]
        await send({"type": "http.response.start", "status": 207, "headers": fields})
        try:
            for _ in range(self.num_pieces):
                await send({"type": "http.response.body", "body": PIECE, "more_body": True})
                self.num_sent += 1
            if self.stays:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class NoReports:
    """Of a region without nodes."""

    def __call__(self) -> list[Report]:
        return []

    def snapshots(self) -> list[Report]:
        return []


class TwoEdges:
    def __init__(self, application: Application, calls: ZoneCalls, server: NodeServer) -> None:
        self.application, self.calls, self.server = application, calls, server


@asynccontextmanager
async def edges(
    folder: Path,
    *,
    serves: bool = True,
    own: tuple[LinkCredentials, LinkCredentials] | None = None,
    tap: Tap | None = None,
) -> AsyncGenerator[TwoEdges]:
    """An edge that has clients, and a link to one of `eu` with an application behind it; over TCP
    with credentials of `own`, those of the one with clients first."""
    calling, answering = own or (NO_CREDENTIALS, NO_CREDENTIALS)
    application, door = Application(), CallDoor()
    if serves:
        door.open(application)
    none: Any = None
    reports: Any = NoReports()
    server = NodeServer(RegionGateway("edge-eu", "eu", none, reports, door.answer), hello("eu"))
    address = Address(path=str(folder / "eu.gateway"))
    if own is not None:
        address = Address.parse("tcp:127.0.0.1:0")
    bound = await server.listen(address, answering)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.close)
        if tap is not None:
            bound = await stack.enter_async_context(tap.before(bound))
        link = NodeLink(
            "edge-eu", bound, hello("edge-us"), PATIENCE, zone="eu",
            credentials=calling.towards(answering.machine),
        )  # fmt: skip
        stack.push_async_callback(link.close)
        async with asyncio.timeout(30):
            await until(lambda: link.is_up)
        yield TwoEdges(application, ZoneCalls(lambda zone: [link] if zone == "eu" else []), server)


@pytest.mark.parametrize("is_encrypted", [True, False])
async def test_no_credentials_and_no_content_are_in_what_passes_between_edges(
    tmp_path: Path, is_encrypted: bool
) -> None:
    """In the clear, which one machine alone does, both are seen: the tap does work."""
    machines, tap, token = Machines(tmp_path / "authority"), Tap(), b"Bearer a-token-of-a-client"
    own = (KEY, KEY)
    if is_encrypted:
        own = machines.of("us", "edge"), machines.of("eu", "edge")
    async with edges(tmp_path, own=own, tap=tap) as pair:
        call = replace(CALL, headers=[(b"authorization", token)])
        answer = await pair.calls.call("eu", "t", call)
        assert b"".join([part async for part in answer.body()]) == 3 * PIECE
    seen = bytes(tap.bytes)
    assert len(seen) > len(PIECE)
    for secret in (token, PIECE[:64], b"/a%20b"):
        assert (secret in seen) is not is_encrypted


async def test_an_answer_comes_whole_and_the_call_as_it_was(tmp_path: Path) -> None:
    async with edges(tmp_path) as pair:
        answer = await pair.calls.call("eu", "t", CALL)
        assert (answer.status, answer.headers) == (207, [(b"content-type", b"a/b")])
        assert b"".join([part async for part in answer.body()]) == 3 * PIECE
        [scope] = pair.application.scopes
        assert (scope["method"], scope["path"], scope["raw_path"]) == ("POST", "/a b", b"/a%20b")
        assert (scope["query_string"], scope[ZONE_KEY]) == (b"c=d", "us")
        assert scope["headers"] == [(b"x-a", b"y"), (b"content-length", b"2")]
        assert pair.application.bodies == [b"in"]
        assert pair.server.num_streams == 0


async def test_no_more_of_an_answer_is_made_than_its_reader_has_room_for(tmp_path: Path) -> None:
    async with edges(tmp_path) as pair:
        pair.application.num_pieces = 100
        window = hello("x").window
        answer = await pair.calls.call("eu", "t", CALL)
        await asyncio.sleep(0.1)
        most = window * PART_BYTES // len(PIECE) + 1
        assert pair.application.num_sent <= most
        assert b"".join([part async for part in answer.body()]) == 100 * PIECE


async def test_an_answer_that_is_left_is_made_no_further(tmp_path: Path) -> None:
    async with edges(tmp_path) as pair:
        pair.application.stays = True
        answer = await pair.calls.call("eu", "t", CALL)
        body = answer.body()
        assert await anext(body) == PIECE[:PART_BYTES]
        await body.aclose()
        await until(lambda: pair.application.num_cancelled == 1)
        await until(lambda: pair.server.num_streams == 0)


async def test_a_link_that_breaks_ends_the_answer_with_an_error(tmp_path: Path) -> None:
    async with edges(tmp_path) as pair:
        pair.application.stays = True
        body = (await pair.calls.call("eu", "t", CALL)).body()
        await anext(body)
        await pair.server.close()
        with pytest.raises(Unavailable):
            async for _ in body:
                pass
        await until(lambda: pair.application.num_cancelled == 1)
        with pytest.raises(Unavailable, match="No edge in 'eu'"):
            await pair.calls.call("eu", "t", CALL)


@pytest.mark.parametrize(
    ("zone", "serves", "error"),
    [("us", True, None), ("eu", False, None), ("eu", True, RuntimeError("broken"))],
)
async def test_where_no_edge_answers_it_is_said_so(
    tmp_path: Path, zone: str, serves: bool, error: Exception | None
) -> None:
    async with edges(tmp_path, serves=serves) as pair:
        pair.application.error = error
        assert pair.calls.knows(zone) == (zone == "eu")
        with pytest.raises(Unavailable, match=f"No edge in '{zone}', where it is kept, answers"):
            await pair.calls.call(zone, "t", CALL)


async def test_a_tenant_has_a_bounded_number_of_calls_at_once(tmp_path: Path) -> None:
    async with edges(tmp_path) as pair:
        pair.application.stays = True
        running = [await pair.calls.call("eu", "t", CALL) for _ in range(MAX_TENANT_CALLS)]
        with pytest.raises(Overloaded):
            await pair.calls.call("eu", "t", CALL)
        (await pair.calls.call("eu", "another", CALL)).close()
        running.pop().close()
        (await pair.calls.call("eu", "t", CALL)).close()
        for answer in running:
            answer.close()
        await until(lambda: pair.server.num_streams == 0)
