"""What stays cached, in each dialect's words: where prompts are pinned, and what usage says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anthropic
import httpx
import msgspec
import openai
import pytest
from tests.edge.api.test_messages import named_events
from tests.edge.support import ACCOUNT, MODEL, Deployment, Hold, answer, done, eventually

from skerry_edge.hints import session_of
from skerry_regions.wire.pins import Pin, Pinned, PromptUse
from skerry_regions.wire.protocol import Done, Tokens

V1 = f"/client/v4/accounts/{ACCOUNT}/ai/v1"
FIVE: dict[str, Any] = {"type": "ephemeral"}
HOUR: dict[str, Any] = {"type": "ephemeral", "ttl": "1h"}


def text(said: str, control: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": said} | ({"cache_control": control} if control else {})


def part(said: str, **mark: Any) -> dict[str, Any]:
    marked = {"prompt_cache_breakpoint": {"mode": "explicit"} | mark} if mark else {}
    return {"type": "text", "text": said} | marked


def create(edge: Deployment, **body: Any) -> httpx.Response:
    asked = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    return edge.client.post(f"{V1}/messages", json=asked | body)


def respond(edge: Deployment, **body: Any) -> httpx.Response:
    return edge.client.post(f"{V1}/responses", json={"model": MODEL, "input": "hi"} | body)


def pins(edge: Deployment) -> list[tuple[str, float]]:
    """The beginnings of the last prompt that stay cached, and their seconds."""
    submit = edge.region.submits[-1]
    prompt = bytes(submit.prompt_ids).decode()
    return [(prompt[:end], seconds) for end, seconds in submit.pins]


def wrote(*tokens: int, cached: int = 0, lapsed: int = 0) -> list[Any]:
    """An answer of a node that pinned so many tokens for each of the request's pins."""
    end = done("stop", 3, cached_tokens=cached)
    usage = msgspec.structs.replace(end.usage, pinned=Pinned(tokens, lapsed))
    return [*answer("Hi")[:-1], Done(stream=1, finish_reason="stop", usage=usage)]


def begun(cached: int, *written: int) -> Tokens:
    """A first token, with what is known of its prompt."""
    use = PromptUse(cached_tokens=cached, pinned=Pinned(written, 0) if written else None)
    return Tokens(stream=1, index=0, token_ids=[65], prompt=use)


# --- Anthropic -----------------------------------------------------------------------------------

WHOLE = "<system>A\nB\n<user>a\nb\n<assistant>c\n<user>d\n<assistant>"
TURNS = [
    {"role": "user", "content": [text("a"), text("b")]},
    {"role": "assistant", "content": [text("c")]},
    {"role": "user", "content": [text("d")]},
]


def marked(*marks: tuple[int, int, dict[str, Any]]) -> list[dict[str, Any]]:
    """TURNS, with blocks (turn, block) marked."""
    turns = msgspec.json.decode(msgspec.json.encode(TURNS))
    for turn, block, control in marks:
        turns[turn]["content"][block]["cache_control"] = control
    return turns


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, []),
        ({"cache_control": FIVE}, [(WHOLE, 300.0)]),
        ({"cache_control": HOUR}, [(WHOLE, 3600.0)]),
        ({"messages": marked((2, 0, FIVE))}, [(WHOLE, 300.0)]),
        ({"messages": marked((0, 0, FIVE))}, [("<system>A\nB\n<user>a\n", 300.0)]),
        ({"messages": marked((0, 1, FIVE))}, [("<system>A\nB\n<user>a\nb\n<assistant>", 300.0)]),
        (
            {"messages": marked((1, 0, FIVE))},
            [("<system>A\nB\n<user>a\nb\n<assistant>c\n<", 300.0)],
        ),
        # An earlier one is kept as long as a later one says.
        ({"messages": marked((0, 1, FIVE), (1, 0, FIVE), (2, 0, FIVE))}, [(WHOLE, 300.0)]),
        (
            {"system": [text("A", HOUR), text("B")], "messages": marked((2, 0, FIVE))},
            [("<system>A\n", 3600.0), (WHOLE, 300.0)],
        ),
        (
            {"system": [text("A"), text("B", HOUR)], "cache_control": FIVE},
            [("<system>A\nB\n<user>", 3600.0), (WHOLE, 300.0)],
        ),
        (  # the answer's own beginning comes after what is kept
            {"messages": [*TURNS, {"role": "assistant", "content": [text("e", FIVE)]}]},
            [(WHOLE, 300.0)],
        ),
    ],
)
def test_where_cache_control_pins_a_prompt(
    edge: Deployment, body: dict[str, Any], expected: list[Pin]
) -> None:
    reply = create(edge, **{"system": [text("A"), text("B")], "messages": TURNS} | body)
    assert reply.status_code == 200, reply.text
    assert "x-skerry-ignored" not in reply.headers
    assert pins(edge) == expected


