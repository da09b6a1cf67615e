"""Responses over WebSockets, read by a client of other hands: events, lanes, ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import create_connection
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.lib.responses_websocket import (
    ResponsesWebSocketError,
    ResponsesWebSocketLimits,
    ResponsesWebSocketSession,
)
from tests.edge.api.test_messages import named_events
from tests.edge.http.websocket_peer import frame
from tests.edge.support import (
    ACCOUNT,
    MODEL,
    PATIENCE,
    Deployment,
    Hold,
    Step,
    answer,
    deployed,
    eventually,
)
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Close
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from skerry.errors import Unavailable
from skerry_edge.api.responses import socket as responses_socket
from skerry_edge.gate.admission import Admission
from skerry_edge.gate.quotas import AccountAllowance, Quotas, TenantAllowance
from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits
from skerry_regions.wire.protocol import Submit

PATH = f"/client/v4/accounts/{ACCOUNT}/ai/v1/responses"
ENDS = ("response.completed", "error")
QUICK = Limits(keep_alive_seconds=0.1, drain_seconds=5, linger_seconds=0.5)


@contextmanager
def opened(edge: Deployment, path: str = PATH, **headers: str) -> Generator[Connection]:
    given = {"authorization": f"Bearer {edge.token}"} | headers
    url = f"ws://127.0.0.1:{edge.port}{path}"
    with connect(url, additional_headers=given, proxy=None, close_timeout=PATIENCE) as socket:
        yield socket


def create(socket: Connection, **fields: Any) -> None:
    socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": "hi"} | fields))


def events(socket: Connection) -> list[dict[str, Any]]:
    """Read one answer, to its end."""
    told: list[dict[str, Any]] = []
    while not told or told[-1]["type"] not in ENDS:
        told.append(json.loads(socket.recv(timeout=PATIENCE)))
    return told


def ask(socket: Connection, **fields: Any) -> dict[str, Any]:
    """Return an answer's last event."""
    create(socket, **fields)
    return events(socket)[-1]


def prompt(edge: Deployment) -> str:
    return bytes(edge.region.submits[-1].prompt_ids).decode()


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


@pytest.fixture
def socket(edge: Deployment) -> Iterator[Connection]:
    with opened(edge) as socket:
        yield socket


def test_events_are_those_of_http(edge: Deployment, socket: Connection) -> None:
    body = {"model": MODEL, "input": "hi", "metadata": {"a": "b"}, "other": 1}
    reply = edge.client.post(PATH, json=body | {"stream": True})
    over_http = [data for _, data in named_events(reply.text)]
    create(socket, **body)
    told = events(socket)
    headers = told[0].pop("headers")
    assert headers["x-skerry-ignored"] == reply.headers["x-skerry-ignored"] == "other"
    assert told[0]["response"]["id"] == f"resp_{headers['x-request-id']}"

    def alike(event: dict[str, Any], identity: str) -> str:
        if "response" in event:
            event["response"]["created_at"] = 0
        return json.dumps(event).replace(identity, "ID")

    assert [alike(each, headers["x-request-id"]) for each in told] == [
        alike(each, reply.headers["x-request-id"]) for each in over_http
    ]


def test_a_named_lane_is_in_each_event(edge: Deployment, socket: Connection) -> None:
    create(socket, stream_id="a.B-1_")
    assert {event["stream_id"] for event in events(socket)} == {"a.B-1_"}
    create(socket)
    assert all("stream_id" not in event for event in events(socket))


def test_lanes_run_beside_each_other_and_a_lane_in_order(
    edge: Deployment, socket: Connection
) -> None:
    held: list[Step] = [[65], Hold()]
    edge.region.script = lambda submit: held if b"first" in _bytes(submit) else answer("B")
    create(socket, input="first", stream_id="a")
    create(socket, input="second", stream_id="a")
    create(socket, input="third", stream_id="b")
    told: list[dict[str, Any]] = []
    while not told or told[-1]["type"] != "response.completed":
        told.append(json.loads(socket.recv(timeout=PATIENCE)))
    assert told[-1]["stream_id"] == "b"
    assert [b"second" in _bytes(each) for each in edge.region.submits] == [False, False]
    edge.region.streams[0].abort()
    assert events(socket)[-1]["type"] == "error"
    last = events(socket)[-1]
    assert (last["type"], last["stream_id"]) == ("response.completed", "a")


