"""Refusals of connections, as answers that both dialects' clients can read."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from skerry.errors import InternalError


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of a connection. `number` is the code of the Workers AI dialect."""

    status: int
    number: int
    message: str


FAILED = Refusal(InternalError.status, InternalError.number, "Internal error.")
TOO_SLOW_HEADER = Refusal(408, 3007, "The request header did not arrive in time.")
TOO_SLOW_BODY = Refusal(408, 3007, "The request body did not arrive in time.")
TOO_MANY_CONNECTIONS = Refusal(503, 3040, "Too many connections; try again shortly.")
# Before an idle connection is closed: a request that crosses it on the way was not looked at, and
# may be sent again on another connection (RFC 9110, 15.5.9).
CLOSED_IDLE = Refusal(408, 3007, "The connection was idle and is closed; nothing was done.")


def malformed(message: str) -> Refusal:
    return Refusal(400, 3003, message)


def body_too_large(limit: int) -> Refusal:
    return Refusal(413, 3006, f"The request body exceeds {limit} bytes.")


def refusal_response(refusal: Refusal) -> bytes:
    """Return a whole HTTP/1.1 response."""
    body = msgspec.json.encode(
        {
            "errors": [{"message": refusal.message, "code": refusal.number}],
            "success": False,
            "result": None,
            "messages": [],
            "error": {
                "message": refusal.message,
                "type": "invalid_request_error" if refusal.status < 500 else "server_error",
                "code": str(refusal.number),
                "param": None,
            },
        }
    )
    retry = "retry-after: 1\r\n" if refusal.status == 503 else ""
    head = (
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"{retry}connection: close\r\n\r\n"
    )
    return head.encode() + body
