"""Bodies that lack their last byte, and those that become many objects: what they take of memory is
bounded, per tenant and in all."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.edge.scripted_region import MODEL, Hold, answer
from tests.edge.support import Deployment, deployed

from skerry.errors import Overloaded, RateLimited
from skerry_edge.api.bodies import (
    CONTAINER_BYTES,
    ITEM_BYTES,
    KEY_BYTES,
    MAX_CONTAINERS,
    MAX_ITEMS,
    object_bytes,
)
from skerry_edge.api.edge_request import INLINE_BYTES
from skerry_edge.limits import Limits
from skerry_edge.output.plan import OutputPlanner
from skerry_edge.text.body_room import TENANT_BYTES, BodyRoom

OTHER = "b" * 32
SIZE = 1 << 20
HELD = 4  # bodies of a tenant


def test_a_tenant_holds_its_share_and_all_together_theirs() -> None:
    room = BodyRoom(tenant_bytes=100, max_bytes=150)
    room.take("a", 60)
    with pytest.raises(RateLimited):
        room.take("a", 41)
    room.take("a", 40)
    room.take("b", 50)
    with pytest.raises(Overloaded):
        room.take("b", 1)
    room.give_back("a", 60)
    room.take("b", 50)
    with pytest.raises(RateLimited):
        room.take("b", 1)
    for tenant, size in (("a", 40), ("b", 50), ("b", 50)):
        room.give_back(tenant, size)
    assert not room._held


def asked(size: int) -> bytes:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x"}]}).encode()
    return body + b" " * (size - len(body))


def begun(edge: Deployment, token: str, account: str, size: int) -> socket.socket:
    """Send a request but for its last byte."""
    host, port = edge.client.base_url.host, edge.client.base_url.port
    assert port is not None
    connection = socket.create_connection((host, port), timeout=60)
    path = edge.chat_path.replace(edge.chat_path.split("/")[4], account)
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
    connection.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode() + asked(size)[:-1])
    return connection


def status(connection: socket.socket) -> int:
    return int(connection.recv(4096).split(b" ", 2)[1])


def test_bodies_that_lack_a_byte_are_bounded(tmp_path: Path) -> None:
    with deployed(tmp_path, Limits()) as edge, ExitStack() as held:
        most = HELD * (SIZE + INLINE_BYTES // 8)  # and the few objects in them
        edge.edge.desk.bodies = room = BodyRoom(tenant_bytes=most, max_bytes=2 * most)
        mine = edge.chat_path.split("/")[4]
        token = edge.client.headers["authorization"].removeprefix("Bearer ")
        waiting = [held.enter_context(begun(edge, token, mine, SIZE)) for _ in range(HELD)]
        while room._held[mine] < HELD * (SIZE - 1):
            edge.client.get("/healthz")
        refused = held.enter_context(begun(edge, token, mine, 2 * INLINE_BYTES))
        assert status(refused) == 429
        assert edge.chat().status_code == 200, "small ones are not counted"
        theirs, _ = edge.edge.tokens.create(account_id=OTHER, now=0)
        other = held.enter_context(begun(edge, theirs, OTHER, SIZE))
        for each in (other, *waiting):
            each.sendall(b" ")
            assert status(each) == 200
        assert not room._held
        broken = begun(edge, token, mine, SIZE)
        while not room._held:
            edge.client.get("/healthz")
        broken.close()
        while room._held:
            edge.client.get("/healthz")


# --- what is made of a body ----------------------------------------------------------------------

MANY = 20_000
SHAPES = {
    "lists": "[]",
    "objects": '{"":0}',
    "names": '{"name of %d":1.5}',
    "texts": '"text of %d"',
    "numbers": "%d.5",
    "integers": "1%012d",
    "nested": '[{"a":["%d"]}]',
}


@pytest.mark.parametrize("shape", SHAPES)
def test_objects_take_no_more_memory_than_is_counted(shape: str) -> None:
    one = SHAPES[shape]
    body = f"[{','.join(one % n if '%' in one else one for n in range(MANY))}]".encode()
    counted = len(body) + object_bytes(body)
    tracemalloc.start()
    try:
        made = msgspec.json.decode(body)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(made) == MANY
    assert taken <= counted <= 8 * taken


def test_the_largest_body_fits_alone() -> None:
    """As many of everything as there may be: it is refused with 400, or there is room for it."""
    limits = Limits()
    whole = MAX_CONTAINERS * CONTAINER_BYTES + MAX_ITEMS * (ITEM_BYTES + KEY_BYTES)
    assert limits.body_bytes + whole <= TENANT_BYTES


def test_what_waits_to_be_looked_at_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies of 40 KB that become a megabyte each were all decoded before one was looked at."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": [{}] * 1000}}] * 10
    go_on = threading.Event()
    plan = OutputPlanner._plan

    def slow(self: OutputPlanner, *asked: Any) -> Any:
        assert go_on.wait(60)
        return plan(self, *asked)

    monkeypatch.setattr(OutputPlanner, "_plan", slow)
    with deployed(tmp_path, Limits()) as edge, ThreadPoolExecutor(12) as pool:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "tools": tools}
        encoded = json.dumps(body).encode()
        each = len(encoded) + object_bytes(encoded)
        edge.edge.desk.bodies = room = BodyRoom(tenant_bytes=3 * each, max_bytes=9 * each)
        asked = [pool.submit(edge.client.post, edge.chat_path, content=encoded) for _ in range(12)]
        refused = list(itertools.islice(as_completed(asked), 9))
        assert {each.result().status_code for each in refused} == {429}
        assert room._total == 3 * each
        go_on.set()
        answered = [one.result() for one in asked if one not in refused]
        assert [reply.status_code for reply in answered] == [400] * 3
        assert not room._held


def test_a_stream_holds_no_body(tmp_path: Path) -> None:
    with deployed(tmp_path, Limits(drain_seconds=1)) as edge:
        edge.region.script = lambda submit: [*answer("Hello", reason="length")[:1], Hold()]
        body = asked(SIZE)[:-1] + b" " * 2
        body = body.replace(b'"messages"', b'"stream": true, "messages"', 1)
        with edge.client.stream("POST", edge.chat_path, content=body) as reply:
            assert reply.status_code == 200
            next(reply.iter_lines())
            assert edge.edge.desk.bodies._total < 1024 * 64
