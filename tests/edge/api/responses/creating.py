"""Requests for Responses."""

from __future__ import annotations

from typing import Any

import httpx
from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, Deployment

PATH = f"/client/v4/accounts/{ACCOUNT}/ai/v1/responses"


def create(edge: Deployment, **body: Any) -> httpx.Response:
    return edge.client.post(PATH, json={"model": MODEL, "input": "hi", **body})


def prompt(edge: Deployment) -> str:
    return bytes(edge.region.submits[-1].prompt_ids).decode()


TOOL = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


def assert_refused(reply: httpx.Response, param: str) -> None:
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
