"""Where a batch's items are sent, and what of its submission's headers goes with each."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from starlette.requests import Request

# Where and how a request may be computed, which its tenant decided when it was submitted.
KEPT_HEADERS = ("x-skerry-residency", "x-skerry-mixed-builds", "x-session-affinity")


class Target(Struct, frozen=True):
    """A path of this edge, and headers."""

    path: str
    headers: dict[str, str] = {}


_decoder = msgspec.json.Decoder(Target)


def target_of(request: Request, path: str) -> str:
    """The target of items submitted by `request`, as the queue keeps it."""
    headers = {
        name: value for name in KEPT_HEADERS if (value := request.headers.get(name)) is not None
    }
    return msgspec.json.encode(Target(path, headers)).decode()


def decode_target(text: str) -> Target:
    return _decoder.decode(text)
