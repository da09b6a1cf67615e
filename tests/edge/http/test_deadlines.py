"""One deadline per request, counted from its arrival, whatever the request waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from starlette.types import Message, Scope
from tests.edge.byte_text import ByteText
from tests.edge.scripted_region import MODEL, Hold, ScriptedRegion
from tests.edge.support import ACCOUNT, events, specs

from skerry_edge.api.app import create_app
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.gate.waiting_room import WaitingRoom
from skerry_edge.generation.edge import Edge
from skerry_edge.generation.sse import Attended
from skerry_edge.limits import Limits
from skerry_edge.text.model import TextModel
from skerry_regions.models.catalog import Catalog

pytestmark = pytest.mark.anyio

RUN = f"run/{MODEL}"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
BODIES: dict[str, dict[str, Any]] = {
    RUN: {"prompt": "x"},
    "v1/chat/completions": CHAT,
    "v1/completions": {"model": MODEL, "prompt": "x"},
    "v1/messages": {**CHAT, "max_tokens": 8},
    "v1/responses": {"model": MODEL, "input": "x"},
}


class Place:
    """An edge whose model has no node yet, and whose clock stands until a test moves it."""

    def __init__(self, folder: Path) -> None:
        tokens = TokenStore(folder / "tokens.json")
        self.token, _ = tokens.create(account_id=ACCOUNT, now=0)
        self.now = 0.0
        self.region = ScriptedRegion()
        self.region.served = frozenset()
        self.room = WaitingRoom(self.region, clock=self.clock)
        self.edge = Edge(
            catalog=Catalog(specs()),
            texts={MODEL: cast(TextModel, ByteText())},
            region=self.room,
            tokens=tokens,
            secret=b"s" * 32,
            limits=Limits(request_seconds=900.0),
            clock=self.clock,
        )
        self.app = create_app(self.edge)

    def clock(self) -> float:
        return self.now

    def wake(self) -> None:
        self.region.served = frozenset({MODEL})


class Visitor:
    """A client that sends one request, `upload_seconds` long, and stays until it is told to go."""

    def __init__(
        self, place: Place, path: str, *, upload_seconds: float = 0.0, stream: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._place = place
        self._upload_seconds = upload_seconds
        self._body: bytes | None = msgspec.json.encode({**BODIES[path], "stream": stream})
        self._path = f"/client/v4/accounts/{ACCOUNT}/ai/{path}"
        self._headers = {"authorization": f"Bearer {place.token}", **(headers or {})}
        self.gone = asyncio.Event()
        self.status = 0
        self.answer = ""

    async def visit(self) -> None:
        await self._place.app(self._scope(), self._receive, self._send)

    def _scope(self) -> Scope:
        return {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in self._headers.items()],
            "client": None,
            "server": None,
        }

    async def _receive(self) -> Message:
        if self._body is None:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        self._place.now += self._upload_seconds
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        self.answer += message.get("body", b"").decode()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def held(place: Place) -> None:
    """Until a request waits for a node."""
    async with asyncio.timeout(60):
        while not place.room.held:  # noqa: ASYNC110  it does not tell who comes
            await asyncio.sleep(0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_a_client_that_leaves_while_it_waits_is_let_go(
    place: Place, path: str, stream: bool
) -> None:
    visitor = Visitor(place, path, stream=stream)
    visiting = asyncio.create_task(visitor.visit())
    await held(place)
    assert place.edge.admission.num_requests == 1
    visitor.gone.set()
    await visiting
    assert (place.room.held, place.edge.admission.num_requests) == ({}, 0)
    assert (visitor.status, place.region.streams) == (0, [])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_the_callers_deadline_counts_from_the_arrival(
    place: Place, path: str, stream: bool
) -> None:
    headers = {"cf-aig-request-timeout": "5000"}
    visitor = Visitor(place, path, stream=stream, headers=headers, upload_seconds=5.0)
    await visitor.visit()
    assert visitor.status == 408
    assert (place.room.held, place.region.streams) == ({}, [])


@pytest.mark.parametrize("path", BODIES)
async def test_a_node_is_told_what_is_left_of_the_time(place: Place, path: str) -> None:
    visitor = Visitor(place, path, upload_seconds=10.0)
    visiting = asyncio.create_task(visitor.visit())
    await held(place)
    place.now += 700.0
    place.wake()
    await visiting
    assert visitor.status == 200
    assert [submit.seconds_left for submit in place.region.submits] == [190.0]


async def test_a_stream_has_what_the_wait_left_of_its_time(place: Place) -> None:
    place.region.script = lambda submit: [Hold()]
    visitor = Visitor(place, RUN, stream=True)
    visiting = asyncio.create_task(visitor.visit())
    await held(place)
    place.now += 900.0
    place.wake()  # as the time is up
    await visiting
    assert visitor.status == 200
    assert events(visitor.answer)[-1]["errors"][0]["code"] == 3046
    assert place.edge.metrics.running.value == 0


async def test_a_comment_that_cannot_be_sent_ends_the_work() -> None:
    async def fail() -> None:
        raise OSError("broken pipe")

    async def silent() -> Message:
        return await asyncio.get_running_loop().create_future()

    with pytest.raises(OSError, match="broken pipe"):
        async with asyncio.timeout(60), Attended(silent, 0.001, fail):
            await asyncio.get_running_loop().create_future()
