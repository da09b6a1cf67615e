"""An item of a batch, run through the application as if its tenant had sent it now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Raw
from starlette.types import Message, Scope

from skerry.errors import BodyTooLarge
from skerry_edge.api.batch.target import Target, decode_target
from skerry_edge.api.batch.wire import Reply
from skerry_edge.envelopes import JSONBytes, encode, error_response
from skerry_edge.gate.inside import InsideCall, Serve
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.http.inner_client import headers_in, inner_scope, sends
from skerry_regions.operations import Errors
from skerry_regions.queue import Claim

MAX_ANSWER_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Answered:
    """What the application said."""

    reply: Reply
    headers: dict[str, str]


async def execute(
    serve: Serve, tokens: TokenStore, errors_of: Callable[[str], Errors], claim: Claim
) -> Answered:
    """Run an item in the name of the token that submitted it; a revoked one gets nothing more.

    Its request id is its own, the same at each attempt, so that a node takes a second attempt for
    the first one's successor, and the usage journal counts both once. `errors_of` gives the dialect
    of a path.
    """
    inside = InsideCall(
        request_id=f"{claim.batch}-{claim.index}",
        principal=tokens.principal(claim.token),
        priority="batch",
    )
    answer = _Answer()
    target = decode_target(claim.target)
    scope = _scope(target, len(claim.payload))
    await serve(scope, sends(claim.payload), answer.send, inside)
    body, status = bytes(answer.body), answer.status
    if answer.headers.get("content-type") != JSONBytes.media_type:
        body = encode(body.decode("utf-8", "replace"))
    if answer.is_too_large:
        error = BodyTooLarge(f"The answer exceeds {MAX_ANSWER_BYTES} bytes.")
        refused = error_response(error, errors_of(target.path).encode, inside.request_id)
        body, status = bytes(refused.body), refused.status_code
    return Answered(Reply(status, inside.request_id, Raw(body)), answer.headers)


def _scope(target: Target, size: int) -> Scope:
    headers = {"content-type": "application/json", "content-length": str(size), **target.headers}
    fields = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return inner_scope("POST", target.path, fields, raw_path=target.path.encode())


class _Answer:
    """What comes back, kept within a bound."""

    def __init__(self) -> None:
        self.status = 500
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.is_too_large = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = headers_in(message)
        elif message["type"] == "http.response.body":
            piece = message.get("body", b"")
            self.is_too_large |= len(self.body) + len(piece) > MAX_ANSWER_BYTES
            if not self.is_too_large:
                self.body += piece
