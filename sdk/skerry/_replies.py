"""What a reply means: a result out of its envelope, or the error in it. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from skerry import errors
from skerry._results import Result, decode_json, is_json, media_type
from skerry._retry import retry_after, should_retry
from skerry.errors import SkerryError
from skerry.tasks import typed

MAX_MESSAGE = 2000  # characters of a raw error body that are shown
FAILURE_KEYS = frozenset(("success", "error", "errors"))  # without any of these nothing failed

# Numbers of the Workers AI table that have no class of their own.
_NUMBERS: dict[int, type[SkerryError]] = {
    3036: errors.QuotaExceeded,
    3042: errors.ModelNotFound,
    3007: errors.RequestTimeout,
    3008: errors.RequestTimeout,
}

_STATUSES: dict[int, type[SkerryError]] = {
    401: errors.AuthenticationError,
    403: errors.PermissionDenied,
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    408: errors.RequestTimeout,
    413: errors.BodyTooLarge,
    422: errors.InvalidInput,
    429: errors.Overloaded,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}


def request_id(headers: Mapping[str, str]) -> str | None:
    return headers.get("cf-ai-req-id") or headers.get("x-request-id") or headers.get("cf-ray")


def result_from(headers: Mapping[str, str], body: bytes) -> Any:
    """Return what a successful reply holds: JSON without its envelope, anything else as bytes.

    Raises the envelope's error when it says `success: false` in spite of the status.
    """
    if not is_json(media_type(headers)):
        return body
    content = decode_json(body)
    if isinstance(content, Result):
        raise_if_failed(content, request_id(headers))
        if "result" in content and "success" in content:
            content = content["result"]
    return typed(content)


def raise_if_failed(content: Result, request: str | None) -> None:
    """Raise the error that a 200 reply or an event carries in its body, if it carries one."""
    success = content.get("success")
    if success is False or (success is None and (content.get("error") or content.get("errors"))):
        raise error_from_content(content, request=request)


def error_from(status: int, headers: Mapping[str, str], body: bytes, now: float) -> SkerryError:
    """Return the error that a reply outside 2xx stands for; `now` (Unix seconds) is for
    HTTP dates."""
    content: Any = None
    if is_json(media_type(headers)):
        try:
            content = decode_json(body)
        except SkerryError:
            content = None
    if not isinstance(content, Result):
        text = body[: 4 * MAX_MESSAGE].decode("utf-8", "replace").strip()[:MAX_MESSAGE]
        content = Result(error=text) if text else Result()
    return error_from_content(
        content,
        status=status,
        request=request_id(headers),
        wait=retry_after(headers, now),
        retryable=should_retry(headers),
    )


def error_from_content(
    content: Result,
    *,
    status: int | None = None,
    request: str | None = None,
    wait: float | None = None,
    retryable: bool | None = None,
) -> SkerryError:
    """Return the error of `errors[0]`, of an OpenAI-style `error`, or of an event's own fields.

    A known name decides its class, else a known number, else the HTTP status.
    """
    number, message = _envelope_error(content)
    name, detail, param = _named_error(content)
    kind = (
        SkerryError.by_code.get(name or "")
        or (_class_of_number(number) if number else None)
        or _class_of_status(status)
    )
    return kind(
        _clean(detail or message or f"The platform answered HTTP {status} and no more.", request),
        param=param,
        retry_after=wait if wait is not None else _seconds(content.get("retry_after")),
        request_id=request,
        http_status=status,
        number=number,
        retryable=retryable,
    )


def transport_error(exc: httpx.RequestError, base_url: str) -> SkerryError:
    """Return what a failed exchange with `base_url` means to the caller."""
    if isinstance(exc, httpx.LocalProtocolError):  # h11 quotes the header, which may be a secret
        return errors.InvalidInput("A header's name or value is not valid HTTP.")
    if isinstance(exc, httpx.ReadTimeout | httpx.WriteTimeout):
        # The caller's patience is used up: waiting for as long again is not ours to decide.
        return errors.RequestTimeout(
            f"{base_url} did not answer in time; pass a longer `timeout`.",
            http_status=0,
            number=0,
            retryable=False,
        )
    what = "Cannot reach" if isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout) else "Lost"
    reason = str(exc) or type(exc).__name__
    return errors.ConnectionFailed(f"{what} {base_url}: {reason}")


def _envelope_error(content: Result) -> tuple[int | None, str | None]:
    """Return `errors[0]` of the native envelope, or an event's own `code` and `message`."""
    errors_field: Any = content.get("errors")
    listed = isinstance(errors_field, list) and errors_field and isinstance(errors_field[0], Result)
    source: Result = errors_field[0] if listed else content
    number, message = source.get("code"), source.get("message")
    return (
        number if isinstance(number, int) and not isinstance(number, bool) else None,
        message if isinstance(message, str) else None,
    )


def _named_error(content: Result) -> tuple[str | None, str | None, str | None]:
    """Name, message and parameter of an OpenAI-style `error`, object or plain text."""
    error = content.get("error")
    if isinstance(error, str):
        return None, error, None
    source = error if isinstance(error, Result) else content
    name, message, param = (
        value if isinstance(value, str) else None
        for value in (source.get("code"), source.get("message"), source.get("param"))
    )
    return name, message, param


def _class_of_number(number: int) -> type[SkerryError] | None:
    return SkerryError.by_number.get(number) or _NUMBERS.get(number)


def _class_of_status(status: int | None) -> type[SkerryError]:
    if status in _STATUSES:
        return _STATUSES[status]
    return errors.RequestError if status is not None and status < 500 else errors.InternalError


def _clean(message: str, request: str | None) -> str:
    """Return it without the dialect's `AiError: ` in front (once or twice) and request id at the
    end."""
    while message.startswith("AiError: "):
        message = message.removeprefix("AiError: ")
    return message.removesuffix(f" ({request})")


def _seconds(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 <= value < float("inf") else None
