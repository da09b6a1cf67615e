"""How a reply looks in each dialect: the Workers AI envelope, its binding, OpenAI's error object.

Upstream has two failure envelopes. Inference errors: keys `errors, success, result, messages`,
`result: {}`, message `AiError: … (<request id>)`. Errors of the API layer before it (routes,
credentials): `result, success, errors, messages`, `result: null`, plain message. Errors on `/ai/v1`
carry OpenAI's `error` object and the envelope's `errors` in one body, because clients read either.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response

from skerry.errors import (
    AuthenticationError,
    BodyTooLarge,
    CapacityError,
    InternalError,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    PermissionDenied,
    PromptTooLong,
    QuotaExceeded,
    RateLimited,
    RequestError,
    RequestTimeout,
    SkerryError,
    TaskNotSupported,
)
from skerry.wire import ApiMessage, BindingError
from skerry.wire.openai import OpenAIError, OpenAIErrorDetail

BINDING_PATH = "/run"
MODEL_HEADER = "cf-consn-model-id"  # of the binding
API_LAYER = (AuthenticationError, PermissionDenied, NotFound, MethodNotAllowed)
ROUTE_NOT_FOUND = ApiMessage("No route for that URI", 7000)  # follows every 7003

# By which Anthropic's tool runner knows to send the whole conversation each time.
NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}

Kinds = type[SkerryError] | tuple[type[SkerryError], ...]
ANTHROPIC_TYPES: tuple[tuple[Kinds, str], ...] = (  # the first that fits
    (AuthenticationError, "authentication_error"),
    (PermissionDenied, "permission_error"),
    ((NotFound, ModelNotFound), "not_found_error"),
    (BodyTooLarge, "request_too_large"),
    ((QuotaExceeded, RateLimited), "rate_limit_error"),
    (RequestTimeout, "timeout_error"),
    (CapacityError, "overloaded_error"),
    (RequestError, "invalid_request_error"),
    (SkerryError, "api_error"),
)

EncodeError = Callable[[SkerryError, str], bytes]
"""An error as a body of its dialect; the string is the request's id."""

encode = msgspec.json.Encoder().encode

logger = logging.getLogger(__name__)


class JSONBytes(Response):
    """A body that is JSON already. The content type has no charset: upstream's binding compares."""

    media_type = "application/json"


def envelope(result: bytes, messages: Sequence[ApiMessage] = ()) -> bytes:
    """Return the success envelope around an encoded result."""
    told = encode(messages)
    return b'{"result":' + result + b',"success":true,"errors":[],"messages":' + told + b"}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What differs between dialects that share an endpoint's work."""

    wrap: Callable[[bytes], bytes]  # an encoded result, as it is sent
    error_event: EncodeError  # of a stream
    tail: bool  # whether streams of chat models end in Workers AI's own usage event


def known_error(exc: Exception, request_id: str) -> SkerryError:
    """Return the error that a client gets: never an exception's text, but an id that finds it."""
    if isinstance(exc, SkerryError):
        return exc
    logger.error("request %s failed", request_id, exc_info=exc)
    return InternalError("Internal error; the request id finds it in the logs.")


def error_response(exc: SkerryError, encode: EncodeError, request_id: str) -> JSONBytes:
    """Return the HTTP answer for an error raised before the first byte."""
    is_openai = encode in (openai_error, anthropic_error)
    status = 400 if is_openai and isinstance(exc, PromptTooLong) else exc.http_status
    return JSONBytes(encode(exc, request_id), status, headers=retry_headers(exc))


def native_error(exc: SkerryError, request_id: str) -> bytes:
    """Return the Workers AI failure envelope, in upstream's key order for the kind of error."""
    if isinstance(exc, API_LAYER):
        errors = [ApiMessage(exc.message, exc.number)]
        if isinstance(exc, NotFound):
            errors.append(ROUTE_NOT_FOUND)
        return encode({"result": None, "success": False, "errors": errors, "messages": []})
    text = f"AiError: {exc.message} ({request_id})"
    errors = [ApiMessage(text, exc.number)]
    return encode({"errors": errors, "success": False, "result": {}, "messages": []})


def native_error_event(exc: SkerryError, request_id: str) -> bytes:
    """Return the failure envelope as an event of a stream."""
    return b"event: error\ndata: " + native_error(exc, request_id) + b"\n\n"


def binding_error(exc: SkerryError, request_id: str) -> bytes:
    """Return what a Worker's `env.AI` turns into an `InferenceUpstreamError`."""
    description = f"{exc.message} ({request_id})"
    return encode(BindingError(exc.number, exc.message, "AiError", description))


def openai_error_event(exc: SkerryError, request_id: str) -> bytes:
    """Encode OpenAI's error object as an event of a stream."""
    return b"data: " + openai_error(exc, request_id) + b"\n\n"


def openai_error(exc: SkerryError, request_id: str) -> bytes:
    """Encode OpenAI's error object and the envelope's `errors` in one body."""
    detail = OpenAIErrorDetail(exc.message, _openai_type(exc), exc.code, exc.param)
    return encode(OpenAIError(detail, [ApiMessage(exc.message, exc.number)]))


def anthropic_error(exc: SkerryError, request_id: str) -> bytes:
    """Encode Anthropic's error object and the envelope's `errors` in one body."""
    detail: dict[str, Any] = {"type": _anthropic_type(exc), "message": exc.message}
    if isinstance(exc, TaskNotSupported) and exc.param == "thread":
        detail["details"] = NO_THREADS
    return encode(
        {
            "type": "error",
            "error": detail,
            "request_id": request_id,
            "errors": [ApiMessage(exc.message, exc.number)],
            "success": False,
        }
    )


def retry_headers(exc: SkerryError) -> dict[str, str]:
    """Return headers by which a client's retry loop knows when to come back, or not to."""
    headers = {}
    if isinstance(exc, CapacityError | QuotaExceeded):
        if exc.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(exc.retry_after)))
        if not exc.retryable:
            headers["x-should-retry"] = "false"
    return headers


def _openai_type(exc: SkerryError) -> str:
    if isinstance(exc, AuthenticationError):
        return "authentication_error"
    if isinstance(exc, PermissionDenied):
        return "permission_error"
    if isinstance(exc, QuotaExceeded):
        return exc.code
    if exc.http_status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if isinstance(exc, RequestError) else "server_error"


def _anthropic_type(exc: SkerryError) -> str:
    return next(name for kinds, name in ANTHROPIC_TYPES if isinstance(exc, kinds))


def _bare(result: bytes) -> bytes:
    return result


REST = Dialect(wrap=envelope, error_event=native_error_event, tail=True)
BINDING = Dialect(wrap=_bare, error_event=native_error_event, tail=True)
OPENAI = Dialect(wrap=_bare, error_event=openai_error_event, tail=False)


def page_info(count: int, page: int, per_page: int, total: int) -> dict[str, Any]:
    """Return `result_info` of a listed page."""
    return {"count": count, "page": page, "per_page": per_page, "total_count": total}
