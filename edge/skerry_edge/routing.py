"""What every handler needs of its request: the edge, the caller, the time that is left."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request

from skerry.errors import PermissionDenied
from skerry_edge import idempotency
from skerry_edge.auth import Principal, ScopeName
from skerry_edge.edge import Edge
from skerry_edge.generation import Call
from skerry_edge.response_cache import policy_of
from skerry_edge.sse import Attended, interruption

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


def call_of(request: Request, principal: Principal) -> Call:
    """The call's identity, its deadline (counted from the request's header) and its wishes.

    The body must have been read. Raises `InvalidInput` for a wish that cannot be.
    """
    edge = edge_of(request)
    started = float(request.scope["started"])
    left = edge.limits.request_seconds - (edge.clock() - started)
    return Call(
        request_id=request_id(request),
        tenant=principal.account_id,
        started=started,
        seconds_left=max(0.0, left),
        explain=_explainer(request),
        token=principal.token_id,
        cache=policy_of(request.headers, edge.stores.cache_ttl),
        idempotency=idempotency.key_of(request),
        headers=_answer_headers(request),
    )


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
    async with Attended(request.receive) as client:
        try:
            async with asyncio.timeout(call.seconds_left):
                return await work
        except (TimeoutError, asyncio.CancelledError) as exc:
            if client.gone:
                raise
            raise interruption(exc) from None
