"""What a model thinks before it answers: chat completions and the native dialect."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
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
from tests.edge.support import CHAT, Deployment, events

from skerry_edge.api.fields import HEADER
from skerry_edge.families.table import HARMONY


@pytest.fixture(autouse=True)
def script(thinker: Deployment) -> None:
    thinker.region.streams.clear()
    thinker.region.script = lambda submit: answer(SAID)


def chunks(reply: httpx.Response) -> list[Any]:
    *told, last = events(reply.text)
    assert last == "[DONE]"
    return told


# --- chat completions ----------------------------------------------------------------------------


def test_a_chat_completion_has_the_thought_by_both_names(
    thinker: Deployment, openais: openai.OpenAI
) -> None:
    done = openais.chat.completions.create(model=MODEL, messages=TURNS)
    message = done.choices[0].message
    assert message.content == TEXT
    assert message.model_extra == {"reasoning_content": THOUGHT, "reasoning": THOUGHT}
    assert done.choices[0].finish_reason == "stop"
    assert done.usage is not None
    assert done.usage.completion_tokens == NUM_TOKENS
    assert done.usage.completion_tokens_details is not None
    assert done.usage.completion_tokens_details.reasoning_tokens == NUM_THOUGHT


@pytest.mark.parametrize("per_step", [1, 7, 500])
def test_a_stream_of_chunks(thinker: Deployment, openais: openai.OpenAI, per_step: int) -> None:
    thinker.region.script = lambda submit: answer(SAID, per_step=per_step)
    stream = openais.chat.completions.create(
        model=MODEL, messages=TURNS, stream=True, stream_options={"include_usage": True}
    )
    thought, text, reasoning_tokens = "", "", 0
    for chunk in stream:
        for choice in chunk.choices:
            extra = choice.delta.model_extra or {}
            assert extra.get("reasoning") == extra.get("reasoning_content")
            assert not (extra.get("reasoning") and text), "a thought after the answer"
            thought += extra.get("reasoning") or ""
            text += choice.delta.content or ""
        if chunk.usage is not None and chunk.usage.completion_tokens_details is not None:
            reasoning_tokens = chunk.usage.completion_tokens_details.reasoning_tokens or 0
    assert (thought, text, reasoning_tokens) == (THOUGHT, TEXT, NUM_THOUGHT)


def test_logprobs_are_of_all_tokens_whole_and_streamed(thinker: Deployment) -> None:
    whole = thinker.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in whole for byte in entry["bytes"]).decode() == SAID
    streamed = [
        entry
        for chunk in chunks(thinker.chat(logprobs=True, stream=True))
        for choice in chunk["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == whole


def test_a_thought_that_takes_all_tokens_leaves_an_empty_answer(thinker: Deployment) -> None:
    thinker.region.script = lambda submit: answer("So I think on", reason="length")
    choice = thinker.chat().json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning"] == "So I think on"


def test_a_stop_string_is_looked_for_in_the_answer_alone(thinker: Deployment) -> None:
    choice = thinker.chat(stop=["so", "I th"]).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == (THOUGHT, "Four, ")


def test_no_stop_string_is_looked_for_in_a_messages_header(
    thinker: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinker.edge.texts[MODEL], "family", HARMONY)
    thinker.region.script = lambda submit: answer(
        "<|channel|>analysis<|message|>So, final.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>The final word.<|return|>"
    )
    choice = thinker.chat(stop=["analysis", "final", "assistant"]).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    said = choice["message"]
    assert (said["reasoning"], said["content"]) == ("So, final.", "The ")


def test_calls_come_after_the_thought(thinker: Deployment) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    thinker.region.script = lambda submit: answer(f"{THOUGHT}\n</think>\n\n{call}")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    choice = thinker.chat(tools=[tool]).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning"] == THOUGHT
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'


@pytest.mark.parametrize(
    "brought",
    [
        {"reasoning_content": "Hm."},
        {"reasoning": "Hm."},
        {"reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]},
        {"reasoning_content": "Hm.", "reasoning": "Hm.", "reasoning_details": []},
    ],
    ids=lambda each: "+".join(each),
)
def test_earlier_thoughts_come_back_by_any_name(
    thinker: Deployment, brought: dict[str, Any]
) -> None:
    turns = [*TURNS, {"role": "assistant", "content": "4", **brought}, *TURNS]
    reply = thinker.chat(messages=turns)
    assert (reply.status_code, reply.headers.get(HEADER)) == (200, None)
    assert prompt(thinker).startswith("Hm.<user>2 + 2?\n<assistant>4\n")


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high"}, True),
        ({"enable_thinking": False}, False),
        ({"enable_thinking": False, "reasoning_effort": "high"}, False),
        ({"enable_thinking": True, "reasoning_effort": "none"}, True),
        ({"thinking_token_budget": 0}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("dialect", ["chat", "native", "native chat", "a native prompt"])
def test_thinking_is_switched_where_the_template_has_a_switch(
    thinker: Deployment, fields: dict[str, Any], thinks: bool, dialect: str
) -> None:
    thinker.region.script = lambda submit: answer(SAID if thinks else TEXT)
    match dialect:
        case "chat":
            reply = thinker.chat(**fields)
        case "native":
            reply = thinker.run(messages=TURNS, **fields)
        case "native chat":
            path = thinker.run_path.replace(MODEL, CHAT)
            reply = thinker.client.post(path, json={"messages": TURNS, **fields})
        case _:
            reply = thinker.run(prompt="2 + 2?", **fields)
    assert (reply.status_code, reply.headers.get(HEADER)) == (200, None), reply.text
    assert prompt(thinker).endswith("<think>\n") is thinks
    assert prompt(thinker).endswith(OFF) is not thinks


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({"thinking_token_budget": 7}, 7),
        ({"reasoning_effort": "minimal"}, 10),
        ({"reasoning_effort": "low"}, 20),
        ({"reasoning_effort": "medium"}, 50),
        ({"reasoning_effort": "high"}, 80),
        ({"reasoning_effort": "xhigh"}, 95),
        ({"reasoning_effort": "low", "thinking_token_budget": 3}, 3),
    ],
    ids=str,
)
def test_the_engine_is_told_how_many_tokens(
    thinker: Deployment, fields: dict[str, Any], max_tokens: int
) -> None:
    for reply in (
        thinker.chat(max_tokens=100, **fields),
        thinker.run(messages=TURNS, max_tokens=100, **fields),
    ):
        assert (reply.status_code, reply.headers.get(HEADER)) == (200, None)
        told = limit(thinker)
        assert told is not None
        assert (told.max_tokens, told.begins) == (max_tokens, ())
        assert bytes(told.end_ids).decode().strip() == "</think>"
        assert told.ends == ("</think>", "<tool_call>")


def test_without_a_word_of_it_nothing_is_limited(thinker: Deployment) -> None:
    for fields in ({}, {"reasoning_effort": "max"}, {"enable_thinking": True}):
        thinker.chat(**fields)
        assert limit(thinker) is None


def test_variables_of_the_template(thinker: Deployment) -> None:
    reply = thinker.chat(chat_template_kwargs={"style": "!", "messages": [], "other": 1})
    assert reply.headers[HEADER] == "chat_template_kwargs.messages, chat_template_kwargs.other"
    assert prompt(thinker).startswith("!<user>2") or prompt(thinker).startswith("!<user>hi")
    long = thinker.chat(chat_template_kwargs={"style": "x" * 5000})
    assert long.status_code == 400
    assert "chat_template_kwargs: more than 4096 characters" in long.text


def test_a_strict_request_is_refused_for_what_changes_nothing(thinker: Deployment) -> None:
    for reply in (
        thinker.chat(chat_template_kwargs={"other": 1}, options={"strict": True}),
        thinker.run(prompt="x", chat_template_kwargs={"other": 1}, options={"strict": True}),
    ):
        assert reply.status_code == 400
        assert "chat_template_kwargs.other: no such field here" in reply.text


# --- natively ------------------------------------------------------------------------------------


def test_native_answers_have_it_beside_the_response(thinker: Deployment) -> None:
    result = thinker.run(messages=TURNS).json()["result"]
    assert (result["response"], result["reasoning_content"]) == (TEXT, THOUGHT)
    assert result["usage"]["completion_tokens_details"] == {"reasoning_tokens": NUM_THOUGHT}
    told = chunks(thinker.run(messages=TURNS, stream=True))
    assert "".join(chunk.get("reasoning_content", "") for chunk in told) == THOUGHT
    assert "".join(chunk["response"] for chunk in told) == TEXT


def test_a_raw_prompt_is_continued_as_it_stands(thinker: Deployment) -> None:
    result = thinker.run(prompt="<think>", raw=True).json()["result"]
    assert result["response"] == SAID
    assert "reasoning_content" not in result
    named = thinker.run(prompt="<think>", raw=True, reasoning_effort="low", enable_thinking=True)
    assert named.headers[HEADER] == "enable_thinking, reasoning_effort"
    assert thinker.complete(prompt="<think>").json()["choices"][0]["text"] == SAID


def test_a_model_says_whether_it_reasons(thinker: Deployment) -> None:
    listed = thinker.client.get(f"{base(thinker)}/models/{MODEL}").json()
    assert listed["reasoning"] is True
    path = thinker.run_path.partition("/run/")[0] + "/models/search"
    [found] = [each for each in thinker.client.get(path).json()["result"] if each["name"] == MODEL]
    assert {"property_id": "reasoning", "value": "true"} in found["properties"]
