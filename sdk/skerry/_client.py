"""`AI` and `AsyncAI`: the same call, done by a blocking and by an asyncio HTTP client."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack, overload

import anyio
import httpx

from skerry._config import Settings, resolve
from skerry._exchange import Read, Send, Sleep, Step, Streamed, exchange, run_call
from skerry._results import Result
from skerry._retry import RetryPolicy
from skerry._stream import AsyncStream, BoundedBody, Stream
from skerry._version import __version__

DEFAULT_TIMEOUT = 300.0  # seconds; a platform's own deadline is about 240
CONNECT_TIMEOUT = 5.0  # seconds
LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=30.0)

Inputs = Mapping[str, Any] | bytes
"""What a model is given: a mapping that JSON can write, or a file's bytes (audio, images)."""

Reply = Result | Any
"""A `Result`, but a list where the model's answer is one, and bytes where it is binary."""


class CallOptions(TypedDict, total=False):
    """Keyword arguments of `run` beside `stream`. None means the client's own value."""

    session_affinity: str | None
    """Names a conversation, so that its next turn goes where its prompt is cached."""
    timeout: float | None
    """Seconds that each wait for bytes may take; not a bound on the whole call."""
    max_retries: int | None
    """Attempts after the first, for errors that a retry can help."""
    extra_headers: Mapping[str, str] | None


class _Client:
    """What both clients are: settings, patience, and how a call is made of them."""

    def __init__(
        self,
        base_url: str | None,
        account_id: str | None,
        api_token: str | None,
        timeout: float,
        max_retries: int,
    ) -> None:
        self._settings: Settings = resolve(
            base_url=base_url, account_id=account_id, api_token=api_token, environ=os.environ
        )
        self._timeout = _timeout(timeout)
        self._policy = RetryPolicy(max_retries=max_retries)

    @property
    def base_url(self) -> str:
        return self._settings.base_url

    @property
    def account_id(self) -> str:
        return self._settings.account_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r}, account_id={self.account_id!r})"

    def _exchange(
        self,
        model: str,
        inputs: Inputs,
        stream: bool,
        *,
        session_affinity: str | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
        extra_headers: Mapping[str, str] | None = None,
    ) -> Generator[Step, Any, Any]:
        headers = dict(extra_headers or {})
        if session_affinity is not None:
            headers["x-session-affinity"] = session_affinity
        call = run_call(
            self._settings,
            model,
            inputs,
            stream=stream,
            timeout=self._timeout if timeout is None else _timeout(timeout),
            headers=headers,
            user_agent=f"skerry-python/{__version__}",
        )
        policy = self._policy if max_retries is None else RetryPolicy(max_retries=max_retries)
        return exchange(call, base_url=self.base_url, policy=policy)