def _bytes(submit: Submit) -> bytes:
    return bytes(submit.prompt_ids)


def test_a_conversation_goes_on_without_being_stored(edge: Deployment, socket: Connection) -> None:
    first = ask(socket, input="one", store=False)["response"]
    assert first["store"] is False
    assert edge.client.get(f"{PATH}/{first['id']}").status_code == 404
    second = ask(socket, input="two", store=False, previous_response_id=first["id"])["response"]
    assert prompt(edge) == "<user>one\n<assistant>Hello\n<user>two\n<assistant>"
    gone = ask(socket, input="x", store=False, previous_response_id=first["id"])
    assert gone["status"] == 400
    assert gone["error"]["code"] == gone["code"] == "previous_response_not_found"
    assert gone["error"]["param"] == gone["param"] == "previous_response_id"
    ask(socket, input="three", previous_response_id=second["id"])
    assert prompt(edge).endswith("<user>two\n<assistant>Hello\n<user>three\n<assistant>")
    with opened(edge) as other:  # nothing of it is known elsewhere
        assert ask(other, previous_response_id=second["id"])["code"] == gone["code"]


def test_stored_responses_go_on_after_the_connection(edge: Deployment) -> None:
    with opened(edge) as socket:
        first = ask(socket, input="one")["response"]
    assert edge.client.get(f"{PATH}/{first['id']}").json() == first
    with opened(edge) as socket:
        ask(socket, input=[{"role": "user", "content": "2"}], previous_response_id=first["id"])
    assert prompt(edge) == "<user>one\n<assistant>Hello\n<user>2\n<assistant>"


def test_a_failed_turn_forgets_what_it_went_on_from_but_not_that_of_another_lane(
    edge: Deployment, socket: Connection
) -> None:
    first = ask(socket, store=False)["response"]["id"]
    wrong = {"store": False, "previous_response_id": first, "top_p": 7}
    assert ask(socket, **wrong, stream_id="fork")["status"] == 400
    assert ask(socket, store=False, previous_response_id=first, stream_id="b")["type"] == ENDS[0]
    assert ask(socket, **wrong)["param"] == "top_p"
    assert ask(socket, store=False, previous_response_id=first)["code"].endswith("_not_found")


def test_nothing_is_generated_where_only_the_prompt_is_to_be_prepared(
    edge: Deployment, socket: Connection
) -> None:
    create(socket, generate=False, input=[], instructions="I", store=True)
    told = events(socket)
    assert [each["type"].removeprefix("response.") for each in told] == [
        "created", "in_progress", "completed",
    ]  # fmt: skip
    warm = told[-1]["response"]
    assert (warm["output"], warm["status"], warm["store"]) == ([], "completed", False)
    assert edge.region.submits[-1].sampling.max_tokens == 1
    assert prompt(edge) == "<system>I\n<assistant>"
    ask(socket, instructions="I", input="one", previous_response_id=warm["id"])
    assert prompt(edge) == "<system>I\n<user>one\n<assistant>"
    warm = ask(socket, generate=False, input="two")["response"]
    ask(socket, input=[], previous_response_id=warm["id"])
    assert prompt(edge) == "<user>two\n<assistant>"
    assert ask(socket, input=[])["param"] == "input"


