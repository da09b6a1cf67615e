"""Tools over HTTP, and how a model is shown them and the calls of earlier turns."""

from __future__ import annotations

import json
import re

from tests.edge.output.two_tools import FLAT, MARKED, NESTED, PARIS, call, listed, parsed, plan
from tests.edge.scripted_region import answer
from tests.edge.support import Deployment, events

from skerry.wire import Message
from skerry_edge.families.table import HERMES, MISTRAL_LIST, TAUGHT
from skerry_edge.output.tool_prompts import EXAMPLE, with_tools

HISTORY = [
    Message("user", "2+3, and the weather?"),
    Message("assistant", None, tool_calls=[
        {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}},
        {"name": "weather", "arguments": {"city": "Paris"}},
    ]),
    Message("tool", "5", tool_call_id="1"),
    Message("tool", "sunny", name="weather"),
    Message("user", "Thanks."),
]  # fmt: skip


def test_a_model_is_taught_in_its_system_message() -> None:
    box = plan(tools=NESTED).box
    for messages in (HISTORY, [Message("system", "Be kind."), *HISTORY]):
        turns, tools = with_tools(TAUGHT, messages, box)
        assert tools is None
        assert isinstance(turns[0].content, str)
        assert tuple(turns[1:3]) == EXAMPLE
        del turns[1:3]
        assert [turn.role for turn in turns] == ["system", "user", "assistant", "user", "user"]
        assert '{"type": "function", "function": {"name": "weather"' in turns[0].content
        assert turns[2].content == (
            '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>\n'
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
        )
        assert turns[3].content == (
            "<tool_response>\n5\n</tool_response>\n<tool_response>\nsunny\n</tool_response>"
        )


def test_a_model_with_a_template_of_its_own_gets_all_as_it_is() -> None:
    whole = plan(HERMES, tools=FLAT)
    turns, tools = with_tools(whole.family, HISTORY, whole.box)
    assert turns == HISTORY
    assert tools is not None
    assert [tool["function"]["name"] for tool in tools] == ["weather", "add"]


def test_tools_that_may_not_be_called_are_not_shown() -> None:
    turns, _ = with_tools(TAUGHT, HISTORY[:1], plan(tools=NESTED, tool_choice="none").box)
    assert turns == HISTORY[:1]


def test_mistral_gets_ids_that_its_template_takes() -> None:
    whole = plan(MISTRAL_LIST, tools=NESTED)
    turns, tools = with_tools(whole.family, HISTORY, whole.box)
    assert tools is not None
    calls = turns[1].tool_calls
    assert calls is not None
    ids = [call["id"] for call in calls]
    assert all(re.fullmatch(r"[0-9A-Za-z]{9}", id_) for id_ in ids)
    assert len(set(ids)) == 2
    assert [turn.tool_call_id for turn in turns[2:4]] == ids
    assert calls[1]["function"] == {"name": "weather", "arguments": {"city": "Paris"}}
    kept = Message("tool", "5", tool_call_id="abcDEF123")
    assert with_tools(MARKED, [kept], None)[0] == [kept]
    _, calls_made = parsed(MARKED, listed(("add", {})))
    assert re.fullmatch(r"[0-9A-Za-z]{9}", calls_made.all[0].id)


OLD_HISTORY = [
    Message("user", "2+3?"),
    Message("assistant", None, function_call={"name": "add", "arguments": '{"a": 2}'}),
    Message("function", "5", name="add"),
]


