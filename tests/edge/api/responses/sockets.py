"""A client of other hands for Responses over WebSockets."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, PATIENCE, Deployment
from websockets.sync.client import connect
from websockets.sync.connection import Connection

PATH = f"/client/v4/accounts/{ACCOUNT}/ai/v1/responses"
ENDS = ("response.completed", "error")


@contextmanager
def opened(edge: Deployment, path: str = PATH, **headers: str) -> Generator[Connection]:
    given = {"authorization": f"Bearer {edge.token}"} | headers
    url = f"ws://127.0.0.1:{edge.port}{path}"
    with connect(url, additional_headers=given, proxy=None, close_timeout=PATIENCE) as socket:
        yield socket


def create(socket: Connection, **fields: Any) -> None:
    socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": "hi"} | fields))


def events(socket: Connection) -> list[dict[str, Any]]:
    """Read one answer, to its end."""
    told: list[dict[str, Any]] = []
    while not told or told[-1]["type"] not in ENDS:
        told.append(json.loads(socket.recv(timeout=PATIENCE)))
    return told


def ask(socket: Connection, **fields: Any) -> dict[str, Any]:
    """Return an answer's last event."""
    create(socket, **fields)
    return events(socket)[-1]
