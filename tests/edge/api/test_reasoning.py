"""What a model thinks before it answers, in every dialect: requests, answers, and back in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic.types import Message
from openai.types.responses import ResponseReasoningItem
from tests.edge.api.test_messages import named_events
from tests.edge.support import (
    CHAT,
    MODEL,
    Deployment,
    answer,
    deployed,
    events,
)

from skerry_edge.api.fields import HEADER
from skerry_edge.api.thought_seal import ThoughtSeal
from skerry_edge.families.table import HARMONY
from skerry_edge.limits import Limits
from skerry_regions.wire.output_marks import ReasoningLimitSpec

THOUGHT, TEXT = "Two and two,\nso <4>.", "Four, I think."
SAID = f"{THOUGHT}\n</think>\n\n{TEXT}"  # the prompt has begun the thought
NUM_TOKENS = len(SAID.encode()) + 1
NUM_THOUGHT = len(f"{THOUGHT}\n</think>".encode())
TURNS: list[Any] = [{"role": "user", "content": "2 + 2?"}]
ENABLED = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("edge"), Limits(), thinks=True) as deployment:
        yield deployment


@pytest.fixture(autouse=True)
def script(thinker: Deployment) -> None:
    thinker.region.streams.clear()
    thinker.region.script = lambda submit: answer(SAID)


def base(thinker: Deployment) -> str:
    return thinker.chat_path.removesuffix("/chat/completions")


@pytest.fixture(scope="module")
def openais(thinker: Deployment) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{thinker.port}{base(thinker)}"
    with openai.OpenAI(api_key=thinker.token, base_url=url, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def anthropics(thinker: Deployment) -> Iterator[anthropic.Anthropic]:
    url = f"http://127.0.0.1:{thinker.port}"
    with anthropic.Anthropic(api_key=thinker.token, base_url=url, max_retries=0) as client:
        yield client


def prompt(thinker: Deployment) -> str:
    return bytes(thinker.region.submits[-1].prompt_ids).decode()


def chunks(reply: httpx.Response) -> list[Any]:
    *told, last = events(reply.text)
    assert last == "[DONE]"
    return told


def limit(thinker: Deployment) -> ReasoningLimitSpec | None:
    return thinker.region.submits[-1].reasoning


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


# --- how much is thought -------------------------------------------------------------------------


OFF = "<think>\n\n</think>\n\n"


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


def test_a_model_says_whether_it_reasons(thinker: Deployment) -> None:
    listed = thinker.client.get(f"{base(thinker)}/models/{MODEL}").json()
    assert listed["reasoning"] is True
    path = thinker.run_path.partition("/run/")[0] + "/models/search"
    [found] = [each for each in thinker.client.get(path).json()["result"] if each["name"] == MODEL]
    assert {"property_id": "reasoning", "value": "true"} in found["properties"]
