"""Requests for Messages."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, Deployment

PATH = f"/client/v4/accounts/{ACCOUNT}/ai/v1/messages"
HI: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 50,
    "messages": [{"role": "user", "content": "hi"}],
}


def create(edge: Deployment, **body: Any) -> httpx.Response:
    return edge.client.post(PATH, json={**HI, **body})


def prompt(edge: Deployment) -> str:
    return bytes(edge.region.submits[-1].prompt_ids).decode()


def named_events(body: str) -> list[tuple[str, Any]]:
    """(event, data) of each event; both must agree on the type."""
    out = []
    for block in body.strip().split("\n\n"):
        event, data = block.split("\n")
        told = msgspec.json.decode(data.removeprefix("data: "))
        assert told["type"] == event.removeprefix("event: ")
        out.append((told["type"], told))
    return out


TOOL = {
    "name": "add",
    "description": "Add.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
