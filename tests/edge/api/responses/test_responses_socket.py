"""Responses over WebSockets, read by a client of other hands: events, lanes, ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from openai.lib.responses_websocket import (
    ResponsesWebSocketError,
    ResponsesWebSocketLimits,
    ResponsesWebSocketSession,
)
from tests.edge.api.anthropic.create import named_events
from tests.edge.api.responses.sockets import ENDS, PATH, ask, create, events, opened
from tests.edge.scripted_region import MODEL, Hold, Step, answer
from tests.edge.support import PATIENCE, Deployment, eventually
from websockets.sync.connection import Connection

from skerry.errors import Unavailable
from skerry_regions.wire.protocol import Submit


def prompt(edge: Deployment) -> str:
    return bytes(edge.region.submits[-1].prompt_ids).decode()


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
