"""Answers of the servers, and the errors of those that refuse a request."""

from __future__ import annotations

import json
from enum import IntEnum
from typing import Any

from nats.aio.msg import Msg

from skerry.errors import Unavailable


class StateUnfit(Exception):
    """The servers were reached, and may not keep this state; the message says what to change."""


class StreamFull(Unavailable):
    """A stream has no room for another message."""


class ErrorCode(IntEnum):
    """Codes of nats-server's `errors.json` that are acted upon."""

    NO_SUITABLE_PEERS = 10005  # a cluster in its first second, too
    TEMPORARILY_UNAVAILABLE = 10008
    NO_MESSAGE = 10037
    NO_STREAM = 10059
    WRONG_LAST_SEQUENCE = 10071
    STORE_FAILED = 10077  # a bound of the stream: messages, bytes
    DUPLICATE_IN_PROCESS = 10158
    WRONG_LAST_SEQUENCE_NOW = 10164  # another write of the subject is under way


class JetStreamError(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})")
        self.code = code

    @property
    def is_passing(self) -> bool:
        """Return whether the same request may be answered in a moment."""
        return self.code in (
            ErrorCode.NO_SUITABLE_PEERS,
            ErrorCode.TEMPORARILY_UNAVAILABLE,
            ErrorCode.DUPLICATE_IN_PROCESS,
        )


def answered(message: Msg) -> dict[str, Any]:
    """Return an answer of JetStream. Raises `JetStreamError`, or `Unavailable` for what is none."""
    try:
        answer: dict[str, Any] = json.loads(message.data)
        error = answer.get("error")
    except (ValueError, AttributeError):
        raise Unavailable("NATS answers what is no JSON object.") from None
    if error is not None:
        raise JetStreamError(error.get("err_code", 0), error.get("description", "refused"))
    return answer
