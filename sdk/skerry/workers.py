"""`env.AI` with the shape that Python Workers have, so that a Worker's code runs against Skerry.

    from skerry.workers import env

    out = await env.AI.run("@cf/huggingfacetb/smollm2-135m-instruct", {"prompt": "The sea is"})
    out["response"], out.response

Inputs and options are plain dicts with the binding's own names (`extraHeaders`, `gateway`). Results
are dicts with attributes, streams give bytes of events, and a failure is a `JsException` whose
message starts with the error's number. Where the platform is, `skerry.AI` explains.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from typing import Any, Final

import httpx

from skerry._async_client import AsyncAI
from skerry._calls import LIMITS, CallOptions
from skerry._exchange import Streamed
from skerry._gateway import Gateway
from skerry._replies import transport_error
from skerry._results import Result
from skerry.errors import ConnectionFailed, SkerryError

# The binding keeps these to itself; the others go into the request's own `options`.
_LOCAL: Final = {"extraHeaders", "gateway", "prefix", "queueRequest", "sessionOptions"}
_REFUSED: Final = {"returnRawResponse", "signal", "websocket"}
_GATEWAY: Final = {
    "id": "id",
    "skipCache": "skip_cache",
    "cacheTtl": "cache_ttl",
    "cacheKey": "cache_key",
    "metadata": "metadata",
    "collectLog": "collect_log",
    "eventId": "event_id",
}


class JsDict(Result):
    """A JavaScript object as Python Workers see it: `r["response"]` and `r.response`."""

    __slots__ = ()

    def to_py(self) -> dict[str, Any]:
        """Return the same in plain dicts and lists."""
        plain: dict[str, Any] = _objects_as(dict, self)
        return plain


class JsException(Exception):
    """What a Worker's code catches. `message` starts with the error's number: "5007: …"."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


class ReadableStream:
    """The bytes of a streamed answer: `async for`, or `getReader()` and its `read()`."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces = _pieces(response)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    def getReader(self) -> ReadableStream:
        return self

    async def read(self) -> JsDict:
        """Return `done` and `value`: the next bytes, or None at the end."""
        try:
            return JsDict(done=False, value=await anext(self._pieces))
        except StopAsyncIteration:
            return JsDict(done=True, value=None)

    def releaseLock(self) -> None:
        """Do nothing: readers are not exclusive here."""

    async def cancel(self, reason: object = None) -> None:
        """Stop reading; the platform stops generating. Idempotent."""
        await self._response.aclose()


class Ai:
    """The binding. Its `last…` properties describe the call that ended last."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        account_id: str | None = None,
        api_token: str | None = None,
    ) -> None:
        self._settings = (base_url, account_id, api_token)
        self._client: AsyncAI | None = None
        self._http: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.lastRequestId: str | None = None
        self.aiGatewayLogId: str | None = None
        self.lastRequestHttpStatusCode: int | None = None
        self.lastRequestInternalStatusCode: int | None = None

    async def run(
        self,
        model: str,
        inputs: Mapping[str, Any] | bytes | None = None,
        options: Mapping[str, Any] | None = None,
        /,
        **trailing: Any,
    ) -> Any:
        """Run a model: a `JsDict`, a list of them, or for `stream` a `ReadableStream`.

        Keyword arguments are the last object, as in JavaScript: options, or the inputs where there
        are none. Raises JsException, and TypeError for what the binding does not take.
        """
        if trailing and options is not None:
            raise TypeError("run() takes options as a dict or as keywords, not both")
        if inputs is None:
            inputs, trailing = trailing, {}
        given = dict(options or trailing)
        if refused := sorted(_REFUSED & given.keys()):
            raise TypeError(f"run() does not take {', '.join(refused)} here")
        body_options = {key: value for key, value in given.items() if key not in _LOCAL}
        if body_options and not isinstance(inputs, bytes):
            inputs = {**inputs, "options": body_options}
        query = {"queueRequest": "true"} if given.get("queueRequest") else {}
        self.lastRequestInternalStatusCode = None
        client = self._on_this_loop()
        try:
            steps = client._run(model, inputs, False, _call_options(given), query=query)
            outcome = await client._drive(steps)
        except SkerryError as error:
            raise self._raised(error) from error
        if isinstance(outcome, Streamed):
            return ReadableStream(outcome.response)
        return _objects_as(JsDict, outcome)

    async def models(self, params: Mapping[str, Any] | None = None) -> list[JsDict]:
        """Return the models that are served; `search`, `task` and `author` leave some."""
        filters = {key: (params or {}).get(key) for key in ("search", "task", "author")}
        try:
            models = await self._on_this_loop().models(**filters)
        except SkerryError as error:
            raise self._raised(error) from error
        return [_objects_as(JsDict, each) for each in models]

    async def close(self) -> None:
        """Close idle connections. A Worker has no such call, and needs none."""
        if self._http is not None:
            await self._http.aclose()
        self._client = self._http = self._loop = None

    def _on_this_loop(self) -> AsyncAI:
        """Return a client for the running loop: connections do not move from one loop to
        another."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._http = httpx.AsyncClient(limits=LIMITS, event_hooks={"response": [self._note]})
            base_url, account_id, api_token = self._settings
            self._client = AsyncAI(
                base_url=base_url,
                account_id=account_id,
                api_token=api_token,
                http_client=self._http,
            )
            self._loop = loop
        return self._client

    async def _note(self, response: httpx.Response) -> None:
        self.lastRequestId = response.headers.get("cf-ai-req-id")
        self.aiGatewayLogId = response.headers.get("cf-aig-log-id")
        self.lastRequestHttpStatusCode = response.status_code

    def _raised(self, error: SkerryError) -> JsException:
        if isinstance(error, ConnectionFailed):
            return JsException("AiInternalError", error.message)
        self.lastRequestInternalStatusCode = error.number
        return JsException("InferenceUpstreamError", f"{error.number}: {error.message}")


class Env:
    """The bindings of a Worker: its `AI`, made when it is first requested."""

    @cached_property
    def AI(self) -> Ai:
        return Ai()


env = Env()


def _call_options(options: Mapping[str, Any]) -> CallOptions:
    """Return what of the binding's options goes into headers, and how often a call is tried."""
    gateway: Mapping[str, Any] = options.get("gateway") or {}
    if unknown := sorted(gateway.keys() - _GATEWAY.keys() - {"requestTimeoutMs", "retries"}):
        raise TypeError(f"gateway does not take {', '.join(unknown)} here")
    named = {_GATEWAY[key]: value for key, value in gateway.items() if key in _GATEWAY}
    if (patience := gateway.get("requestTimeoutMs")) is not None:
        named["request_timeout"] = patience / 1000
    call: CallOptions = {
        "extra_headers": {**Gateway(**named).headers(), **(options.get("extraHeaders") or {})}
    }
    if (attempts := (gateway.get("retries") or {}).get("maxAttempts")) is not None:
        call["max_retries"] = max(0, attempts - 1)
    return call


async def _pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for data in response.aiter_bytes():
            yield data
    except httpx.RequestError as error:
        raise JsException(
            "AiInternalError", transport_error(error, "the platform").message
        ) from error
    finally:
        await response.aclose()


def _objects_as(kind: type[dict[str, Any]], value: Any) -> Any:
    """Return the same with every object of this kind."""
    match value:
        case dict():
            return kind({key: _objects_as(kind, each) for key, each in value.items()})
        case list():
            return [_objects_as(kind, each) for each in value]
        case _:
            return value
