"""Calls of tools against `max_tokens`: a real engine and tokenizer, every dialect, streamed or not.

Whatever the limit, an answer is a whole call, or text without a trace of markup and `length`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jsonschema
import pytest
from tests.edge.engine_edge import ACCOUNT, DEFAULT, EngineEdge, engine_edge
from tests.edge.support import events

from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
NAME, ABOUT = "add", "Add two numbers."
LIMITS = (1, 2, 5, 6, 7, 8, 9, 10, 11, 20, 28, 31, 32, 33, 34, 35, 36, 38, 39, 60)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 21, "b": 34}}\n</tool_call>'
MARK = "<tool_call>"
DIALECTS = ("native", "chat", "responses", "messages")


@pytest.fixture(scope="module")
def edge(
    default_model: ModelFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineEdge]:
    with engine_edge(default_model, tmp_path_factory.mktemp("calls")) as edge:
        yield edge


@dataclass(frozen=True)
class Said:
    """An answer in no dialect."""

    text: str
    calls: list[Any]  # arguments of those that are whole
    reason: str  # stop, length or calls
    tokens: int
    body: str = field(repr=False, default="")


def ask(edge: EngineEdge, dialect: str, max_tokens: int, *, stream: bool, **fields: Any) -> Said:
    """Offer the tool in a dialect, and read the answer."""
    prompt = "What is 21 + 34?"
    flat = {"name": NAME, "description": ABOUT, "parameters": PARAMETERS}
    messages = [{"role": "user", "content": prompt}]
    base = f"/client/v4/accounts/{ACCOUNT}/ai"
    asked: dict[str, Any] = {"stream": stream, "max_tokens": max_tokens, "temperature": 0}
    match dialect:
        case "native":
            path, asked = f"{base}/run/{DEFAULT}", asked | {"messages": messages, "tools": [flat]}
        case "chat":
            path = f"{base}/v1/chat/completions"
            tools = [{"type": "function", "function": flat}]
            asked |= {"model": DEFAULT, "messages": messages, "tools": tools}
        case "responses":
            path = f"{base}/v1/responses"
            asked |= {"model": DEFAULT, "input": prompt, "tools": [{"type": "function", **flat}]}
            asked["max_output_tokens"] = asked.pop("max_tokens")
        case _:
            path = f"{base}/v1/messages"
            tool = {"name": NAME, "description": ABOUT, "input_schema": PARAMETERS}
            asked |= {"model": DEFAULT, "messages": messages, "tools": [tool]}
    answer = edge.client.post(path, json=asked | fields)
    assert answer.status_code == 200, answer.text
    return (_read_stream if stream else _read)(dialect, answer.text)


def _read(dialect: str, body: str) -> Said:
    got = json.loads(body)
    match dialect:
        case "native":
            got = got["result"]
            calls = [each["arguments"] for each in got.get("tool_calls", [])]
            tokens = got["usage"]["completion_tokens"]
            return Said(got["response"] or "", calls, "", tokens, body)
        case "chat":
            [choice] = got["choices"]
            functions = [each["function"] for each in choice["message"].get("tool_calls") or []]
            calls = _whole(each["arguments"] for each in functions)
            reason = "calls" if choice["finish_reason"] == "tool_calls" else choice["finish_reason"]
            tokens = got["usage"]["completion_tokens"]
            return Said(choice["message"]["content"] or "", calls, reason, tokens, body)
        case "responses":
            return _of_response(got, body)
        case _:
            blocks = got["content"]
            text = "".join(each["text"] for each in blocks if each["type"] == "text")
            calls = [each["input"] for each in blocks if each["type"] == "tool_use"]
            return Said(
                text, calls, _REASONS[got["stop_reason"]], got["usage"]["output_tokens"], body
            )


_REASONS = {"max_tokens": "length", "end_turn": "stop", "tool_use": "calls"}


def _of_response(got: dict[str, Any], body: str) -> Said:
    parts = [part for item in got["output"] for part in item.get("content", [])]
    calls = _whole(item["arguments"] for item in got["output"] if item["type"] == "function_call")
    reason = "length" if got["status"] == "incomplete" else "calls" if calls else "stop"
    text = "".join(part["text"] for part in parts)
    return Said(text, calls, reason, got["usage"]["output_tokens"], body)


def _read_stream(dialect: str, body: str) -> Said:
    parts = [each for each in events(body) if each != "[DONE]"]
    match dialect:
        case "native":
            text = "".join(each.get("response") or "" for each in parts)
            calls = [call["arguments"] for each in parts for call in each.get("tool_calls") or []]
            return Said(text, calls, "", parts[-1]["usage"]["completion_tokens"], body)
        case "chat":
            choices = [each["choices"][0] for each in parts if each["choices"]]
            text = "".join(each["delta"].get("content") or "" for each in choices)
            pieces: dict[int, str] = {}
            for each in choices:
                for call in each["delta"].get("tool_calls") or []:
                    more = call["function"].get("arguments", "")
                    pieces[call["index"]] = pieces.get(call["index"], "") + more
            reason = choices[-1]["finish_reason"]
            reason = "calls" if reason == "tool_calls" else reason
            return Said(text, _whole(pieces.values()), reason, 0, body)
        case "responses":
            deltas = [each for each in parts if each["type"] == "response.output_text.delta"]
            said = _of_response(parts[-1]["response"], body)
            assert "".join(each["delta"] for each in deltas) == said.text
            return said
        case _:
            deltas = [each["delta"] for each in parts if each["type"] == "content_block_delta"]
            text = "".join(each.get("text", "") for each in deltas)
            arguments = "".join(each.get("partial_json", "") for each in deltas)
            last = next(each for each in parts if each["type"] == "message_delta")
            reason = _REASONS[last["delta"]["stop_reason"]]
            calls = _whole([arguments]) if arguments else []
            return Said(text, calls, reason, last["usage"]["output_tokens"], body)


def _whole(arguments: Any) -> list[Any]:
    found = []
    for each in arguments:
        try:
            found.append(json.loads(each))
        except json.JSONDecodeError:
            continue
    return found


def check(said: Said, *, text: str, limit: int) -> None:
    """Either a call, and all of it, or text, none of it markup, that the limit ended."""
    assert "<tool" not in said.text
    assert not any(said.text.endswith(MARK[:size]) for size in range(1, len(MARK)))
    assert MARK not in said.body
    assert said.tokens <= limit
    for arguments in said.calls:
        jsonschema.validate(arguments, PARAMETERS)
    if not said.calls:
        assert said.text[: len(text)] == text[: len(said.text)]
        assert said.reason in ("", "length")  # natively there is none


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", ["", "Let me add.\n"])
def test_at_every_limit(edge: EngineEdge, dialect: str, text: str, stream: bool) -> None:
    """The model wants to call, and then to end: it calls where there is room, else it is cut."""
    edge.says(text + CALL)
    answers = {limit: ask(edge, dialect, limit, stream=stream) for limit in LIMITS}
    for limit, said in answers.items():
        check(said, text=text, limit=limit)
    assert not any(answers[limit].calls for limit in LIMITS if limit < 33)
    assert all(answers[limit].calls for limit in LIMITS if limit >= 38)
    assert answers[60].calls == [{"a": 21, "b": 34}]
    assert answers[60].reason in ("", "calls")


def test_what_is_no_call_ends_by_itself(edge: EngineEdge) -> None:
    edge.says("It is 55.")
    for limit in (9, 33, 60):
        said = ask(edge, "chat", limit, stream=False)
        assert (said.text, said.reason) == ("It is 55.", "stop")
    words = "See <toolbar>, <tool_calls>, a < b"
    edge.says(words + ".")
    assert ask(edge, "chat", 100, stream=False).text == words + "."
    edge.says(words + " <")  # may be half a mark, so that it is no end
    said = ask(edge, "chat", 100, stream=False)
    assert said.text.startswith(words + " <")
    assert len(said.text) > len(words) + 2


def test_a_call_after_a_call(edge: EngineEdge) -> None:
    """The second one does not fit: the first stands, and the reason says that there was more."""
    edge.says(f"{CALL}\n{CALL}")
    for limit in (60, 65, 80):
        said = ask(edge, "messages", limit, stream=False)
        assert said.calls == [{"a": 21, "b": 34}] * (1 + (limit == 80))
        assert said.reason == ("calls" if limit == 80 else "length")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_call_that_is_required_is_cut_where_none_fits(edge: EngineEdge, dialect: str) -> None:
    edge.says(CALL)
    choice: Any = {"type": "any"} if dialect == "messages" else "required"
    for stream in (False, True):
        for limit in (1, 3, 5, 6, 20):
            said = ask(edge, dialect, limit, stream=stream, tool_choice=choice)
            assert said.text == ""
            assert said.calls == [] or limit == 20  # Anthropic's has what there is of its input
            assert said.reason in ("", "length")
            assert MARK[:5] not in said.body
        [arguments] = ask(edge, dialect, 34, stream=stream, tool_choice=choice).calls
        jsonschema.validate(arguments, PARAMETERS)
