"""Events of a WebSocket: the streamed ones of a request over HTTP, one text each, and errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from skerry.errors import InternalError, InvalidInput, InvalidJSON, SkerryError
from skerry_edge.envelopes import encode, openai_error

LANE = re.compile(r"[A-Za-z0-9_.-]{1,256}")
CREATE, STEER = "response.create", "response.steer"
FRAMING = frozenset(("content-type", "cache-control", "x-accel-buffering", "content-length"))


class SentEvent(Struct):
    """What is looked at of an event before its turn."""

    type: str
    stream_id: Any = None
    previous_response_id: Any = None
    input: Raw = Raw(b"null")


class _Streamed(Struct):
    """An error in mid-stream, as it is sent over HTTP."""

    code: str
    message: str
    param: str | None
    sequence_number: int


class _Detail(Struct):
    type: str
    code: str
    message: str
    param: str | None = None


class _Refused(Struct):
    error: _Detail


_sent = msgspec.json.Decoder(SentEvent)
_streamed = msgspec.json.Decoder(_Streamed)
_refused = msgspec.json.Decoder(_Refused)


def read_event(text: bytes) -> SentEvent:
    """Return what a client has sent. Raises `InvalidJSON`, or `InvalidInput` for no event."""
    try:
        return _sent.decode(text)
    except msgspec.ValidationError:
        raise InvalidInput("Bad input: type: an event has one", param="type") from None
    except (msgspec.DecodeError, RecursionError):
        raise InvalidJSON("The message is not valid JSON.") from None


def events_in(part: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and data of the server-sent events of a stream's part; comments are left out."""
    for event in part.split(b"\n\n"):
        name, _, data = event.partition(b"\ndata: ")
        if data:
            yield name.removeprefix(b"event: "), data


def marked(data: bytes, lane: str, headers: Mapping[str, str] | None = None) -> bytes:
    """Return an event with its lane, and the headers that it has no other place for."""
    more: dict[str, Any] = {} if headers is None else {"headers": headers}
    if lane:
        more["stream_id"] = lane
    return data[:-1] + b"," + encode(more)[1:] if more else data


def told_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return those of an answer that say something of it, and not of its bytes."""
    return {name: value for name, value in headers.items() if name not in FRAMING}


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return the error event of a request that was refused with this answer over HTTP."""
    return _nested(status, _refused.decode(body).error, {"headers": told_headers(headers)})


def broken_off(data: bytes) -> bytes:
    """Return an error in mid-stream, as upstream has it over a WebSocket."""
    told = _streamed.decode(data)
    kind = SkerryError.by_code.get(told.code, InternalError)
    error = kind(told.message, param=told.param)
    return error_event(error, sequence_number=told.sequence_number)


def error_event(error: SkerryError, code: str | None = None, **more: Any) -> bytes:
    """Return an error of the connection itself, with a `code` that only WebSockets have."""
    detail = _refused.decode(openai_error(error, "")).error
    if code is not None:
        detail.code = code
    return _nested(error.http_status, detail, {}, more)


def steering_failed(event: SentEvent) -> bytes:
    """Return what an event gets that would have an answer take another way."""
    return encode(
        {
            "type": f"{STEER}.failed",
            "sequence_number": 0,
            "error": {
                "type": "invalid_request_error",
                "code": "steering_not_supported",
                "message": "Answers are not steered here; send the input when they have ended.",
            },
            "steer": {
                "input": event.input,
                "previous_response_id": event.previous_response_id,
            },
        }
    )


def _nested(
    status: int,
    detail: _Detail,
    inside: Mapping[str, Any],
    more: Mapping[str, Any] | None = None,
) -> bytes:
    """Return an error as the live service nests it, and beside that flat, as its SDK's type is."""
    fields = msgspec.to_builtins(detail)
    flat = {name: value for name, value in fields.items() if name != "type"}
    nested = {"type": "error", "status": status, "error": fields | inside}
    return encode(nested | flat | dict(more or {}))
