"""OpenAI's Responses over real HTTP: shapes, events in order, conversations that go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.edge.api.test_messages import named_events
from tests.edge.support import ACCOUNT, CONTEXT, MODEL, UNSERVED, Deployment, answer, deployed, done

from skerry.errors import Unavailable
from skerry_edge.ledger.responses_store import ResponseStore
from skerry_edge.limits import Limits

PATH = f"/client/v4/accounts/{ACCOUNT}/ai/v1/responses"


def create(edge: Deployment, **body: Any) -> httpx.Response:
    return edge.client.post(PATH, json={"model": MODEL, "input": "hi", **body})


def prompt(edge: Deployment) -> str:
    return bytes(edge.region.submits[-1].prompt_ids).decode()


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


TOOL = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
CALL = 'Well.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_tools(edge: Deployment, stream: bool) -> None:
    edge.region.script = lambda submit: answer(CALL)
    reply = create(edge, tools=[TOOL], tool_choice="auto", stream=stream)
    if stream:
        told = named_events(reply.text)
        assert [data["sequence_number"] for _, data in told] == list(range(len(told)))
        items = [data["item"] for name, data in told if name == "response.output_item.done"]
        body = told[-1][1]["response"]
        assert body["output"] == items
        kind = "response.function_call_arguments"
        deltas = [data for name, data in told if name == f"{kind}.delta"]
        (done,) = (data for name, data in told if name == f"{kind}.done")
        assert "".join(data["delta"] for data in deltas) == done["arguments"] == '{"a": 1}'
        assert {data["output_index"] for data in [*deltas, done]} == {1}
    else:
        body = reply.json()
    message, call = body["output"]
    assert message["content"][0]["text"].strip() == "Well."
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "add", '{"a": 1}')
    assert call["status"] == "completed"
    edge.region.script = lambda submit: answer("2")
    result = [{"type": "function_call_output", "call_id": call["call_id"], "output": "42"}]
    create(edge, previous_response_id=body["id"], input=result, tools=[TOOL])
    assert "42" in prompt(edge)


def test_logprobs_beside_calls_are_those_of_the_text(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(f"{CALL}{CALL[6:]}D\u00f6ne <.")
    asked: dict[str, Any] = {"include": ["message.output_text.logprobs"], "tools": [TOOL]}
    output = create(edge, **asked).json()["output"]
    kinds = ["message", "function_call", "function_call", "message"]
    assert [item["type"] for item in output] == kinds
    parts = [item["content"][0] for item in output if item["type"] == "message"]
    assert [part["text"].strip() for part in parts] == ["Well.", "D\u00f6ne <."]
    for part in parts:
        told = bytes(byte for each in part["logprobs"] for byte in each["bytes"])
        assert told.decode() == part["text"]
    events = named_events(create(edge, **asked, stream=True).text)
    deltas = [data for name, data in events if name.endswith("text.delta")]
    streamed = [each for data in deltas for each in data["logprobs"]]
    assert streamed == [each for part in parts for each in part["logprobs"]]


@pytest.mark.parametrize("per_step", [1, 7, 500])
@pytest.mark.parametrize("size", [len(CALL), 15, 9])
def test_logprobs_before_a_call(edge: Deployment, size: int, per_step: int) -> None:
    """However many tokens a step has; a call that is cut leaves none of its markup either."""
    is_whole = size == len(CALL)
    steps = answer(CALL[:size], per_step=per_step, reason="stop" if is_whole else "length")
    edge.region.script = lambda submit: steps
    asked: dict[str, Any] = {"include": ["message.output_text.logprobs"], "tools": [TOOL]}
    output = create(edge, **asked).json()["output"]
    kinds = ["message", "function_call"] if is_whole else ["message"]
    assert [item["type"] for item in output] == kinds
    (part,) = output[0]["content"]
    assert part["text"].strip() == "Well."
    assert "".join(each["token"] for each in part["logprobs"]) == part["text"]


@pytest.mark.parametrize("per_step", [1, 7, 500])
def test_logprobs_of_a_call_make_no_text(edge: Deployment, per_step: int) -> None:
    edge.region.script = lambda submit: answer(CALL[6:], per_step=per_step)
    asked: dict[str, Any] = {"include": ["message.output_text.logprobs"], "tools": [TOOL]}
    (call,) = create(edge, **asked).json()["output"]
    assert (call["type"], call["arguments"]) == ("function_call", '{"a": 1}')


def test_a_named_tool(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(CALL[6:])
    choice = {"type": "function", "name": "add"}
    (call,) = create(edge, tools=[TOOL], tool_choice=choice).json()["output"]
    assert call["name"] == "add"
    assert edge.region.submits[0].grammar is not None


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


def assert_refused(reply: httpx.Response, param: str) -> None:
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


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


def items(edge: Deployment, id: str, **query: Any) -> dict[str, Any]:
    reply = edge.client.get(f"{PATH}/{id}/input_items", params=query)
    assert reply.status_code == 200, reply.text
    page: dict[str, Any] = reply.json()
    return page


def test_what_a_response_was_made_of(edge: Deployment) -> None:
    """Items of the whole conversation, those of earlier answers under the ids that they had."""
    edge.region.script = lambda submit: answer(CALL)
    asked = [{"role": "developer", "content": "d"}, {"role": "user", "id": "mine", "content": "u"}]
    first = create(edge, input=asked, tools=[TOOL], instructions="I").json()
    text, call = first["output"]
    edge.region.script = lambda submit: answer("2")
    second = create(
        edge,
        previous_response_id=first["id"],
        tools=[TOOL],
        input=[
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call_output", "call_id": call["call_id"], "output": "42"},
        ],
    ).json()
    parts = {"type": "message", "status": "completed"}
    told = [
        parts | {"role": "system", "content": [{"type": "input_text", "text": "d"}]},
        parts | {"role": "user", "content": [{"type": "input_text", "text": "u"}], "id": "mine"},
    ]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
    page = items(edge, second["id"], order="asc")
    assert (page["object"], page["has_more"]) == ("list", False)
    data = page["data"]
    assert (page["first_id"], page["last_id"]) == (data[0]["id"], data[-1]["id"])
    assert data[0].pop("id").startswith("msg_")
    assert data[4].pop("id").startswith("fco_")
    assert data == [*told, text, call, result | {"status": "completed"}]
    newest = items(edge, first["id"])
    assert [each["role"] for each in newest["data"]] == ["user", "system"]
    create(edge, previous_response_id=second["id"], input="three")
    assert len(items(edge, second["id"])["data"]) == 5


def test_input_items_come_in_pages(edge: Deployment) -> None:
    asked = [{"role": "user", "id": f"m{number}", "content": "x"} for number in range(7)]
    id = create(edge, input=asked).json()["id"]
    found: list[str] = []
    page: dict[str, Any] = {"has_more": True, "last_id": None}
    while page["has_more"]:
        after = {} if page["last_id"] is None else {"after": page["last_id"]}
        page = items(edge, id, limit=3, **after)
        found += [each["id"] for each in page["data"]]
    assert found == [f"m{number}" for number in reversed(range(7))]
    reply = edge.client.get(f"{PATH}/{id}/input_items?include[]=message.output_text.logprobs")
    assert reply.headers["x-skerry-ignored"] == "include"
    for query in ({"after": "none"}, {"limit": 0}, {"limit": 101}, {"order": "up"}):
        reply = edge.client.get(f"{PATH}/{id}/input_items", params=query)
        assert_refused(reply, next(iter(query)))
    assert edge.client.get(f"{PATH}/resp_none/input_items").status_code == 404


def test_items_of_what_was_stored_without_their_ids(edge: Deployment) -> None:
    id = create(edge, input="one").json()["id"]
    store = edge.edge.responses
    assert isinstance(store, ResponseStore)
    with store._file.transaction() as database:  # as documents were before
        (document,) = database.execute(
            "SELECT document FROM responses WHERE id = ?", [id]
        ).fetchone()
        before = {name: it for name, it in json.loads(document).items() if name != "ids"}
        update = "UPDATE responses SET document = ? WHERE id = ?"
        database.execute(update, [json.dumps(before).encode(), id])
    assert [each["id"] for each in items(edge, id)["data"]] == ["item_0"]
    second = create(edge, previous_response_id=id, input="two").json()["id"]
    assert [each["id"] for each in items(edge, second)["data"]][1:] == ["item_1", "item_0"]


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


def test_some_of_the_tools_may_be_called(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(CALL[6:])
    other = TOOL | {"name": "subtract"}
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "add"}],
    }
    body = create(edge, tools=[TOOL, other], tool_choice=choice).json()
    assert body["tool_choice"] == choice
    assert "<tools>add,subtract\n" in prompt(edge)
    grammar = edge.region.submits[-1].grammar
    assert grammar is not None
    assert "subtract" not in grammar.source
