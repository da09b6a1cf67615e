"""Tools in OpenAI's Responses, logprobs beside calls, and items of what a response was made of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.edge.api.anthropic.create import named_events
from tests.edge.api.responses.creating import PATH, TOOL, assert_refused, create, prompt
from tests.edge.scripted_region import answer
from tests.edge.support import Deployment

from skerry_edge.ledger.responses_store import ResponseStore

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
