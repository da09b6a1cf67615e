"""Where a prompt was pinned, and what was said of it."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
from tests.edge.scripted_region import MODEL, answer, done
from tests.edge.support import ACCOUNT, Deployment

from skerry_regions.wire.pins import Pinned
from skerry_regions.wire.protocol import Done

V1 = f"/client/v4/accounts/{ACCOUNT}/ai/v1"


def text(said: str, control: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": said} | ({"cache_control": control} if control else {})


def create(edge: Deployment, **body: Any) -> httpx.Response:
    asked = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    return edge.client.post(f"{V1}/messages", json=asked | body)


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
