"""Reasoning items of Responses: events, sealed or in the clear, and back in."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest
from openai.types.responses import ResponseReasoningItem
from tests.edge.api.anthropic.create import named_events
from tests.edge.api.reasoning.thoughts import (
    NUM_THOUGHT,
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


@pytest.fixture(autouse=True)
def script(thinker: Deployment) -> None:
    thinker.region.streams.clear()
    thinker.region.script = lambda submit: answer(SAID)


# --- Responses -----------------------------------------------------------------------------------


def test_a_response_has_a_reasoning_item_first(thinker: Deployment, openais: openai.OpenAI) -> None:
    client = openais
    told = client.responses.create(
        model=MODEL, input="2 + 2?", reasoning={"effort": "low", "summary": "auto"},
        max_output_tokens=100,
    )  # fmt: skip
    item = told.output[0]
    assert isinstance(item, ResponseReasoningItem)
    assert item.content is not None
    assert ([part.text for part in item.content], item.status) == ([THOUGHT], "completed")
    assert [part.text for part in item.summary] == [THOUGHT]
    assert item.encrypted_content
    assert told.output_text == TEXT
    assert told.usage is not None
    assert told.usage.output_tokens_details.reasoning_tokens == NUM_THOUGHT
    assert told.reasoning is not None
    assert (told.reasoning.effort, told.reasoning.summary) == ("low", "auto")
    known = limit(thinker)
    assert known is not None
    assert known.max_tokens == 20
    plain = client.responses.create(model=MODEL, input="2 + 2?").output[0]
    assert isinstance(plain, ResponseReasoningItem)
    assert plain.summary == []


@pytest.mark.parametrize("summary", [None, "detailed"])
def test_events_of_a_thought_come_in_upstreams_order(
    thinker: Deployment, summary: str | None
) -> None:
    thinker.region.script = lambda submit: answer(SAID, per_step=500)
    body = {"model": MODEL, "input": "2 + 2?", "stream": True, "reasoning": {"summary": summary}}
    reply = thinker.client.post(f"{base(thinker)}/responses", json=body)
    told = named_events(reply.text)
    assert [data["sequence_number"] for _, data in told] == list(range(len(told)))
    names = [name.removeprefix("response.") for name, _ in told]
    summed = summary is not None
    part = "reasoning_summary"
    assert names == [
        "created", "in_progress",
        "output_item.added", "content_part.added", *([f"{part}_part.added"] * summed),
        "reasoning_text.delta", *([f"{part}_text.delta"] * summed),
        "reasoning_text.done", "content_part.done",
        *([f"{part}_text.done", f"{part}_part.done"] * summed), "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    by_name = dict(told)
    assert by_name["response.reasoning_text.done"]["text"] == THOUGHT
    whole = by_name["response.completed"]["response"]
    items = [data["item"] for name, data in told if name == "response.output_item.done"]
    assert whole["output"] == items
    kinds = dict.fromkeys(["response.reasoning_text.delta", "response.output_text.delta"])
    assert [by_name[kind]["output_index"] for kind in kinds] == [0, 1]


def test_openais_own_stream_takes_them(thinker: Deployment, openais: openai.OpenAI) -> None:
    with openais.responses.stream(model=MODEL, input="2 + 2?") as stream:
        thought = "".join(
            event.delta for event in stream if event.type == "response.reasoning_text.delta"
        )
        whole = stream.get_final_response()
    assert (thought, whole.output_text) == (THOUGHT, TEXT)


def respond(thinker: Deployment, **body: Any) -> Any:
    return thinker.client.post(f"{base(thinker)}/responses", json={"model": MODEL, **body})


def test_reasoning_items_come_back_sealed_or_in_the_clear(thinker: Deployment) -> None:
    first = respond(thinker, input="2 + 2?", include=["reasoning.encrypted_content"])
    assert first.headers.get(HEADER) is None
    item, message = first.json()["output"]
    question = {"role": "user", "content": "2 + 2?"}
    for brought in (
        item,
        {"type": "reasoning", "id": "rs_1", "summary": [],
         "encrypted_content": item["encrypted_content"]},
        {"type": "reasoning", "summary": [], "content": item["content"]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": THOUGHT}]},
    ):  # fmt: skip
        reply = respond(thinker, input=[question, brought, message, question], store=False)
        assert (reply.status_code, reply.headers.get(HEADER)) == (200, None), reply.text
        assert prompt(thinker).startswith(f"{THOUGHT}<user>2 + 2?\n<assistant>{TEXT}\n")
    wrong = {**item, "encrypted_content": "x"}
    reply = respond(thinker, input=[question, wrong, message, question])
    assert reply.status_code == 400
    assert "input[1].encrypted_content: could not be verified" in reply.text


def test_a_thought_belongs_to_the_calls_that_follow_it(thinker: Deployment) -> None:
    items = [
        {"role": "user", "content": "2 + 2?"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "4"},
    ]
    assert respond(thinker, input=items, store=False).status_code == 200
    assert prompt(thinker).startswith("Hm.")


def test_a_conversation_remembers_its_thoughts(thinker: Deployment) -> None:
    first = respond(thinker, input="2 + 2?").json()
    again = respond(thinker, input="And 3 + 3?", previous_response_id=first["id"])
    assert again.status_code == 200
    assert prompt(thinker).startswith(f"{THOUGHT}<user>2 + 2?\n<assistant>{TEXT}\n<user>And 3")
    stored = thinker.client.get(f"{base(thinker)}/responses/{first['id']}").json()
    assert stored["output"] == first["output"]


def test_thoughts_are_items_of_what_a_response_was_made_of(thinker: Deployment) -> None:
    brought = {"type": "reasoning", "id": "rs_mine", "summary": []}
    first = respond(thinker, input=[
        {"role": "user", "id": "u1", "content": "1 + 1?"},
        brought | {"content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"role": "assistant", "id": "a1", "content": "Two."},
        brought | {"id": "rs_lost", "summary": [{"type": "summary_text", "text": "Not shown."}]},
        {"role": "user", "id": "u2", "content": "2 + 2?"},
    ]).json()  # fmt: skip
    second = respond(thinker, input="Sure?", previous_response_id=first["id"]).json()
    page = thinker.client.get(f"{base(thinker)}/responses/{second['id']}/input_items?order=asc")
    listed = page.json()["data"]
    thought, message = first["output"]
    assert [item["id"] for item in listed[:-1]] == [
        "u1", "rs_mine", "a1", "u2", thought["id"], message["id"],
    ]  # fmt: skip
    shown = {"type": "reasoning", "summary": [], "encrypted_content": None, "status": "completed"}
    said = [{"type": "reasoning_text", "text": "Hm."}]
    assert listed[1] == shown | {"id": "rs_mine", "content": said}
    assert listed[4] == shown | {"id": thought["id"], "content": thought["content"]}
    assert listed[5] == message


def test_a_thought_that_took_all_tokens_is_the_whole_answer(
    thinker: Deployment, anthropics: anthropic.Anthropic
) -> None:
    """No dialect adds an empty text to it, and neither has the conversation one."""
    thinker.region.script = lambda submit: answer("So I think on", reason="length")
    first = respond(thinker, input="2 + 2?").json()
    assert [item["type"] for item in first["output"]] == ["reasoning"]
    second = respond(thinker, input="And?", previous_response_id=first["id"]).json()
    page = thinker.client.get(f"{base(thinker)}/responses/{second['id']}/input_items?order=asc")
    assert [item["type"] for item in page.json()["data"]] == ["message", "reasoning", "message"]
    assert page.json()["data"][1]["id"] == first["output"][0]["id"]
    asked: Any = {"model": MODEL, "max_tokens": 2000, "messages": TURNS}
    asked["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    assert [block.type for block in anthropics.messages.create(**asked).content] == ["thinking"]
    with anthropics.messages.stream(**asked) as stream:
        whole = stream.get_final_message()
    assert ([block.type for block in whole.content], whole.stop_reason) == (
        ["thinking"], "max_tokens",
    )  # fmt: skip
