"""One call's life without I/O: what to send, when to try again, what comes back.

`exchange` is a generator that yields what it needs done (`Send`, `Read`, `Sleep`) and is sent what
came of it, so that the blocking and the asyncio client differ only in how they do those three.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from skerry._config import Settings
from skerry._replies import error_from, result_from, transport_error
from skerry._retry import RetryPolicy, Rng, next_delay
from skerry._stream import can_stream
from skerry._version import __version__
from skerry.errors import InvalidInput, SkerryError

MAX_MODEL_LENGTH = 512  # characters
TIMEOUT_HEADER = "cf-aig-request-timeout"  # milliseconds until an answer begins
REDIRECT = 307
HOPS = "x-skerry-hops"  # of an edge's redirect to another one
MAX_ERROR_BYTES = 1 << 20  # of a reply outside 2xx


@dataclass(frozen=True, slots=True)
class Send:
    """Send the request; answer with the `httpx.Response`, its body unread."""

    request: httpx.Request


@dataclass(frozen=True, slots=True)
class Read:
    """Read the body to its end and release the connection; answer with the bytes."""

    response: httpx.Response
    max_bytes: int | None = None  # None: `BoundedBody`'s own bound


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


Step = Send | Read | Sleep


@dataclass(frozen=True, slots=True)
class Streamed:
    """The reply is a stream; its response is open and belongs to whoever receives this."""

    response: httpx.Response


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """One HTTP request, built again for each attempt."""

    url: str
    headers: Mapping[str, str] = field(repr=False)  # the API token among them
    timeout: httpx.Timeout = field(repr=False)
    method: str = "POST"
    content: bytes = b""
    stream: bool = False

    def request(self) -> httpx.Request:
        """Raises `InvalidInput` for a header that cannot be sent."""
        extensions = {"timeout": self.timeout.as_dict()}
        try:
            return httpx.Request(
                self.method,
                self.url,
                headers=dict(self.headers),
                content=self.content or None,
                extensions=extensions,
            )
        except UnicodeEncodeError as exc:
            raise InvalidInput("A header holds characters beyond ASCII.") from exc


def run_call(
    settings: Settings,
    model: str,
    inputs: Mapping[str, Any] | bytes,
    *,
    stream: bool,
    timeout: httpx.Timeout,
    headers: Mapping[str, str],
    query: Mapping[str, str],
) -> HttpCall:
    """Return the call of `/ai/run/{model}`. Raises `InvalidInput` for what cannot be sent."""
    content, content_type = encode_inputs(inputs, stream=stream)
    # Proxies hold compressed bytes back until they have enough of them.
    encoding = "identity" if stream else "gzip, deflate"
    own = {"content-type": content_type, "accept-encoding": encoding}
    if not stream and timeout.read is not None:  # the platform need not work for longer
        own[TIMEOUT_HEADER] = str(max(1, math.floor(timeout.read * 1000)))
    return HttpCall(
        url=_url(settings, f"/ai/run/{model_path(model)}", query),
        headers=_headers(settings, own, headers),
        content=content,
        stream=stream,
        timeout=timeout,
    )


def get_call(
    settings: Settings,
    path: str,
    query: Mapping[str, str],
    *,
    timeout: httpx.Timeout,
    headers: Mapping[str, str],
) -> HttpCall:
    """Return a GET below the account, such as `/ai/models/search`."""
    return HttpCall(
        method="GET",
        url=_url(settings, path, query),
        headers=_headers(settings, {}, headers),
        timeout=timeout,
    )


def _url(settings: Settings, path: str, query: Mapping[str, str]) -> str:
    return f"{settings.account_url}{path}" + (f"?{urlencode(query)}" if query else "")


def _headers(
    settings: Settings, own: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """Return headers of every call, then of this kind of call, then what the caller gave."""
    return {
        "authorization": f"Bearer {settings.api_token}",
        "user-agent": f"skerry-python/{__version__}",
        **own,
        **{name.lower(): value for name, value in given.items()},
    }


def encode_inputs(inputs: Mapping[str, Any] | bytes, *, stream: bool) -> tuple[bytes, str]:
    """Return the request's body and content type: JSON, or bytes as they are."""
    if isinstance(inputs, bytes):
        return inputs, "application/octet-stream"
    body = {**inputs, "stream": True} if stream else dict(inputs)
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8"), "application/json"
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidInput(f"The inputs cannot be written as JSON: {exc}") from exc


def model_path(model: str) -> str:
    """Return the model id as it stands in a path: slashes raw, everything unusual escaped."""
    if any(part in ("", ".", "..") for part in model.split("/")):
        raise InvalidInput(f"{model[:100]!r} is not a model id", param="model")
    if len(model) > MAX_MODEL_LENGTH:
        raise InvalidInput(
            f"A model id has at most {MAX_MODEL_LENGTH} characters, this one {len(model)}",
            param="model",
        )
    return quote(model, safe="/@:")


def _elsewhere(call: HttpCall, response: httpx.Response) -> HttpCall | None:
    """Return the same call to the edge that this one names, token and all: the platform's own word,
    once for each attempt, and never from TLS to the clear."""
    if response.status_code != REDIRECT or HOPS not in response.headers:
        return None
    location = response.headers.get("location", "")
    scheme = call.url.partition("://")[0]
    if not location.startswith(("https://", f"{scheme}://")):
        return None
    return replace(call, url=location)


def exchange(
    call: HttpCall, *, base_url: str, policy: RetryPolicy, rng: Rng = random.random
) -> Generator[Step, Any, Any]:
    """Try until the call succeeds or trying again cannot help.

    Returns a `Streamed`, or the result out of its envelope. Throw `httpx.RequestError` into it when
    a step fails so. Raises a `SkerryError`.
    """
    attempt = 0
    while True:
        try:
            response: httpx.Response = yield Send(call.request())
            if (elsewhere := _elsewhere(call, response)) is not None:
                yield Read(response, MAX_ERROR_BYTES)
                response = yield Send(elsewhere.request())
            if response.is_success and can_stream(response.headers, asked=call.stream):
                return Streamed(response)
            if response.is_success:
                return result_from(response.headers, (yield Read(response)))
            body: bytes = yield Read(response, MAX_ERROR_BYTES)
            error = error_from(response.status_code, response.headers, body, time.time())
        except httpx.RequestError as exc:
            error = transport_error(exc, base_url)
            if not isinstance(exc, httpx.LocalProtocolError):  # whose text may hold a secret
                error.__cause__ = exc
        except SkerryError as exc:
            error = exc
        delay = next_delay(policy, error, attempt, rng)
        if delay is None:
            raise error
        yield Sleep(delay)
        attempt += 1
