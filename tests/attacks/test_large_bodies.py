"""Bodies that lack their last byte: what they hold of memory is bounded, per tenant and in all."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.edge.support import MODEL, Deployment, deployed

from skerry.errors import Overloaded, RateLimited
from skerry_edge.api.edge_request import INLINE_BYTES
from skerry_edge.limits import Limits
from skerry_edge.text.body_room import BodyRoom

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
        edge.edge.desk.bodies = room = BodyRoom(tenant_bytes=HELD * SIZE, max_bytes=HELD * SIZE * 2)
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