def test_turns_from_before_there_were_tools() -> None:
    turns, _ = with_tools(HERMES, OLD_HISTORY, None)
    assert turns[1].function_call is None
    assert turns[1].tool_calls == [
        {"type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    ]
    assert turns[2] == Message("tool", "5", name="add")
    taught, _ = with_tools(TAUGHT, OLD_HISTORY, None)
    assert taught[1].content == '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
    assert taught[2].content == "<tool_response>\n5\n</tool_response>"


# --- answers -------------------------------------------------------------------------------------

BOTH = "Let me see.\n" + call("weather", PARIS) + "\n" + call("add", {"a": 1})


def test_chat_completions(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(BOTH)
    choice = edge.chat(tools=NESTED).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    functions = [each["function"] for each in choice["message"]["tool_calls"]]
    assert functions == [
        {"name": "weather", "arguments": json.dumps(PARIS)},
        {"name": "add", "arguments": '{"a": 1}'},
    ]
    edge.region.script = lambda submit: answer(call("add", {"a": 1}))
    assert edge.chat(tools=NESTED).json()["choices"][0]["message"]["content"] is None


def test_chat_completions_streamed(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(BOTH, per_step=3)
    body = edge.chat(tools=FLAT, stream=True).text
    chunks = [each["choices"][0] for each in events(body) if each != "[DONE]"]
    assert "tool_call>" not in body
    assert chunks[-1]["finish_reason"] == "tool_calls"
    said = "".join(each["delta"].get("content", "") for each in chunks)
    assert said == "Let me see."
    deltas = [delta for each in chunks for delta in each["delta"].get("tool_calls", [])]
    starts = [delta for delta in deltas if "id" in delta]
    assert [(delta["index"], delta["function"]["name"]) for delta in starts] == [
        (0, "weather"),
        (1, "add"),
    ]
    joined = "".join(d["function"]["arguments"] for d in deltas if d["index"] == 0)
    assert json.loads(joined) == PARIS


def test_functions_are_answered_in_the_form_of_their_time(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(call("add", {"a": 1}), per_step=4)
    choice = edge.chat(functions=FLAT, function_call={"name": "add"}).json()["choices"][0]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "add", "arguments": '{"a": 1}'}
    assert choice["message"]["content"] is None
    assert "tool_calls" not in choice["message"]
    body = edge.chat(functions=FLAT, stream=True).text
    chunks = [each["choices"][0] for each in events(body) if each != "[DONE]"]
    deltas = [each["delta"]["function_call"] for each in chunks if "function_call" in each["delta"]]
    assert deltas[0] == {"name": "add", "arguments": ""}
    assert "".join(delta["arguments"] for delta in deltas) == '{"a": 1}'
    assert all("name" not in delta for delta in deltas[1:])
    assert chunks[-1]["finish_reason"] == "function_call"
    assert "tool_calls" not in body
    edge.region.script = lambda submit: answer("Hello")
    said = edge.chat(functions=FLAT).json()["choices"][0]
    assert (said["message"]["content"], said["finish_reason"]) == ("Hello", "stop")


def test_native(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(BOTH)
    result = edge.run(prompt="hi", tools=FLAT).json()["result"]
    assert result["response"] == "Let me see."
    assert result["tool_calls"] == [
        {"name": "weather", "arguments": PARIS},
        {"name": "add", "arguments": {"a": 1}},
    ]


def test_native_streamed(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(BOTH, per_step=5)
    body = edge.run(prompt="hi", tools=FLAT, stream=True).text
    chunks = [each for each in events(body) if each != "[DONE]"]
    assert "tool_call>" not in body
    assert "".join(each["response"] for each in chunks) == "Let me see."
    calls = [made for each in chunks for made in each.get("tool_calls", [])]
    assert calls == [
        {"name": "weather", "arguments": PARIS},
        {"name": "add", "arguments": {"a": 1}},
    ]


def test_a_call_that_max_tokens_cut(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(call("add", {"a": 1})[:-20], reason="length")
    choice = edge.chat(tools=NESTED, tool_choice="required").json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert edge.run(prompt="hi", tools=NESTED).json()["result"]["tool_calls"] == []


def test_the_model_is_told_of_its_tools(edge: Deployment) -> None:
    edge.run(prompt="hi", tools=NESTED)
    edge.chat(tools=NESTED)
    for submit in edge.region.submits:
        assert bytes(submit.prompt_ids).startswith(b"<tools>weather,add\n")
        assert submit.grammar is not None
