"""What the control plane's refusals are to people who run Terraform."""

from __future__ import annotations

import contextlib
import http.client
import re
from collections.abc import Container, Generator
from typing import Any

import msgspec

from skerry_terraform.kit.diagnostics import Path, ProviderError
from skerry_terraform.kit.planning import Object

_FIELD = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_]*)|\[(\d{1,9})\]")


class RequestRefused(Exception):
    """An answer that is not a success. `field` is the path of the value at fault."""

    def __init__(self, status: int, message: str, field: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.field = field


def error_of(refused: RequestRefused, kind: str, attributes: Container[object]) -> ProviderError:
    """Return it for people. The path is given if it is one of the `attributes`."""
    path = path_of(refused.field or "")
    where: Path = path if path and path[0] in attributes else ()
    match refused.status:
        case 401 | 403:
            return ProviderError(
                "The control plane refuses the token",
                f"{refused.message} Give the provider an API token of an operator.",
            )
        case 412:
            return ProviderError(
                f"The {kind} was changed since the plan was made",
                f"{refused.message}. Plan again.",
            )
        case 422:
            what = f"Invalid value for {path[0]}" if where else f"The {kind} is refused"
            return ProviderError(what, refused.message, where)
        case _:
            return ProviderError(f"The {kind} is refused", refused.message, where)


@contextlib.contextmanager
def explained(kind: str, attributes: Container[object]) -> Generator[None]:
    """Raise for people what the control plane refuses: see `error_of`."""
    try:
        yield
    except RequestRefused as refused:
        raise error_of(refused, kind, attributes) from None


def path_of(field: str) -> Path:
    """Return `pools[1]`, as the control plane names a field; empty for what cannot be read."""
    steps: list[str | int] = []
    at = 0
    while at < len(field):
        match = _FIELD.match(field, at)
        if match is None:
            return ()
        steps.append(match[1] if match[1] is not None else int(match[2]))
        at = match.end()
    return tuple(steps)


def refusal_of(status: int, body: Object) -> RequestRefused:
    error = body.get("error")
    if not isinstance(error, dict):
        return RequestRefused(status, f"it answered {status}", None)
    field = error.get("field")
    return RequestRefused(
        status, str(error.get("message")), field if isinstance(field, str) else None
    )


def decoded_body(data: bytes) -> Object:
    """Return the object of an answer.

    Raises HTTPException: a proxy in between may answer anything.
    """
    if not data:
        return {}
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise http.client.HTTPException("the answer is not of a control plane") from None


def unread_refusal(status: int, data: bytes) -> RequestRefused:
    """Return what an answer that is no success says, also where a proxy gave it."""
    try:
        return refusal_of(status, decoded_body(data))
    except http.client.HTTPException:
        return RequestRefused(status, f"it answered {status}", None)