class AI(_Client):
    """A platform that runs models, called like Workers AI.

        ai = AI()
        ai.run("@cf/huggingfacetb/smollm2-135m-instruct", {"prompt": "The sea is"})["response"]

    Where it is and who asks come from the arguments, else from SKERRY_BASE_URL, SKERRY_ACCOUNT_ID
    and SKERRY_API_TOKEN, else from what `skerry up` wrote; `NotConfigured` says what is missing.
    Keeps connections open between calls; safe to share between threads; closed by `close()` or a
    `with` block.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        account_id: str | None = None,
        api_token: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        max_retries: int = 2,
        http_client: httpx.Client | None = None,
    ) -> None:
        """`http_client` replaces the one that would be made, and is then the caller's to close."""
        super().__init__(base_url, account_id, api_token, timeout, max_retries)
        self._owns_http = http_client is None
        self._http = http_client or httpx.Client(limits=LIMITS)

    @overload
    def run(
        self,
        model: str,
        inputs: Inputs,
        *,
        stream: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> Reply: ...

    @overload
    def run(
        self,
        model: str,
        inputs: Inputs,
        *,
        stream: Literal[True],
        **options: Unpack[CallOptions],
    ) -> Stream: ...

    @overload
    def run(
        self,
        model: str,
        inputs: Inputs,
        *,
        stream: bool,
        **options: Unpack[CallOptions],
    ) -> Stream | Reply: ...

    def run(
        self,
        model: str,
        inputs: Inputs,
        *,
        stream: bool = False,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Run a model: its result, or with `stream=True` a `Stream` of chunks.

        A binary reply is bytes whatever `stream` says; `{"stream": True}` among the inputs gives a
        `Stream` too. Options are `session_affinity`, `timeout`, `max_retries` and `extra_headers`,
        see `CallOptions`. Raises a `SkerryError`; one whose `retryable` is true was given
        `max_retries` more tries before.
        """
        outcome = self._drive(self._exchange(model, inputs, stream, **options))
        return Stream(outcome.response) if isinstance(outcome, Streamed) else outcome

    def close(self) -> None:
        """Close idle connections. Streams that are still open end with an error."""
        if self._owns_http:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _drive(self, steps: Generator[Step, Any, Any]) -> Any:
        try:
            step = next(steps)
            while True:
                try:
                    outcome = self._perform(step)
                except httpx.RequestError as exc:
                    step = steps.throw(exc)
                else:
                    step = steps.send(outcome)
        except StopIteration as end:
            return end.value

    def _perform(self, step: Step) -> Any:
        match step:
            case Send(request):
                return self._http.send(request, stream=True)
            case Read(response, max_bytes):
                body = BoundedBody(max_bytes)
                try:
                    for data in response.iter_bytes():
                        body.add(data)
                finally:
                    response.close()
                return body.take()
            case Sleep(seconds):
                time.sleep(seconds)


class AsyncAI(_Client):
    """`AI` for asyncio and trio: `await ai.run(…)`, `async for` over a stream, `async with`.

    A cancelled call or stream closes its connection, and the platform stops generating.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        account_id: str | None = None,
        api_token: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        max_retries: int = 2,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        """`http_client` replaces the one that would be made, and is then the caller's to close."""
        super().__init__(base_url, account_id, api_token, timeout, max_retries)
        self._owns_http = http_client is None
        self._http = http_client or httpx.AsyncClient(limits=LIMITS)

    @overload
    async def run(
        self,
        model: str,
        inputs: Inputs,
        *,
        stream: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> Reply: ...

    @overload
    async def run(
        self,
        model: str,
        inputs: Inputs,
        *,
        stream: Literal[True],
        **options: Unpack[CallOptions],
    ) -> AsyncStream: ...

    @overload
    async def run(
        self,
        model: str,
        inputs: Inputs,
        *,
        stream: bool,
        **options: Unpack[CallOptions],
    ) -> AsyncStream | Reply: ...

    async def run(
        self,
        model: str,
        inputs: Inputs,
        *,
        stream: bool = False,
        **options: Unpack[CallOptions],
    ) -> Any:
        """As `AI.run`, with an `AsyncStream` in place of a `Stream`."""
        outcome = await self._drive(self._exchange(model, inputs, stream, **options))
        return AsyncStream(outcome.response) if isinstance(outcome, Streamed) else outcome

    async def close(self) -> None:
        """Close idle connections. Streams that are still open end with an error."""
        if self._owns_http:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _drive(self, steps: Generator[Step, Any, Any]) -> Any:
        try:
            step = next(steps)
            while True:
                try:
                    outcome = await self._perform(step)
                except httpx.RequestError as exc:
                    step = steps.throw(exc)
                else:
                    step = steps.send(outcome)
        except StopIteration as end:
            return end.value

    async def _perform(self, step: Step) -> Any:
        match step:
            case Send(request):
                return await self._http.send(request, stream=True)
            case Read(response, max_bytes):
                body = BoundedBody(max_bytes)
                try:
                    async for data in response.aiter_bytes():
                        body.add(data)
                finally:
                    await response.aclose()
                return body.take()
            case Sleep(seconds):
                await anyio.sleep(seconds)


def _timeout(seconds: float) -> httpx.Timeout:
    """`seconds` for every wait, but connecting has a bound of its own."""
    if not seconds > 0:
        raise ValueError(f"timeout must be positive, got {seconds}")
    return httpx.Timeout(seconds, connect=min(seconds, CONNECT_TIMEOUT))
