"""What stays cached, in OpenAI's words: where prompts are pinned, and what usage says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import openai
import pytest
from tests.edge.api.pinned import V1, create, pins, wrote
from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, Deployment

from skerry_edge.hints import session_of


def part(said: str, **mark: Any) -> dict[str, Any]:
    marked = {"prompt_cache_breakpoint": {"mode": "explicit"} | mark} if mark else {}
    return {"type": "text", "text": said} | marked


def respond(edge: Deployment, **body: Any) -> httpx.Response:
    return edge.client.post(f"{V1}/responses", json={"model": MODEL, "input": "hi"} | body)


# --- OpenAI --------------------------------------------------------------------------------------

CHAT = "<user>a\nb\n<assistant>c\n<user>d\n<assistant>"


def conversation(*marks: tuple[int, str | None]) -> list[dict[str, Any]]:
    """Four parts in three turns, some of them marked with a time."""
    said = [part(each) for each in "abcd"]
    for number, ttl in marks:
        mark = {"mode": "explicit"} | ({"ttl": ttl} if ttl else {})
        said[number]["prompt_cache_breakpoint"] = mark
    return [
        {"role": "user", "content": said[:2]},
        {"role": "assistant", "content": said[2:3]},
        {"role": "user", "content": said[3:]},
    ]


EXPLICIT = {"mode": "explicit"}
OPENAI_CASES: Sequence[tuple[dict[str, Any], list[tuple[int, str | None]], list[Any]]] = [
    ({}, [], []),
    ({"prompt_cache_options": {}}, [], [(CHAT, 1800.0)]),
    ({"prompt_cache_options": {"ttl": "12h"}}, [], [(CHAT, 43200.0)]),
    ({"prompt_cache_options": EXPLICIT}, [], []),
    ({"prompt_cache_options": EXPLICIT}, [(0, None)], [("<user>a\n", 1800.0)]),
    ({"prompt_cache_options": EXPLICIT | {"ttl": "12h"}}, [(0, None)], [("<user>a\n", 43200.0)]),
    ({}, [(0, "12h")], [("<user>a\n", 43200.0), (CHAT, 1800.0)]),
    (
        {"prompt_cache_options": EXPLICIT},
        [(0, "12h"), (1, None)],
        [("<user>a\n", 43200.0), ("<user>a\nb\n<assistant>", 1800.0)],
    ),
    ({"prompt_cache_retention": "in_memory"}, [], []),
    ({"prompt_cache_retention": "24h"}, [], [(CHAT, 86400.0)]),
    ({"prompt_cache_retention": "24h", "prompt_cache_options": {}}, [], [(CHAT, 86400.0)]),
]


@pytest.mark.parametrize(("body", "marks", "expected"), OPENAI_CASES)
def test_where_chat_completions_pin_a_prompt(
    edge: Deployment,
    body: dict[str, Any],
    marks: list[tuple[int, str | None]],
    expected: list[tuple[str, float]],
) -> None:
    reply = edge.chat(messages=conversation(*marks), **body)
    assert reply.status_code == 200, reply.text
    assert pins(edge) == expected
    assert "x-skerry-ignored" not in reply.headers


@pytest.mark.parametrize(("body", "marks", "expected"), OPENAI_CASES)
def test_where_responses_pin_a_prompt(
    edge: Deployment,
    body: dict[str, Any],
    marks: list[tuple[int, str | None]],
    expected: list[tuple[str, float]],
) -> None:
    turns = conversation(*marks)
    for turn in turns:
        kind = "output_text" if turn["role"] == "assistant" else "input_text"
        for each in turn["content"]:
            each["type"] = kind
    reply = respond(edge, input=turns, **body)
    assert reply.status_code == 200, reply.text
    assert pins(edge) == expected
    assert "x-skerry-ignored" not in reply.headers


def test_of_many_breakpoints_the_latest_are_written(edge: Deployment) -> None:
    """Explicit ones alone write four, beside that of the whole prompt three."""
    first: list[Any] = [{"role": "user", "content": [part(c, mode="explicit") for c in "abcde"]}]
    first[0]["content"][0]["prompt_cache_breakpoint"]["ttl"] = "12h"  # not among the latest four
    edge.chat(messages=first, prompt_cache_options={"mode": "explicit"})
    assert [seconds for _, seconds in pins(edge)] == [1800.0]
    first[0]["content"][1]["prompt_cache_breakpoint"]["ttl"] = "12h"  # among four, not three
    edge.chat(messages=first, prompt_cache_options={"mode": "explicit"})
    assert pins(edge)[0] == ("<user>a\nb\n", 43200.0)
    edge.chat(messages=first)
    assert [seconds for _, seconds in pins(edge)] == [1800.0]


def test_a_conversation_that_goes_on_is_cut_after_what_came_before(edge: Deployment) -> None:
    first = respond(edge, input="one", instructions="S").json()
    parts: list[Any] = [
        {"type": "input_text", "text": "two"},
        {"type": "input_text", "text": "three"},
    ]
    parts[0]["prompt_cache_breakpoint"] = {"mode": "explicit"}
    turns = [{"role": "user", "content": parts}]
    options = {"mode": "explicit"}
    respond(
        edge, input=turns, previous_response_id=first["id"], prompt_cache_options=options
    ).raise_for_status()
    assert pins(edge) == [("<user>one\n<assistant>Hello\n<user>two\n", 1800.0)]


@pytest.mark.parametrize("send", [Deployment.chat, respond])
def test_what_openais_options_cannot_do_here(edge: Deployment, send: Any) -> None:
    refused = send(edge, prompt_cache_options={"prewarm": True})
    assert refused.status_code == 400
    assert "prompt_cache_options.prewarm" in refused.text
    assert send(edge, prompt_cache_options={"ttl": "1h"}).status_code == 400
    assert send(edge, prompt_cache_retention="48h").status_code == 400
    named = send(edge, prompt_cache_options={"comparison_response_id": "resp_1"})
    assert named.headers["x-skerry-ignored"] == "prompt_cache_options.comparison_response_id"


def test_openais_client_reads_the_usage(edge: Deployment) -> None:
    edge.region.script = lambda submit: wrote(12, cached=4, lapsed=64)
    url = f"http://127.0.0.1:{edge.port}{V1}"
    with openai.OpenAI(api_key=edge.token, base_url=url, max_retries=0) as client:
        chat = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            prompt_cache_options={"ttl": "30m"},
        ).usage
        response = client.responses.create(
            model=MODEL, input="hi", prompt_cache_options={"ttl": "12h"}
        ).usage
    assert chat is not None
    assert chat.prompt_tokens_details is not None
    assert chat.prompt_tokens_details.cached_tokens == 4
    assert chat.prompt_tokens_details.cache_write_tokens == 12
    assert response is not None
    details = response.input_tokens_details
    assert (details.cached_tokens, details.cache_write_tokens) == (4, 12)
    assert details.to_dict() == {
        "cached_tokens": 4,
        "cache_write_tokens": 12,
        "cache_write_tokens_details": {"ttl_12h_tokens": 12},
        "cache_lapsed_tokens": 64,
    }


# --- sessions ------------------------------------------------------------------------------------


def test_a_request_that_names_its_prompts_family_stays_with_it(edge: Deployment) -> None:
    def affinity() -> bytes:
        return edge.region.submits[-1].affinity

    edge.chat(prompt_cache_key="k")
    assert affinity() == session_of("k", ACCOUNT)
    respond(edge, prompt_cache_key="k")
    assert affinity() == session_of("k", ACCOUNT)
    create(edge, metadata={"user_id": "k"})
    assert affinity() == session_of("k", ACCOUNT)
    headers = {"x-session-affinity": "of the header"}
    body = {"model": MODEL, "input": "hi", "prompt_cache_key": "k"}
    edge.client.post(f"{V1}/responses", json=body, headers=headers)
    assert affinity() == session_of("of the header", ACCOUNT)
    edge.chat()
    assert affinity() == b""
