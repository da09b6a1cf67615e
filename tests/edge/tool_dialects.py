"""A tool offered in every dialect, and the answer read from it, streamed or not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.edge.engine_edge import ACCOUNT, DEFAULT, EngineEdge
from tests.edge.support import events

NAME, ABOUT = "add", "Add two numbers."
DIALECTS = ("native", "chat", "responses", "messages")


@dataclass(frozen=True)
class Said:
    """An answer in no dialect."""

    text: str
    calls: list[Any]  # arguments of those that are whole
    reason: str  # stop, length or calls
    tokens: int
    body: str = field(repr=False, default="")


def ask_with_tool(
    edge: EngineEdge,
    dialect: str,
    parameters: dict[str, Any],
    max_tokens: int,
    *,
    stream: bool = False,
    prompt: str = "What is 21 + 34?",
    **fields: Any,
) -> Said:
    """Offer a tool in a dialect, and read the answer."""
    flat = {"name": NAME, "description": ABOUT, "parameters": parameters}
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
            tool = {"name": NAME, "description": ABOUT, "input_schema": parameters}
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
            used = [each for each in blocks if each["type"] == "tool_use"]
            if got["stop_reason"] == "max_tokens" and used and used[-1]["input"] == {}:
                used.pop()  # it was cut
            calls = [each["input"] for each in used]
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


def _whole(arguments: Iterable[str]) -> list[Any]:
    found = []
    for each in arguments:
        try:
            found.append(json.loads(each))
        except json.JSONDecodeError:
            continue
    return found
