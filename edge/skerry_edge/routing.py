"""What every handler needs of its request: the edge, the caller, the time that is left."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request

from skerry.errors import InvalidInput, PermissionDenied
from skerry.wire import RunOptions
from skerry_edge import idempotency, tracing
from skerry_edge.auth import Principal, ScopeName
from skerry_edge.edge import Edge
from skerry_edge.generation import Call
from skerry_edge.hints import affinity_of, pin_of
from skerry_edge.inside import priority_of
from skerry_edge.response_cache import policy_of
from skerry_edge.sse import Attended, interruption
from skerry_edge.whole_numbers import whole_number

TIMEOUT_HEADER = "cf-aig-request-timeout"
MAX_PATIENCE_MS = 9_999_999_999

T = TypeVar("T")


def edge_of(request: Request) -> Edge:
    """The edge that `create_app` was given."""
    edge = request.app.state.edge
    if not isinstance(edge, Edge):
        raise TypeError("app.state.edge is not an Edge")
    return edge


def authorise(request: Request, needed: ScopeName) -> Principal:
    """The caller, if its token has the scope. Raises `PermissionDenied`."""
    principal = request.scope["principal"]
    if not isinstance(principal, Principal):
        raise TypeError("the route is not behind Authenticate")
    if needed not in principal.scopes:
        raise PermissionDenied(f"This API token lacks the scope '{needed}'.")
    return principal


def request_id(request: Request) -> str:
    return str(request.scope["request_id"])


def call_of(request: Request, principal: Principal, options: RunOptions | None = None) -> Call:
    """The call's identity, its deadline (counted from the request's header) and its wishes.

    The body must have been read. Raises `InvalidInput` for a wish that cannot be.
    """
    edge = edge_of(request)
    if (trace := tracing.current()) is not None:
        trace.add("receive", 0.0, trace.now())
        edge.traces.begin(trace, principal.account_id)
    started = float(request.scope["started"])
    elapsed = edge.clock() - started
    patience = _patience(request)
    return Call(
        request_id=request_id(request),
        tenant=principal.account_id,
        started=started,
        seconds_left=max(0.0, edge.limits.request_seconds - elapsed),
        residency=request.scope["residency"],
        explain=_explainer(request),
        priority=priority_of(request.scope),
        first_seconds=None if patience is None else max(0.0, patience - elapsed),
        reject_if_busy=bool(options and options.reject_if_busy),
        token=principal.token_id,
        caps=principal.caps,
        cache=policy_of(request.headers, edge.stores.cache_ttl),
        idempotency=idempotency.key_of(request),
        headers=_answer_headers(request),
        mixed_builds=request.headers.get("x-skerry-mixed-builds") == "1",
        affinity=affinity_of(request.headers, principal.account_id),
        pin_seconds=pin_of(request.headers),
    )


def _patience(request: Request) -> float | None:
    """How long the caller waits for the answer to begin, as it told AI Gateway. Raises
    `InvalidInput`."""
    given = request.headers.get(TIMEOUT_HEADER)
    if given is None:
        return None
    milliseconds = whole_number(given, 1, MAX_PATIENCE_MS)
    if milliseconds is None:
        raise InvalidInput(
            f"Bad input: the header {TIMEOUT_HEADER} is a number of milliseconds above 0",
            param=TIMEOUT_HEADER,
        )
    return milliseconds / 1000


def _explainer(request: Request) -> Callable[[str], None] | None:
    """Notes why a request was placed as it was, for the rim to tell; of choices, the last one."""
    if request.headers.get("x-skerry-explain") != "1":
        return None
    return functools.partial(_answer_headers(request).__setitem__, "x-skerry-explain")


def _answer_headers(request: Request) -> dict[str, str]:
    """Headers that the rim adds to the answer when it begins."""
    headers: dict[str, str] = request.scope.setdefault("answer_headers", {})
    return headers


async def attended(request: Request, call: Call, work: Awaitable[T]) -> T:
    """Await `work`, unless the client goes away (`ClientDisconnect`) or the deadline passes."""
    seconds = call.seconds_left if call.first_seconds is None else call.first_seconds
    async with Attended(request.receive) as client:
        try:
            async with asyncio.timeout(min(seconds, call.seconds_left)):
                return await work
        except (TimeoutError, asyncio.CancelledError) as exc:
            if client.gone:
                raise
            raise interruption(exc, retryable=seconds >= call.seconds_left) from None
