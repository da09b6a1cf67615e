"""Shapes of answers, as they were recorded."""

from __future__ import annotations

import json
from typing import Any

MODEL = "@test/vendor/native"  # that most calls name
REQUEST_ID = "7f1c1d1e-0000-4000-8000-000000000001"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))

USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 3,
    "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 0},
}
NATIVE = {"response": "the sea", "tool_calls": [], "usage": USAGE}
NATIVE_EVENTS = [
    {"response": "the", "tool_calls": [], "p": "abdefghij"},
    {"tool_calls": [], "p": "ab"},
    {"response": " sea", "p": "abc"},
    {"response": 7},
    {"response": "", "usage": USAGE},
]
CHAT_EVENTS = [
    {
        "id": "id-1",
        "object": "chat.completion.chunk",
        "created": 1786911858,
        "model": "@test/chat",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
        "p": "abc",
    },
    {"id": "id-1", "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]},
    {"id": "id-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"id": "id-1", "choices": [], "usage": USAGE},
    {"response": "", "usage": USAGE},
]
MODELS = [{"name": f"@test/vendor/m{n}", "description": "", "properties": []} for n in range(3)]
LABELS = [{"label": "NEGATIVE", "score": 0.1}, {"label": "POSITIVE", "score": 0.9}]


def envelope(result: Any) -> dict[str, Any]:
    return {"result": result, "success": True, "errors": [], "messages": []}


def failure(code: int, message: str) -> dict[str, Any]:
    return {
        "errors": [{"message": message, "code": code}],
        "success": False,
        "result": {},
        "messages": [],
    }


def sse(events: list[dict[str, Any]], *, done: bool = True) -> str:
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return text + ("data: [DONE]\n\n" if done else "")
