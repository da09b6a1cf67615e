"""OpenAI's Responses over real HTTP: shapes, events in order, conversations that go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.edge.api.anthropic.create import named_events
from tests.edge.api.responses.creating import PATH, TOOL, assert_refused, create, prompt
from tests.edge.byte_text import CONTEXT
from tests.edge.scripted_region import MODEL, answer, done
from tests.edge.support import UNSERVED, Deployment, deployed

from skerry.errors import Unavailable
from skerry_edge.limits import Limits


def test_a_plain_answer(edge: Deployment) -> None:
    edge.region.script = lambda submit: [*answer("Hello")[:-1], done("stop", 6, cached_tokens=8)]
    reply = create(edge, max_output_tokens=9, metadata={"a": "b"}, user="u", truncation="disabled")
    body = reply.json()
    identity = reply.headers["x-request-id"]
    assert body.pop("created_at") > 1_600_000_000
    assert body == {
        "id": f"resp_{identity}",
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "model": MODEL,
        "output": [
            {
                "type": "message",
                "id": f"msg_{identity}",
                "status": "completed",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
                ],
            }
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 20,
            "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0},
            "output_tokens": 6,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 26,
        },
    }
    assert edge.region.submits[0].sampling.max_tokens == 9


def test_items_of_the_input(edge: Deployment) -> None:
    create(
        edge,
        instructions="I",
        input=[
            {"role": "developer", "content": "d"},
            {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "a", "annotations": []}],
            },
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "d", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
        ],
    )
    assert prompt(edge) == (
        "<system>I\n<system>d\n<user>u\n<assistant>a\n<assistant>\n<tool>42\n<assistant>"
    )


def test_running_out_is_incomplete(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer("Hel", reason="length")
    body = create(edge).json()
    assert (body["status"], body["output"][0]["status"]) == ("incomplete", "incomplete")
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    name, last = named_events(create(edge, stream=True).text)[-1]
    assert (name, last["response"]["status"]) == ("response.completed", "incomplete")


def test_a_stream(edge: Deployment) -> None:
    reply = create(edge, stream=True)
    assert reply.headers["content-type"] == "text/event-stream"
    told = named_events(reply.text)
    assert [name.removeprefix("response.") for name, _ in told] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 5,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [data["sequence_number"] for _, data in told] == list(range(len(told)))
    assert told[0][1]["response"]["status"] == "in_progress"
    assert told[4][1]["delta"] == "H"
    item_id = told[2][1]["item"]["id"]
    assert {data["item_id"] for _, data in told if "item_id" in data} == {item_id}
    final = told[-1][1]["response"]
    assert final["output"] == [told[-2][1]["item"]]
    assert told[-3][1]["part"] == final["output"][0]["content"][0]
    assert told[-4][1]["text"] == "Hello"
    assert final["usage"]["total_tokens"] == 26
    assert edge.client.get(f"{PATH}/{final['id']}").json() == final


def test_a_failure_in_mid_stream_is_an_error_event(edge: Deployment) -> None:
    edge.region.script = lambda submit: [[65], Unavailable("Gone.")]
    told = named_events(create(edge, stream=True).text)
    name, data = told[-1]
    assert (name, data["message"], data["sequence_number"]) == ("error", "Gone.", len(told) - 1)
    first = told[0][1]["response"]["id"]
    assert edge.client.get(f"{PATH}/{first}").status_code == 404


def test_logprobs_when_included(edge: Deployment) -> None:
    asked: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    (part,) = create(edge, **asked).json()["output"][0]["content"]
    assert [each["token"] for each in part["logprobs"]] == list("Hello")
    assert len(part["logprobs"][0]["top_logprobs"]) == 1
    told = named_events(create(edge, **asked, stream=True).text)
    streamed = [each for name, data in told if name.endswith("delta") for each in data["logprobs"]]
    assert streamed == part["logprobs"]
    reply = create(edge, top_logprobs=1)
    assert reply.json()["output"][0]["content"][0]["logprobs"] == []
    assert reply.headers["x-skerry-ignored"] == "top_logprobs"
    reply = create(edge, **asked | {"include": [*asked["include"], "file_search_call.results"]})
    assert reply.headers["x-skerry-ignored"] == "include"


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on(edge: Deployment, stream: bool) -> None:
    first = create(edge, instructions="I", input="one").json()["id"]
    reply = create(edge, previous_response_id=first, input="two", stream=stream)
    assert prompt(edge) == "<user>one\n<assistant>Hello\n<user>two\n<assistant>"
    body = named_events(reply.text)[-1][1]["response"] if stream else reply.json()
    assert body["previous_response_id"] == first
    create(edge, previous_response_id=body["id"], input="three")
    assert prompt(edge).endswith("Hello\n<user>two\n<assistant>Hello\n<user>three\n<assistant>")


def test_stored_answers_can_be_read_and_deleted(edge: Deployment) -> None:
    body = create(edge).json()
    path = f"{PATH}/{body['id']}"
    assert edge.client.get(path).json() == body
    assert edge.client.delete(path).json() == {
        "id": body["id"],
        "object": "response",
        "deleted": True,
    }
    assert edge.client.get(path).status_code == 404
    assert edge.client.delete(path).status_code == 404
    assert_refused(create(edge, previous_response_id=body["id"]), "previous_response_id")


def test_nothing_is_stored_that_should_not_be(edge: Deployment) -> None:
    body = create(edge, store=False).json()
    assert body["store"] is False
    assert edge.client.get(f"{PATH}/{body['id']}").status_code == 404


def test_an_edge_that_remembers_nothing_says_so(tmp_path: Path) -> None:
    with deployed(tmp_path, Limits(), stores_responses=False) as edge:
        body = create(edge).json()
        assert body["store"] is False
        reply = create(edge, previous_response_id=body["id"])
        assert_refused(reply, "previous_response_id")
        assert "stores none" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"model": UNSERVED}, "model"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": CONTEXT + 1}, "max_output_tokens"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
    ],
)
def test_refusals(edge: Deployment, fields: dict[str, Any], param: str) -> None:
    assert_refused(create(edge, **fields), param)
    assert edge.region.streams == []


def test_counting_runs_nothing(edge: Deployment) -> None:
    first = create(edge, input="one", instructions="I").json()
    edge.region.streams.clear()
    body = {"model": MODEL, "input": "two", "tools": [TOOL], "previous_response_id": first["id"]}
    counted = edge.client.post(f"{PATH}/input_tokens", json=body).json()
    assert edge.region.streams == []
    used = create(edge, **body).json()["usage"]
    assert counted == {"object": "response.input_tokens", "input_tokens": used["input_tokens"]}
    for wrong in ({"input": []}, {"previous_response_id": "none"}, {"model": UNSERVED}):
        assert_refused(
            edge.client.post(f"{PATH}/input_tokens", json=body | wrong), next(iter(wrong))
        )
