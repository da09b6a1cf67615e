"""What stays cached, in Anthropic's words: `cache_control`, and what usage says."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from tests.edge.api.anthropic.create import named_events
from tests.edge.api.pinned import TURNS, V1, create, marked, pins, text, wrote
from tests.edge.scripted_region import MODEL, Hold
from tests.edge.support import ACCOUNT, Deployment, eventually

from skerry_regions.wire.pins import Pin, Pinned, PromptUse
from skerry_regions.wire.protocol import Tokens

FIVE: dict[str, Any] = {"type": "ephemeral"}
HOUR: dict[str, Any] = {"type": "ephemeral", "ttl": "1h"}


def begun(cached: int, *written: int) -> Tokens:
    """A first token, with what is known of its prompt."""
    use = PromptUse(cached_tokens=cached, pinned=Pinned(written, 0) if written else None)
    return Tokens(stream=1, index=0, token_ids=[65], prompt=use)


# --- Anthropic -----------------------------------------------------------------------------------

WHOLE = "<system>A\nB\n<user>a\nb\n<assistant>c\n<user>d\n<assistant>"


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
