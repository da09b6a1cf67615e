"""What every handler needs of its request: the edge, the caller, the time that is left."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TypeVar

from starlette.requests import Request

from skerry.errors import InvalidInput, PermissionDenied, SkerryError
from skerry.wire import RunOptions
from skerry_edge.gate.auth import Principal, ScopeName
from skerry_edge.generation.choices import Call, Choices, Job, start
from skerry_edge.generation.edge import Edge
from skerry_edge.generation.sse import Attended, EventStream, interruption
from skerry_edge.hints import EXPLAIN_HEADER, affinity_of, pin_of
from skerry_edge.internal import priority_of
from skerry_edge.ledger import idempotency
from skerry_edge.ledger.response_cache import policy_of
from skerry_edge.telemetry import tracing
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


def _headers(request: Request) -> dict[str, str]:
    """By name in lower case; of those given twice the first, as in `request.headers`, which looks
    through all of them for each that is wanted."""
    pairs: list[tuple[bytes, bytes]] = request.scope["headers"]
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(pairs)}


def call_of(request: Request, principal: Principal, options: RunOptions | None = None) -> Call:
    """The call's identity, its deadlines (counted from the request's header) and its wishes.

    The body must have been read. Raises `InvalidInput` for a wish that cannot be.
    """
    edge = edge_of(request)
    if (trace := tracing.current()) is not None:
        trace.add("receive", 0.0, trace.now())
        edge.traces.begin(trace, principal.account_id)
    started = float(request.scope["started"])
    headers = _headers(request)
    return Call(
        request_id=request_id(request),
        tenant=principal.account_id,
        started=started,
        deadline=started + edge.limits.request_seconds,
        begin_by=started + _patience(headers),
        residency=request.scope["residency"],
        explain=_explainer(request),
        priority=priority_of(request.scope),
        reject_if_busy=bool(options and options.reject_if_busy),
        token=principal.token_id,
        caps=principal.caps,
        cache=policy_of(headers, edge.stores.cache_ttl),
        idempotency=idempotency.key_of(request),
        headers=_answer_headers(request),
        mixed_builds=headers.get("x-skerry-mixed-builds") == "1",
        affinity=affinity_of(headers, principal.account_id),
        pin_seconds=pin_of(headers),
    )


def _patience(headers: Mapping[str, str]) -> float:
    """Seconds that the caller waits for the answer to begin, as it told AI Gateway; infinite where
    it told none. Raises `InvalidInput`."""
    given = headers.get(TIMEOUT_HEADER)
    if given is None:
        return math.inf
    milliseconds = whole_number(given, 1, MAX_PATIENCE_MS)
    if milliseconds is None:
        raise InvalidInput(
            f"Bad input: the header {TIMEOUT_HEADER} is a number of milliseconds above 0",
            param=TIMEOUT_HEADER,
        )
    return milliseconds / 1000


def _explainer(request: Request) -> Callable[[str], None] | None:
    """Notes why a request was placed as it was, for the rim to tell; of choices, the last one."""
    if request.headers.get(EXPLAIN_HEADER) != "1":
        return None
    return functools.partial(_answer_headers(request).__setitem__, EXPLAIN_HEADER)


def _answer_headers(request: Request) -> dict[str, str]:
    """Headers that the rim adds to the answer when it begins."""
    headers: dict[str, str] = request.scope.setdefault("answer_headers", {})
    return headers


async def begin(request: Request, call: Call, *jobs: Job) -> Choices:
    """`start` the jobs, for as long as the client waits for it (see `attended`)."""
    return await attended(request, call, start(edge_of(request), jobs, call))


def event_stream(
    request: Request,
    call: Call,
    choices: Choices,
    events: AsyncGenerator[bytes, None],
    encode_error: Callable[[SkerryError], bytes],
) -> EventStream:
    """The answer that streams `events` of the choices, within the call's deadlines."""
    edge = edge_of(request)
    return EventStream(
        events,
        encode_error=encode_error,
        close=choices.close,
        keep_alive_seconds=edge.limits.keep_alive_seconds,
        deadline=call.deadline,
        begin_by=call.begin_by,
        clock=edge.clock,
    )


async def attended(request: Request, call: Call, work: Awaitable[T]) -> T:
    """Await `work`, unless the client goes away (`ClientDisconnect`) or a deadline passes
    (`RequestTimeout`): then it is cancelled at once."""
    end = min(call.begin_by, call.deadline)
    async with Attended(request.receive) as client:
        try:
            async with asyncio.timeout(max(0.0, end - edge_of(request).clock())):
                return await work
        except (TimeoutError, asyncio.CancelledError) as exc:
            if client.gone:
                raise
            raise interruption(exc, retryable=call.deadline <= call.begin_by) from None
