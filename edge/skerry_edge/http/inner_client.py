"""The client's side of requests that come over no connection of their own: of another edge, of a
batch, of a WebSocket's lane."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.types import Message, Receive, Scope

Fields = Sequence[tuple[bytes, bytes]]


def inner_scope(
    method: str, path: str, fields: Fields, *, raw_path: bytes, query: bytes = b""
) -> Scope:
    """Return the scope of a request over HTTP whose client has no address."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": [*fields],
        "client": None,
        "server": None,
    }


def sends(body: bytes, gone: asyncio.Event | None = None) -> Receive:
    """Return the `receive` of a client that sends one body, and stays until it is `gone`."""
    left = [body]

    async def receive() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        await (gone or asyncio.Event()).wait()  # without one until it is cancelled
        return {"type": "http.disconnect"}

    return receive


def headers_in(message: Message) -> dict[str, str]:
    """Return the headers that an answer starts with, their names in lower case."""
    fields: Fields = message["headers"]
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in fields}
