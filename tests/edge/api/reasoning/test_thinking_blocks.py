"""Thinking in Messages: blocks with signatures, streamed, and back in."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from anthropic.types import Message
from tests.edge.api.reasoning.thoughts import (
    NUM_THOUGHT,
    NUM_TOKENS,
    OFF,
    SAID,
    TEXT,
    THOUGHT,
    TURNS,
    base,
    limit,
    prompt,
)
from tests.edge.scripted_region import MODEL, answer
from tests.edge.support import Deployment

from skerry_edge.api.fields import HEADER
from skerry_edge.api.thought_seal import ThoughtSeal

ENABLED = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(autouse=True)
def script(thinker: Deployment) -> None:
    thinker.region.streams.clear()
    thinker.region.script = lambda submit: answer(SAID)


# --- Anthropic's Messages ------------------------------------------------------------------------


def create(thinker: Deployment, **fields: Any) -> Any:
    body = {"model": MODEL, "max_tokens": 2000, "messages": TURNS, "thinking": ENABLED, **fields}
    return thinker.client.post(f"{base(thinker)}/messages", json=body)


def test_thinking_is_a_block_with_a_signature(
    thinker: Deployment, anthropics: anthropic.Anthropic
) -> None:
    message = anthropics.messages.create(
        model=MODEL,
        max_tokens=2000,
        messages=TURNS,
        thinking=ENABLED,  # type: ignore[arg-type]
    )
    thinking, text = message.content
    assert thinking.type == "thinking"
    assert thinking.thinking == THOUGHT
    assert thinking.signature
    assert text.type == "text"
    assert text.text == TEXT
    assert message.usage.output_tokens == NUM_TOKENS
    assert message.usage.output_tokens_details is not None
    assert message.usage.output_tokens_details.thinking_tokens == NUM_THOUGHT
    told = limit(thinker)
    assert told is not None
    assert told.max_tokens == 1024


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_thinking_is_streamed_and_signed_at_its_end(
    thinker: Deployment, anthropics: anthropic.Anthropic, display: str
) -> None:
    thinking: Any = ENABLED | {"display": display}
    with anthropics.messages.stream(
        model=MODEL, max_tokens=2000, messages=TURNS, thinking=thinking
    ) as stream:
        kinds = [
            event.delta.type if event.type == "content_block_delta" else event.type
            for event in stream
            if event.type in ("content_block_start", "content_block_delta", "content_block_stop")
        ]
        whole: Message = stream.get_final_message()
    first = whole.content[0]
    assert first.type == "thinking"
    assert first.thinking == (THOUGHT if display == "summarized" else "")
    thoughts = kinds.count("thinking_delta")
    assert (thoughts > 0) is (display == "summarized")
    assert kinds == [
        "content_block_start", *["thinking_delta"] * thoughts, "signature_delta",
        "content_block_stop", "content_block_start", *["text_delta"] * kinds.count("text_delta"),
        "content_block_stop",
    ]  # fmt: skip
    reply = create(thinker, thinking=thinking).json()
    assert reply["content"][0] == first.model_dump()


def test_without_thinking_there_is_none(thinker: Deployment) -> None:
    thinker.region.script = lambda submit: answer(TEXT)
    for fields in ({"thinking": None}, {"thinking": {"type": "disabled"}}):
        reply = create(thinker, **fields)
        assert (reply.status_code, reply.headers.get(HEADER)) == (200, None)
        assert [block["type"] for block in reply.json()["content"]] == ["text"]
        assert prompt(thinker).endswith(OFF)


def test_adaptive_thinking_takes_an_effort(thinker: Deployment) -> None:
    adaptive = {"type": "adaptive"}
    assert create(thinker, thinking=adaptive).status_code == 200
    assert limit(thinker) is None
    create(thinker, thinking=adaptive, output_config={"effort": "medium"}, max_tokens=100)
    told = limit(thinker)
    assert told is not None
    assert told.max_tokens == 50
    thinker.region.script = lambda submit: answer(TEXT)
    off = create(thinker, thinking=None, output_config={"effort": "medium"})
    assert off.headers[HEADER] == "output_config.effort"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
        ({"max_tokens": 1024}, "`max_tokens` must be greater"),
        ({"tool_choice": {"type": "any"}, "tools": [{"name": "f", "input_schema": {}}]},
         "forces tool use"),
        ({"temperature": 0.5}, "temperature"),
        ({"top_k": 5}, "top_k"),
        ({"messages": [*TURNS, {"role": "assistant", "content": "4"}]}, "assistant"),
        ({"thinking": {"type": "between_tools"}}, "between_tools"),
        ({"thinking": {"type": "always"}}, "thinking"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_thinking(
    thinker: Deployment, fields: dict[str, Any], problem: str
) -> None:
    reply = create(thinker, **fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert problem in reply.json()["error"]["message"]


def history(blocks: list[Any]) -> list[Any]:
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "4"}
    return [
        *TURNS,
        {"role": "assistant", "content": [*blocks, use]},
        {"role": "user", "content": [result]},
    ]


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_thinking_comes_back_as_it_was(thinker: Deployment, display: str) -> None:
    block = create(thinker, thinking=ENABLED | {"display": display}).json()["content"][0]
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    for brought in (block, {"type": "redacted_thinking", "data": block["signature"]}):
        reply = create(thinker, messages=history([brought]), tools=tools)
        assert reply.status_code == 200, reply.text
        assert prompt(thinker).startswith(f"{THOUGHT}<tools>f\n<user>")


def test_thinking_that_was_changed_is_refused(thinker: Deployment) -> None:
    block = create(thinker).json()["content"][0]
    other = ThoughtSeal(thinker.edge.secret, "another tenant", MODEL).seal(THOUGHT)
    for changed, problem in (
        ({**block, "thinking": "No."}, "messages.1.content.0: `thinking` or `redacted_thinking`"),
        ({**block, "signature": block["signature"][:-8] + "AAAAAAAA"}, "Invalid `signature` in"),
        ({**block, "signature": ""}, "messages.1.content.0: Invalid `signature` in `thinking`"),
        ({**block, "signature": other}, "Invalid `signature` in `thinking` block"),
        ({"type": "redacted_thinking", "data": "x"}, "Invalid `data` in `redacted_thinking` block"),
    ):
        reply = create(thinker, messages=history([changed]))
        assert reply.status_code == 400
        assert problem in reply.json()["error"]["message"]
    reply = create(thinker, messages=history([]))
    assert reply.status_code == 400
    told = reply.json()["error"]["message"]
    assert "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`" in told
    assert "found `tool_use`" in told


def test_what_another_model_thought_is_not_shown_to_this_one(thinker: Deployment) -> None:
    create(thinker)
    tenant = thinker.region.submits[-1].tenant
    seal = ThoughtSeal(thinker.edge.secret, tenant, "@cf/another/model").seal(THOUGHT)
    block = {"type": "thinking", "thinking": THOUGHT, "signature": seal}
    assert create(thinker, messages=history([block])).status_code == 200
    assert THOUGHT not in prompt(thinker)
