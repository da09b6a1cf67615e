"""What `AI` and `AsyncAI` share: settings, options, and how a call is made of them. No I/O here."""

from __future__ import annotations

import copy
import os
from collections.abc import Generator, Mapping
from typing import Any, Self, TypedDict

import httpx

from skerry._batch import Ask
from skerry._catalog import all_models
from skerry._config import Settings, resolve
from skerry._exchange import Step, exchange, get_call, run_call
from skerry._gateway import Gateway, MetadataValue
from skerry._results import Result
from skerry._retry import RetryPolicy
from skerry.tasks import (
    Model,
    ModelSchema,
)

DEFAULT_TIMEOUT = 300.0  # seconds; a platform's own deadline is about 240
CONNECT_TIMEOUT = 5.0  # seconds
LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=30.0)

NO_QUERY: Mapping[str, str] = {}
QUEUED = {"queueRequest": "true"}

Inputs = Mapping[str, Any] | bytes
"""What a model is given: a mapping that JSON can write, or a file's bytes (audio, images)."""


class FreeForm:
    """What only `Any` is for a type checker: nothing is made of it. A `dict[str, Any]` is taken for
    inputs of whatever task; a dict that is written out must be those of one that is known."""


FreeInputs = Mapping[str, FreeForm] | bytes
"""Inputs of a task that is not among those of `skerry.tasks`."""

Reply = Result | Any
"""A `Result`, but a list where the model's answer is one, and bytes where it is binary."""


class CallOptions(TypedDict, total=False):
    """Keyword arguments of `run` beside `stream`. None means the client's own value."""

    session_affinity: str | None
    """Names a conversation, so that its next turn goes where its prompt is cached."""
    idempotency_key: str | None
    """Names the request: sent again with it within a day, it gets the same answer, counted once."""
    timeout: float | None
    """Seconds that each wait for bytes may take; not a bound on the whole call."""
    max_retries: int | None
    """Attempts after the first, for errors that a retry can help."""
    extra_headers: Mapping[str, str] | None


class Client:
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
        self._owns_http = False
        self._gateway_headers: dict[str, str] = {}

    @property
    def base_url(self) -> str:
        return self._settings.base_url

    @property
    def account_id(self) -> str:
        return self._settings.account_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r}, account_id={self.account_id!r})"

    def gateway(
        self,
        id: str | None = None,
        *,
        skip_cache: bool | None = None,
        cache_ttl: int | None = None,
        cache_key: str | None = None,
        metadata: Mapping[str, MetadataValue] | None = None,
        collect_log: bool | None = None,
        event_id: str | None = None,
        request_timeout: float | None = None,
    ) -> Self:
        """Return this client with a gateway's options on each call, over the same connections.

        `cache_ttl` and `request_timeout` are in seconds; see `Gateway`. Raises `InvalidInput` for
        what no header can carry.
        """
        gateway = Gateway(
            id=id,
            skip_cache=skip_cache,
            cache_ttl=cache_ttl,
            cache_key=cache_key,
            metadata=metadata,
            collect_log=collect_log,
            event_id=event_id,
            request_timeout=request_timeout,
        )
        other = copy.copy(self)
        other._owns_http = False
        other._gateway_headers = gateway.headers()
        return other

    def _run(
        self,
        model: str,
        inputs: Inputs,
        stream: bool,
        options: CallOptions,
        query: Mapping[str, str] = NO_QUERY,
    ) -> Generator[Step, Any, Any]:
        timeout, headers, policy = self._prepared(**options)
        call = run_call(
            self._settings,
            model,
            inputs,
            stream=stream,
            timeout=timeout,
            headers=headers,
            query=query,
        )
        return exchange(call, base_url=self.base_url, policy=policy)

    def _queue(self, model: str, options: CallOptions) -> Ask:
        """Return how a model's queued requests are sent and fetched."""
        return lambda body, headers: self._run(
            model,
            body,
            False,
            {**options, "extra_headers": {**headers, **(options.get("extra_headers") or {})}},
            QUEUED,
        )

    def _get(
        self, path: str, query: Mapping[str, str], options: CallOptions
    ) -> Generator[Step, Any, Any]:
        timeout, headers, policy = self._prepared(**options)
        call = get_call(self._settings, path, query, timeout=timeout, headers=headers)
        return exchange(call, base_url=self.base_url, policy=policy)

    def _models(
        self, filters: dict[str, str | None], options: CallOptions
    ) -> Generator[Step, Any, list[Model]]:
        return all_models(lambda query: self._get("/ai/models/search", query, options), filters)

    def _schema(self, model: str, options: CallOptions) -> Generator[Step, Any, ModelSchema]:
        found = yield from self._get("/ai/models/schema", {"model": model}, options)
        return ModelSchema(found)

    def _usage(
        self, by: str, since: str, options: CallOptions
    ) -> Generator[Step, Any, list[Result]]:
        query = {"by": by, "since": since}
        found = yield from self._get("/ai/usage", query, options)
        return [Result(each) for each in found]

    def _prepared(
        self,
        *,
        session_affinity: str | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
        extra_headers: Mapping[str, str] | None = None,
    ) -> tuple[httpx.Timeout, dict[str, str], RetryPolicy]:
        """Return a call's options, with the client's own values where it names none."""
        headers = {**self._gateway_headers, **(extra_headers or {})}
        if session_affinity is not None:
            headers["x-session-affinity"] = session_affinity
        if idempotency_key is not None:
            headers["idempotency-key"] = idempotency_key
        return (
            self._timeout if timeout is None else _timeout(timeout),
            headers,
            self._policy if max_retries is None else RetryPolicy(max_retries=max_retries),
        )


def _timeout(seconds: float) -> httpx.Timeout:
    """Return `seconds` for every wait, but connecting has a bound of its own."""
    if not seconds > 0:
        raise ValueError(f"timeout must be positive, got {seconds}")
    return httpx.Timeout(seconds, connect=min(seconds, CONNECT_TIMEOUT))
