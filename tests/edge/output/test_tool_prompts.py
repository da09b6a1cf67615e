"""Conversations with calls, made fit for the template of each family."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.edge.families.transcripts import TEMPLATES, described, model

from skerry.wire import Message
from skerry_edge.families.recognition import family_of
from skerry_edge.output.asked import OutputAsked
from skerry_edge.output.plan import OutputPlan, plan_fields
from skerry_edge.output.tool_prompts import with_tools
from skerry_edge.text.templates.template import ChatTemplate


def call(id_: str, name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


HISTORY = [
    Message("user", "Go."),
    Message("assistant", "Two.", tool_calls=[call("call_a", "get"), call("call_b", "stop")]),
    Message("tool", "b came first", tool_call_id="call_b"),
    Message("tool", "then a", tool_call_id="call_a"),
    Message("user", "Again."),
    Message("assistant", None, tool_calls=[call("call_c", "get")]),
    Message("tool", "c", tool_call_id="call_c"),
]


def planned(name: str) -> OutputPlan:
    family = model(name, has_tokens=True).family
    return plan_fields(family, OutputAsked(tools=described()))


def laid_out(name: str, history: list[Message]) -> str:
    """The prompt of a conversation."""
    whole = planned(name)
    turns, tools = with_tools(whole.family, history, whole.box)
    source = (TEMPLATES / f"{name}.jinja").read_text()
    template = ChatTemplate(source, tokens={"bos_token": "<s>", "eos_token": "</s>"})
    plain = [
        {key: value for key, value in msgspec.to_builtins(turn).items() if value is not None}
        for turn in turns
    ]
    for turn in plain:
        turn.setdefault("content", "")
        for each in turn.get("tool_calls", ()):
            each["function"]["arguments"] = msgspec.json.decode(each["function"]["arguments"])
    return template.render(plain, tools=tools)


@pytest.mark.parametrize("name", ["qwen3", "kimi-k2", "glm-4.7", "gemma-4"])
def test_results_stand_in_the_order_of_their_calls(name: str) -> None:
    prompt = laid_out(name, HISTORY)
    assert prompt.index("then a") < prompt.index("b came first") < prompt.index("Again.")


def test_kimis_calls_are_numbered_through_the_conversation() -> None:
    prompt = laid_out("kimi-k2", HISTORY)
    results = [f"## Return of functions.{each}" for each in ("get:0", "stop:1", "get:2")]
    assert [prompt.count(each) for each in results] == [1, 1, 1]


def test_harmonys_turns_have_one_call_each() -> None:
    prompt = laid_out("gpt-oss", HISTORY)
    spoken = prompt[prompt.index("<|start|>user<|message|>Go.") :]
    order = [
        "to=functions.get<|channel|>",
        "<|start|>functions.get to=assistant",
        "then a",
        "to=functions.stop<|channel|>",
        "<|start|>functions.stop to=assistant",
        "b came first",
        "Again.",
    ]
    places = [spoken.index(each) for each in order]
    assert places == sorted(places)


@pytest.mark.parametrize("name", ["deepseek-v3.1", "deepseek-r1"])
def test_tools_are_described_where_the_template_does_not(name: str) -> None:
    source = "{{ messages[0]['content'] }}<｜tool▁calls▁begin｜>" + (
        "```json" if name == "deepseek-r1" else ""
    )
    family = family_of(source)
    assert family.name == name
    plan = plan_fields(family, OutputAsked(tools=described()))
    turns, _ = with_tools(family, [Message("system", "Be kind."), *HISTORY[:1]], plan.box)
    assert isinstance(turns[0].content, str)
    assert turns[0].content.startswith("Be kind.\n\n")
    assert '"name": "get_all"' in turns[0].content
    assert "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>" in turns[0].content
    assert [turn.role for turn in turns] == ["system", "user"]


def test_calls_are_written_where_the_template_does_not() -> None:
    plan = planned("granite-3.3")
    turns, tools = with_tools(plan.family, HISTORY, plan.box)
    assert tools is not None
    assert turns[1].tool_calls is None
    assert turns[1].content == (
        'Two.<|tool_call|>[{"name": "get", "arguments": {}}, {"name": "stop", "arguments": {}}]'
    )
    broken = Message("assistant", None, tool_calls=[call("x", "get", "{")])
    [turn], _ = with_tools(plan.family, [broken], None)
    assert turn.content == '<|tool_call|>[{"name": "get", "arguments": {"arguments": "{"}}]'


def test_a_result_of_no_call_stays_where_it_is() -> None:
    family = planned("qwen3").family
    history = [*HISTORY[:2], Message("tool", "?", tool_call_id="call_x"), *HISTORY[2:4]]
    turns, _ = with_tools(family, history, None)
    assert turns == history
