"""Tools in Anthropic's Messages: calls, streamed too, and histories with results."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.edge.api.anthropic.create import TOOL, create, named_events, prompt
from tests.edge.scripted_region import MODEL, answer
from tests.edge.support import Deployment


def test_blocks_and_tools_of_a_history(edge: Deployment) -> None:
    def record(turns: Any, **tools: Any) -> Any:
        seen.append(turns)
        return original(turns, **tools)

    seen: list[Any] = []
    text: Any = edge.edge.texts[MODEL]
    original = text.render
    text.render = record
    try:
        create(
            edge,
            system=[{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "a"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "text", "text": "b"},
                        {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": "42"},
                        {"type": "text", "text": "c"},
                    ],
                },
            ],
        )
    finally:
        del text.render
    turns = seen[0]  # the beginning that is kept is laid out after it
    assert [turn.role for turn in turns] == ["system", "user", "assistant", "tool", "user"]
    assert [turn.content for turn in turns[1:]] == ["a", "b", "42", "c"]
    assert turns[2].tool_calls == [
        {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    ]
    assert turns[3].tool_call_id == "t1"


def test_the_model_is_shown_that_a_tool_failed(edge: Deployment) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    for content, shown in (
        ("no", "Error: no"),
        ([{"type": "text", "text": "no"}], "Error: \nno"),
        (None, "Error: "),
    ):
        result = {"type": "tool_result", "tool_use_id": "t1", "content": content, "is_error": True}
        turns = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
        assert create(edge, messages=turns).status_code == 200
        assert f"<tool>{shown}\n" in prompt(edge)


CALLS = 'Well.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' * 2


@pytest.mark.parametrize("kind", ["auto", "any", "tool", "none"])
def test_tools(edge: Deployment, kind: str) -> None:
    edge.region.script = lambda submit: answer(CALLS[6:])
    choice = {"type": kind, **({"name": "add"} if kind == "tool" else {})}
    body = create(edge, tools=[TOOL], tool_choice=choice).json()
    if kind == "none":
        assert body["stop_reason"] == "end_turn"
        return
    assert body["stop_reason"] == "tool_use"
    first = body["content"][0]
    assert (first["type"], first["name"], first["input"]) == ("tool_use", "add", {"a": 1})
    assert first["id"]
    assert edge.region.submits[0].grammar is not None


def test_a_stream_with_calls(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer(CALLS[: len(CALLS) // 2])
    plain = create(edge, tools=[TOOL]).json()
    told = named_events(create(edge, tools=[TOOL], stream=True).text)
    starts = [data for name, data in told if name == "content_block_start"]
    assert [each["content_block"]["type"] for each in starts] == ["text", "tool_use"]
    assert starts[1]["content_block"]["input"] == {}
    assert [data["index"] for name, data in told if name == "content_block_stop"] == [0, 1]
    deltas = [data for name, data in told if name == "content_block_delta"]
    written = "".join(d["delta"]["partial_json"] for d in deltas if d["index"] == 1)
    assert msgspec.json.decode(written) == plain["content"][1]["input"] == {"a": 1}
    said = "".join(d["delta"]["text"] for d in deltas if d["index"] == 0)
    assert said == plain["content"][0]["text"]
    assert said.strip() == "Well."
    assert told[-2][1]["delta"]["stop_reason"] == plain["stop_reason"] == "tool_use"
