"""Responses over WebSockets: who may connect, how much, for how long, and how it ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from socket import create_connection
from typing import Any

import httpx
import pytest
from tests.edge.api.responses.sockets import PATH, ask, create, events, opened
from tests.edge.http.websocket_peer import frame
from tests.edge.scripted_region import MODEL, Hold
from tests.edge.support import ACCOUNT, PATIENCE, Deployment, deployed, eventually
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Close
from websockets.sync.connection import Connection

from skerry_edge.api.responses import socket as responses_socket
from skerry_edge.gate.admission import Admission
from skerry_edge.gate.quotas import AccountAllowance, Quotas, TenantAllowance
from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits

QUICK = Limits(keep_alive_seconds=0.1, drain_seconds=5, linger_seconds=0.5)


def closed(socket: Connection) -> Close:
    """Read to the end; return what the server has closed with."""
    return rest(socket)[1]


def rest(socket: Connection) -> tuple[list[dict[str, Any]], Close]:
    """Return all events to the end, too."""
    told: list[dict[str, Any]] = []
    try:
        while True:
            told.append(json.loads(socket.recv(timeout=PATIENCE)))
    except ConnectionClosed as closing:
        end = closing.rcvd
    assert end is not None
    return told, end


def test_who_may_switch(edge: Deployment) -> None:
    plain = edge.client.get(PATH)
    assert (plain.status_code, plain.headers["upgrade"]) == (426, "websocket")
    upgrade = {"connection": "keep-alive, Upgrade", "upgrade": "websocket"}
    key = {"sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==", "sec-websocket-version": "13"}
    assert edge.client.get(PATH, headers=upgrade).status_code == 426
    wrong = {"sec-websocket-key": "AAAA", "sec-websocket-version": "13"}
    assert edge.client.get(PATH, headers=upgrade | wrong).status_code == 400
    assert edge.client.get(PATH, headers={"upgrade": "websocket"} | key).status_code == 426
    for refused, headers in (
        (401, {"authorization": "Bearer wrong"}),
        (403, {"origin": "https://evil.example"}),
    ):
        with pytest.raises(InvalidStatus) as caught, opened(edge, **headers):
            pass
        assert caught.value.response.status_code == refused
    with pytest.raises(InvalidStatus), opened(edge, PATH.replace(ACCOUNT, "0" * 32)):
        pass


def test_pages_that_may_call(tmp_path: Path) -> None:
    with (
        deployed(tmp_path, QUICK, cors_origins=("https://good.example",)) as edge,
        opened(edge, origin="https://good.example") as socket,
    ):
        assert ask(socket)["type"] == "response.completed"


def test_a_tenant_has_so_many_connections_lanes_and_waiting_requests(tmp_path: Path) -> None:
    limits = Limits(tenant_sockets=1, socket_lanes=2, socket_waiting=1, drain_seconds=5)
    with deployed(tmp_path, limits) as edge:
        with opened(edge) as socket:
            with pytest.raises(InvalidStatus) as caught, opened(edge):
                pass
            assert caught.value.response.status_code == 429
            assert caught.value.response.headers["retry-after"] == "5"
            for lane in ("a", "b"):
                ask(socket, stream_id=lane)
            assert ask(socket, stream_id="c")["code"] == "websocket_stream_limit_reached"
            assert ask(socket, stream_id="b")["type"] == "response.completed"
            assert ask(socket)["type"] == "response.completed"  # that without a name
            edge.region.script = lambda submit: [[65], Hold()]
            create(socket)
            eventually(lambda: edge.edge.metrics.running.value)
            create(socket)
            create(socket)
            told = events(socket)
            assert (told[-1]["status"], told[-1]["code"]) == (429, "rate_limit_exceeded")
        eventually(lambda: edge.edge.metrics.sockets.value == 0)
        with opened(edge):
            pass
        eventually(lambda: edge.edge.metrics.sockets.value == 0)
        page = edge.edge.metrics.render().decode()
        assert 'skerry_websocket_closes_total{code="1000"} 2' in page, page[-3000:]


def test_the_operators_limits_of_an_account_go_before_the_edges_own(tmp_path: Path) -> None:
    every = AccountAllowance(websockets=4, websocket_lanes=1)
    mine = TenantAllowance(account=ACCOUNT, websockets=5, websocket_lanes=2)
    admission = Admission(quotas=Quotas(every_tenant=every), edges=lambda: 2)
    with deployed(tmp_path, QUICK, admission=admission) as edge:
        with opened(edge) as socket, opened(edge):
            with pytest.raises(InvalidStatus) as caught, opened(edge):
                pass
            assert caught.value.response.status_code == 429
            assert ask(socket, stream_id="a")["type"] == "response.completed"
            assert ask(socket, stream_id="b")["code"] == "websocket_stream_limit_reached"
            admission.hold_to(Quotas(every_tenant=every, tenants={ACCOUNT: mine}))
            assert ask(socket, stream_id="b")["type"] == "response.completed"
            assert ask(socket, stream_id="c")["code"] == "websocket_stream_limit_reached"
            with pytest.raises(InvalidStatus), opened(edge):  # an edge's part of five is two
                pass
        eventually(lambda: edge.edge.metrics.sockets.value == 0)


def test_limits_and_usage_are_those_of_http(tmp_path: Path) -> None:
    quotas = Quotas(every_tenant=AccountAllowance(requests_per_minute=2))
    stores = Stores.in_folder(tmp_path / "stores", edge="edge-1")
    admission = Admission(quotas=quotas)
    with deployed(tmp_path, QUICK, admission=admission, stores=stores) as edge:
        with opened(edge) as socket:
            assert ask(socket)["type"] == ask(socket)["type"] == "response.completed"
            refused = ask(socket)
        assert (refused["status"], refused["code"]) == (429, "rate_limit_exceeded")
        assert int(refused["error"]["headers"]["retry-after"]) > 0
        usage = f"/client/v4/accounts/{ACCOUNT}/ai/usage"

        def rows() -> Any:
            found = edge.client.get(usage).json()["result"]
            return found if found and found[0]["requests"] == 2 else None

        (row,) = eventually(rows)
        assert (row["prompt_tokens"], row["output_tokens"]) == (40, 12)


def test_a_revoked_token_closes_its_connections(tmp_path: Path) -> None:
    assert 2 * responses_socket.WATCH_SECONDS < 1.0
    with deployed(tmp_path, QUICK) as edge, opened(edge) as socket:
        edge.region.script = lambda submit: [[65], Hold()]
        create(socket)
        eventually(lambda: edge.region.streams)
        edge.edge.tokens.revoke(edge.token.split("_")[1])
        assert closed(socket).code == 1008
        assert edge.region.streams[0].aborted.wait(PATIENCE)


def is_listening(edge: Deployment) -> bool:
    try:
        create_connection(("127.0.0.1", edge.port)).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("is_busy", [False, True])
def test_an_edge_that_ends_answers_first_and_closes_with_1012(
    tmp_path: Path, is_busy: bool
) -> None:
    with ExitStack() as stack:
        edge = stack.enter_context(deployed(tmp_path, QUICK))
        with opened(edge) as socket:
            if is_busy:
                edge.region.script = lambda submit: [[65], Hold()]
                create(socket)
                eventually(lambda: edge.region.streams)
            ending = threading.Thread(target=stack.pop_all().close)
            ending.start()
            if is_busy:
                eventually(lambda: not is_listening(edge))
                create(socket, stream_id="late")
                late = json.loads(socket.recv(timeout=PATIENCE))
                while "stream_id" not in late:
                    late = json.loads(socket.recv(timeout=PATIENCE))
                assert (late["status"], late["code"]) == (503, "unavailable")
                edge.region.streams[0].abort()
            assert closed(socket).code == 1012
            ending.join()


def test_a_drain_has_an_end(tmp_path: Path) -> None:
    limits = Limits(drain_seconds=1, linger_seconds=0.5)
    with ExitStack() as stack:
        edge = stack.enter_context(deployed(tmp_path, limits))
        with opened(edge) as socket:
            edge.region.script = lambda submit: [[65], Hold()]
            create(socket)
            eventually(lambda: edge.region.streams)
            ending = threading.Thread(target=stack.pop_all().close)
            ending.start()
            told = events(socket)
            assert (told[-1]["status"], told[-1]["code"]) == (503, "unavailable")
            assert closed(socket).code == 1012
            ending.join()


def test_idle_connections_and_old_ones_are_closed(tmp_path: Path) -> None:
    limits = Limits(socket_idle_seconds=0.2, drain_seconds=5)
    (tmp_path / "idle").mkdir()
    with deployed(tmp_path / "idle", limits) as edge, opened(edge) as socket:
        assert ask(socket)["type"] == "response.completed"
        assert closed(socket).code == 1000
    limits = Limits(socket_seconds=0.2, drain_seconds=5)
    (tmp_path / "old").mkdir()
    with deployed(tmp_path / "old", limits) as edge, opened(edge) as socket:
        edge.region.script = lambda submit: [[65], Hold()]
        create(socket)
        eventually(lambda: edge.region.streams)
        create(socket, stream_id="a")  # may come in time, or late
        eventually(lambda: len(edge.region.streams) == 2)
        threading.Timer(1.0, lambda: [each.abort() for each in edge.region.streams]).start()
        told, end = rest(socket)
        assert (told[-1]["code"], end.code) == ("websocket_connection_limit_reached", 1000)


def test_no_page_of_elsewhere_and_no_steering_by_host(tmp_path: Path) -> None:
    with deployed(tmp_path, QUICK, hosts=frozenset({"ai.example.com"})) as edge:
        with opened(edge) as socket:
            assert ask(socket)["type"] == "response.completed"
        url = f"http://127.0.0.1:{edge.port}{PATH}"
        assert httpx.get(url, headers={"host": "evil.example"}, trust_env=False).status_code == 421


def test_a_client_that_does_not_read_holds_its_answers_back_and_is_given_up(tmp_path: Path) -> None:
    limits = Limits(write_seconds=0.5, drain_seconds=5)
    said: list[int] = []

    class Endless(list[int]):
        def __iter__(self) -> Iterator[int]:
            said.append(1)
            return super().__iter__()

    with deployed(tmp_path, limits) as edge:
        edge.region.script = lambda submit: (Endless(b"x" * 2000) for _ in range(100_000))  # type: ignore[assignment,return-value]
        lines = [
            f"GET {PATH} HTTP/1.1", "host: localhost", f"authorization: Bearer {edge.token}",
            "connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13",
            "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
        ]  # fmt: skip
        body = json.dumps({"type": "response.create", "model": MODEL, "input": "hi"}).encode()
        with create_connection(("127.0.0.1", edge.port)) as socket:
            socket.sendall("\r\n".join([*lines, "", ""]).encode() + frame(1, body))
            stream = eventually(lambda: edge.region.streams)[0]
            assert stream.aborted.wait(PATIENCE)
        eventually(lambda: edge.edge.metrics.sockets.value == 0)
    assert len(said) * 2000 < 64 << 20  # the system's own buffers, and little more