def test_errors_are_nested_and_flat(edge: Deployment, socket: Connection) -> None:
    refused = ask(socket, temperature=9, stream_id="a")
    request_id = refused["error"].pop("headers")["x-request-id"]
    assert len(request_id) == 36
    inner = refused.pop("error")
    assert inner.pop("type") == "invalid_request_error"
    assert refused == {"type": "error", "status": 400, "stream_id": "a"} | inner
    assert (inner["code"], inner["param"]) == ("invalid_input", "temperature")
    edge.region.script = lambda submit: [[65], Unavailable("Gone.")]
    create(socket)
    *before, broken = events(socket)
    assert broken.pop("error") == {
        "type": "server_error", "code": "unavailable", "message": "Gone.", "param": None,
    }  # fmt: skip
    assert broken == {
        "type": "error", "status": 503, "code": "unavailable", "message": "Gone.", "param": None,
        "sequence_number": len(before),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("no JSON", "invalid_json", None),
        ("[]", "invalid_input", "type"),
        ('{"type": "session.update"}', "invalid_input", "type"),
        ('{"type": "response.create", "stream_id": "a b"}', "invalid_stream_id", "stream_id"),
        ('{"type": "response.create", "stream_id": ""}', "invalid_stream_id", "stream_id"),
        ('{"type": "response.create", "stream_id": 1}', "invalid_stream_id", "stream_id"),
        ('{"type": "response.create"}', "invalid_input", None),
    ],
)
def test_what_is_no_request(socket: Connection, message: str, code: str, param: str | None) -> None:
    socket.send(message)
    (told,) = events(socket)
    assert (told["status"], told["code"], told["param"]) == (400, code, param)
    assert ask(socket)["type"] == "response.completed"  # the connection stays


def test_background_is_refused_and_stream_means_nothing(socket: Connection) -> None:
    assert ask(socket, background=True)["param"] == "background"
    assert ask(socket, stream=False)["type"] == "response.completed"


def test_answers_are_not_steered(socket: Connection) -> None:
    steer = {"input": [{"role": "user", "content": "x"}], "previous_response_id": "resp_1"}
    socket.send(json.dumps({"type": "response.steer"} | steer))
    told = json.loads(socket.recv(timeout=PATIENCE))
    assert (told["type"], told["error"]["code"]) == (
        "response.steer.failed", "steering_not_supported",
    )  # fmt: skip
    assert told["steer"] == steer


def test_long_messages_and_messages_in_fragments(socket: Connection) -> None:
    long = {"type": "response.create", "model": MODEL, "input": "x" * 200_000}
    socket.send(json.dumps(long))
    assert events(socket)[-1]["code"] == "context_length_exceeded"
    whole = json.dumps({"type": "response.create", "model": MODEL, "input": "é" * 9})
    socket.send([whole[i : i + 3] for i in range(0, len(whole), 3)])
    assert events(socket)[-1]["type"] == "response.completed"


def test_a_client_that_leaves_stops_its_generations(edge: Deployment) -> None:
    edge.region.script = lambda submit: [[65], Hold()]
    with opened(edge) as socket:
        create(socket, stream_id="a")
        create(socket)
        eventually(lambda: len(edge.region.streams) == 2)
    assert all(each.aborted.wait(PATIENCE) for each in edge.region.streams)


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


@pytest.mark.parametrize("name", [None, "work"])
def test_the_client_of_openai(edge: Deployment, name: str | None) -> None:
    limits = ResponsesWebSocketLimits(
        max_lanes=4, max_events_per_lane=256, max_events=512, max_bytes_per_lane=1 << 20,
        max_bytes=1 << 22,
    )  # fmt: skip
    base = f"http://127.0.0.1:{edge.port}{PATH.removesuffix('/responses')}"
    with (
        OpenAI(base_url=base, api_key=edge.token) as client,
        client.responses.connect() as connection,
        ResponsesWebSocketSession(connection, limits=limits) as session,
    ):
        lane = session.default if name is None else session.lane(name)
        lane.send({"type": "response.create", "model": MODEL, "input": "one", "store": False})
        first = lane.get_final_response(timeout=PATIENCE)
        assert (first.status, first.output_text) == ("completed", "Hello")
        again: Any = {"type": "response.create", "model": MODEL, "input": "two"}
        lane.send(again | {"previous_response_id": first.id})
        assert lane.get_final_response(timeout=PATIENCE).previous_response_id == first.id
        assert prompt(edge) == "<user>one\n<assistant>Hello\n<user>two\n<assistant>"
        lane.send(again | {"previous_response_id": "resp_none"})
        with pytest.raises(ResponsesWebSocketError) as caught:
            lane.get_final_response(timeout=PATIENCE)
        error: Any = caught.value.event
        assert (error.status, error.error.code) == (400, "previous_response_not_found")
        assert error.error.headers["x-request-id"]
        lane.send({"type": "response.create", "model": MODEL, "input": "x", "generate": False})
        assert lane.get_final_response(timeout=PATIENCE).output == []
