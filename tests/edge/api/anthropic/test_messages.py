"""Anthropic's Messages over real HTTP: shapes, events in order, errors, histories with tools."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.edge.api.anthropic.create import HI, PATH, TOOL, create, named_events, prompt
from tests.edge.byte_text import CONTEXT
from tests.edge.scripted_region import MODEL, answer, done
from tests.edge.support import UNSERVED, Deployment

from skerry.errors import Overloaded, Unavailable


def test_a_plain_answer(edge: Deployment) -> None:
    edge.region.script = lambda submit: [*answer("Hello")[:-1], done("stop", 6, cached_tokens=8)]
    reply = create(edge, system="Be terse.", temperature=0.5, top_k=3, metadata={"user_id": "u"})
    body = reply.json()
    assert body == {
        "id": f"msg_{reply.headers['x-request-id']}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len("<system>Be terse.\n<user>hi\n<assistant>") - 8,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 8,
            "output_tokens": 6,
        },
    }
    assert prompt(edge) == "<system>Be terse.\n<user>hi\n<assistant>"
    sampling = edge.region.submits[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k) == (50, 0.5, 3)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "fields", "stop_reason", "stop_sequence", "text"),
    [
        ("stop", {}, "end_turn", None, "Hello"),
        ("length", {}, "max_tokens", None, "Hello"),
        ("stop", {"stop_sequences": ["x", "ll"]}, "stop_sequence", "ll", "He"),
    ],
)
def test_why_it_ended(
    edge: Deployment,
    stream: bool,
    reason: Any,
    fields: dict[str, Any],
    stop_reason: str,
    stop_sequence: str | None,
    text: str,
) -> None:
    edge.region.script = lambda submit: answer("Hello", reason=reason)
    reply = create(edge, **fields, stream=stream)
    if not stream:
        body = reply.json()
        assert (body["stop_reason"], body["stop_sequence"]) == (stop_reason, stop_sequence)
        assert body["content"][0]["text"] == text
        return
    told = named_events(reply.text)
    delta = next(data for name, data in told if name == "message_delta")["delta"]
    assert delta == {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
    texts = [data["delta"]["text"] for name, data in told if name == "content_block_delta"]
    assert "".join(texts) == text


def test_a_stream(edge: Deployment) -> None:
    reply = create(edge, stream=True)
    assert reply.headers["content-type"] == "text/event-stream"
    told = named_events(reply.text)
    assert [name for name, _ in told] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 5,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    message = told[0][1]["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert message["usage"]["input_tokens"] == 20
    assert told[1][1]["content_block"] == {"type": "text", "text": ""}
    assert told[2][1]["delta"] == {"type": "text_delta", "text": "H"}
    assert told[-2][1]["usage"]["output_tokens"] == 6


def test_a_failure_in_mid_stream_is_an_error_event(edge: Deployment) -> None:
    edge.region.script = lambda submit: [[65], Unavailable("Gone.")]
    name, data = named_events(create(edge, stream=True).text)[-1]
    assert name == "error"
    assert data["error"] == {"type": "overloaded_error", "message": "Gone."}


def test_who_keeps_conversations_at_the_server_is_asked_to_send_them(edge: Deployment) -> None:
    """As Anthropic's tool runner understands it."""
    refused = create(edge, thread={"type": "create"})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["type"], "'thread'" in error["message"]) == ("invalid_request_error", True)
    unsupported = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert error["details"] == unsupported
    assert "details" not in create(edge, container="x").json()["error"]


def test_what_claude_code_sends_beside_its_turns(edge: Deployment) -> None:
    kept: dict[str, Any] = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    place = {"role": "system", "content": [{"type": "text", "text": "# Environment"}]}
    turns = [{"role": "user", "content": "hi"}, place]
    reply = create(edge, messages=turns, context_management=kept)
    assert reply.status_code == 200, reply.text
    assert bytes(edge.region.submits[-1].prompt_ids).decode() == (
        "<user>hi\n<system># Environment\n<assistant>"
    )
    kept["edits"][0]["keep"] = {"type": "thinking_turns", "value": 1}
    refused = create(edge, context_management=kept)
    assert (refused.status_code, "context_management" in refused.text) == (400, True)


def test_an_answer_that_was_begun_goes_on(edge: Deployment) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]
    create(edge, messages=turns)
    assert prompt(edge) == "<user>hi\n<assistant>Well, "
    blocks = [{"type": "text", "text": "x" * CONTEXT}]
    reply = create(edge, messages=[turns[0], {"role": "assistant", "content": blocks}])
    assert reply.status_code == 400
    assert "context window" in reply.json()["error"]["message"]


def test_tokens_are_counted(edge: Deployment) -> None:
    body = {name: HI[name] for name in ("model", "messages")}
    assert edge.client.post(f"{PATH}/count_tokens", json=body).json() == {"input_tokens": 20}
    assert edge.region.streams == []


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"max_tokens": None}, "invalid_request_error"),
        ({"messages": []}, "invalid_request_error"),
        ({"messages": [{"role": "developer", "content": "x"}]}, "invalid_request_error"),
        ({"temperature": 1.5}, "invalid_request_error"),
        ({"tools": [{"type": "web_search_1", "name": "w"}]}, "invalid_request_error"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "invalid_request_error"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": "yes"}},
            "invalid_request_error",
        ),
        ({"max_tokens": CONTEXT}, "invalid_request_error"),
        ({"model": UNSERVED}, "not_found_error"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "invalid_request_error",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
                    }
                ]
            },
            "invalid_request_error",
        ),
    ],
)
def test_refusals(edge: Deployment, fields: dict[str, Any], kind: str) -> None:
    reply = create(edge, **fields)
    body = reply.json()
    assert (reply.status_code, body["type"], body["error"]["type"]) == (400, "error", kind)
    assert body["error"]["message"]
    assert body["request_id"] == reply.headers["x-request-id"]
    assert edge.region.streams == []


def test_capacity_is_said_in_anthropics_words(edge: Deployment) -> None:
    def refuse(submit: object) -> list[Any]:
        raise Overloaded("Full.", retry_after=2.0)

    edge.region.script = refuse
    reply = create(edge)
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "2")
    assert reply.json()["error"]["type"] == "overloaded_error"


def test_the_token_may_be_an_api_key(edge: Deployment) -> None:
    def asked(**headers: str) -> httpx.Response:
        url = f"http://127.0.0.1:{edge.port}{PATH}"
        return httpx.post(url, json=HI, headers=headers, trust_env=False)

    assert asked(**{"x-api-key": edge.token, "anthropic-version": "2023-06-01"}).status_code == 200
    for headers in ({"x-api-key": "no"}, {}, {"x-api-key": edge.token, "authorization": "Basic x"}):
        reply = asked(**headers)
        assert reply.status_code == 401
        assert reply.json()["error"]["type"] == "authentication_error"