def test_tools_are_kept_with_the_system_prompt(edge: Deployment) -> None:
    tool = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
    create(edge, system="S", tools=[tool | {"cache_control": FIVE}])
    assert pins(edge) == [("<tools>f\n<system>S\n<user>", 300.0)]
    wrong = create(edge, tools=[tool | {"cache_control": {"type": "ephemeral", "ttl": "2h"}}])
    assert wrong.status_code == 400
    assert "tools[0].cache_control: Invalid enum value '2h'" in wrong.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": marked((0, 0, FIVE), (0, 1, HOUR))}, 'a ttl of "1h" come before'),
        (
            {
                "system": [text("A", FIVE), text("B", FIVE)],
                "messages": marked((0, 0, FIVE), (0, 1, FIVE), (1, 0, FIVE)),
            },
            "more than 4 blocks",
        ),
        (
            {"cache_control": FIVE, "messages": marked(*[(i, 0, FIVE) for i in (0, 1)])}
            | {"system": [text("A", FIVE), text("B", FIVE)]},
            "more than 4 blocks",
        ),
        ({"cache_control": FIVE, "messages": marked((2, 0, HOUR))}, "another ttl"),
        ({"cache_control": {"type": "forever"}}, "cache_control.type"),
        ({"messages": marked((0, 0, {"type": "ephemeral", "ttl": "1d"}))}, "cache_control.ttl"),
    ],
)
def test_cache_control_that_cannot_be(edge: Deployment, body: dict[str, Any], message: str) -> None:
    reply = create(edge, **body)
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_usage_says_what_was_read_and_written(edge: Deployment, stream: bool) -> None:
    edge.region.script = lambda submit: wrote(4, 10, cached=20, lapsed=64)
    reply = create(edge, system=[text("A", HOUR)], messages=marked((2, 0, FIVE)), stream=stream)
    usage = reply.json()["usage"] if not stream else named_events(reply.text)[-2][1]["usage"]
    prompt = len("<system>A\n<user>a\nb\n<assistant>c\n<user>d\n<assistant>")
    assert usage == {
        "input_tokens": prompt - 34,
        "cache_creation_input_tokens": 14,
        "cache_read_input_tokens": 20,
        "output_tokens": 3,
        "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 4},
        "cache_lapsed_input_tokens": 64,
    }


def test_anthropics_client_reads_the_usage(edge: Deployment) -> None:
    edge.region.script = lambda submit: wrote(12, cached=20)
    url = f"http://127.0.0.1:{edge.port}{V1.removesuffix('/v1')}"
    with anthropic.Anthropic(auth_token=edge.token, base_url=url, max_retries=0) as client:
        asked: Any = {
            "model": MODEL,
            "max_tokens": 9,
            "system": [text("A", HOUR)],
            "messages": [{"role": "user", "content": [text("hi", HOUR)]}],
        }
        usage = client.messages.create(**asked).usage
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message().usage
    prompt = len("<system>A\n<user>hi\n<assistant>")
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (prompt - 32, 20)
    assert usage.cache_creation_input_tokens == 12
    assert usage.cache_creation is not None
    assert usage.cache_creation.ephemeral_1h_input_tokens == 12
    assert usage.cache_creation.ephemeral_5m_input_tokens == 0
    assert streamed.cache_read_input_tokens == 20
    assert streamed.cache_creation_input_tokens == 12
    assert streamed.input_tokens == prompt - 32


def test_a_stream_begins_with_what_was_cached(edge: Deployment) -> None:
    edge.region.script = lambda submit: [begun(3, 9), *wrote(9, cached=3)[1:]]
    reply = create(edge, messages=TURNS, cache_control=FIVE, stream=True)
    (_, start), *_, (_, end), _ = named_events(reply.text)
    first, last = start["message"]["usage"], end["usage"]
    assert (first.pop("output_tokens"), last.pop("output_tokens")) == (1, 3)
    assert first == last
    prompt = len(edge.region.submits[-1].prompt_ids)
    assert (first["input_tokens"], first["cache_read_input_tokens"]) == (prompt - 12, 3)
    assert first["cache_creation_input_tokens"] == 9


def test_a_caller_who_leaves_is_charged_what_was_cached_as_such(edge: Deployment) -> None:
    def cached() -> int:
        rows = edge.client.get(f"/client/v4/accounts/{ACCOUNT}/ai/usage").json()["result"]
        return sum(row["cached_tokens"] for row in rows)

    before = cached()
    edge.region.script = lambda submit: [begun(3), Hold()]
    asked = {"model": MODEL, "max_tokens": 9, "messages": TURNS, "stream": True}
    with edge.client.stream("POST", f"{V1}/messages", json=asked) as reply:
        assert next(reply.iter_lines()) == "event: message_start"
    eventually(lambda: cached() == before + 3)


BILLING = "x-anthropic-billing-header: cc_version=2.1.117.48f; cc_entrypoint=cli; cch=71fea;"


@pytest.mark.parametrize(
    ("system", "shown"),
    [
        ([text(BILLING), text("S")], "S"),
        ([text(BILLING)], None),
        (f"{BILLING}\nS", "S"),
        (BILLING, None),
        ([text("S"), text(BILLING)], f"S\n{BILLING}"),  # only where Claude Code writes it
        (f"S\n{BILLING}", f"S\n{BILLING}"),
        (f" {BILLING}", f" {BILLING}"),
        ([text("X-Anthropic-Billing-Header: x")], "X-Anthropic-Billing-Header: x"),
    ],
)
def test_the_billing_line_is_no_part_of_the_prompt(
    edge: Deployment, system: Any, shown: str | None
) -> None:
    reply = create(edge, system=system)
    prompt = bytes(edge.region.submits[-1].prompt_ids).decode()
    assert prompt == (f"<system>{shown}\n" if shown else "") + "<user>hi\n<assistant>"
    counted = edge.client.post(
        f"{V1}/messages/count_tokens",
        json={"model": MODEL, "system": system, "messages": [{"role": "user", "content": "hi"}]},
    )
    assert counted.json()["input_tokens"] == len(prompt)
    trace = edge.edge.traces.record(reply.headers["x-request-id"])
    assert trace is not None
    lines = [span.attributes["line"] for span in trace.spans if span.name == "billing line"]
    is_dropped = shown is None or "illing" not in shown
    assert lines == ([BILLING] if is_dropped else [])


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
