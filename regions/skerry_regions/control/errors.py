"""What the control API refuses, and how it says so: `{"error": {"type", "message", "field"}}`."""

from __future__ import annotations

from typing import ClassVar, Self

import msgspec
from msgspec import Struct


class ErrorDetail(Struct, frozen=True):
    """`field` is the path of the value at fault in the request's body, such as `pools[1]`."""

    type: str
    message: str
    field: str | None = None


class ErrorBody(Struct, frozen=True):
    """The body of every refusal."""

    error: ErrorDetail


class ControlError(Exception):
    """A request that is refused. Subclasses say how; the message says why and what to do."""

    type: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field

    def within(self, path: str) -> Self:
        """Return the same error of what has the value at fault at `path`."""
        field = path if self.field is None else f"{path}.{self.field}"
        return type(self)(self.message, field=field)

    def body(self) -> bytes:
        """Return that of the answer, as JSON."""
        return msgspec.json.encode(ErrorBody(ErrorDetail(self.type, self.message, self.field)))


class Malformed(ControlError):
    """Not JSON, or headers or a query that cannot be read."""

    type, status = "malformed", 400


class Misdirected(ControlError):
    """A name that is none of the control plane's: what a page resolves to it, say."""

    type, status = "misdirected", 421


class Unauthorized(ControlError):
    """No token, or a wrong one."""

    type, status = "unauthorized", 401


class Forbidden(ControlError):
    """A token whose role, or whose own bounds, do not allow it."""

    type, status = "forbidden", 403


class Revoked(Forbidden):
    """A machine that is no longer wanted."""

    type = "revoked"


class UnknownResource(ControlError):
    """No such route or resource."""

    type, status = "not_found", 404


class HiddenResource(UnknownResource):
    """It exists, and the caller is not to know: another account's."""


class UnsupportedMethod(ControlError):
    """The route exists, the method does not."""

    type, status = "method_not_allowed", 405


class Conflict(ControlError):
    """It exists already, or something else still needs it."""

    type, status = "conflict", 409


class StaleEtag(ControlError):
    """It was changed since the caller read it."""

    type, status = "stale_etag", 412


class TooLarge(ControlError):
    """The body is larger than the API takes."""

    type, status = "too_large", 413


class Invalid(ControlError):
    """A field's value is missing or wrong; `field` names it."""

    type, status = "invalid", 422


class VersionMismatch(ControlError):
    """A machine that speaks none of our protocol versions."""

    type, status = "version_mismatch", 426


class Gone(ControlError):
    """What an earlier version served; the message says what is in its place."""

    type, status = "gone", 410


class Busy(ControlError):
    """The store is written by somebody else for too long: try again."""

    type, status = "unavailable", 503


class NotLeading(Busy):
    """Another of the platform's control planes leads: it takes what is to be written."""


ERRORS: tuple[type[ControlError], ...] = (
    Malformed, Unauthorized, Forbidden, UnknownResource, UnsupportedMethod, Conflict, StaleEtag,
    TooLarge, Invalid, Busy,
)  # fmt: skip
