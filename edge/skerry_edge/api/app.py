"""The edge as an ASGI application: what every request passes, then its operation's handler.

beside        `/` and the console, where it is shown
cors          answers browsers' preflights, if any page may call
Rim           request id, metrics, one log line, errors → the dialect's answer
  authenticated   deny by default
  kept_zone       refuse what must not leave another zone
  steered         send clients to an edge that is nearer, if the operator wants it
  routes          those of `operations`, each behind the scopes or roles that it needs
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skerry.errors import AuthenticationError, MethodNotAllowed, NotFound
from skerry_edge.answer_headers import AnswerHeaders
from skerry_edge.api import cors
from skerry_edge.api.batch.service import dispatching
from skerry_edge.api.edge_request import EdgeRequest
from skerry_edge.api.operations import OPERATIONS, errors_of, openapi_document
from skerry_edge.console.console import Console
from skerry_edge.envelopes import error_response, known_error
from skerry_edge.gate.auth import authenticated, check_host, check_scopes
from skerry_edge.gate.inside import InsideCall
from skerry_edge.gate.principal import Principal
from skerry_edge.gate.residency import HEADER as RESIDENCY_HEADER
from skerry_edge.gate.residency import kept_zone
from skerry_edge.gate.steering import steered
from skerry_edge.generation.edge import Edge
from skerry_edge.http.edge_calls import ZONE_KEY
from skerry_edge.telemetry.sampled_lines import PROBES, SampledLines
from skerry_edge.telemetry.tracing import Trace, tracing
from skerry_regions.operations import Operation, public_paths, routes
from skerry_regions.trace_context import context_of

CLIENT_GONE = 499  # nginx's number for it; only ever logged and counted
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UNMATCHED = "unmatched"  # the route of what reached none
PUBLIC = public_paths(OPERATIONS)

access_logger = logging.getLogger("skerry.access")

__all__ = ["Edge", "create_app"]


def create_app(edge: Edge) -> Starlette:
    """Return the application for one edge. Shutting it down closes the edge's region client."""
    rim = Rim(edge)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, edge.stores.close)
            if edge.responses is not None:
                stack.callback(edge.responses.close)
            stack.push_async_callback(edge.region.close)
            for text in edge.texts.values():
                stack.push_async_callback(asyncio.to_thread, text.close)
            stack.push_async_callback(asyncio.to_thread, edge.planner.close)
            stack.push_async_callback(asyncio.to_thread, edge.desk.close)
            await stack.enter_async_context(dispatching(rim.serve, edge, errors_of))
            yield

    beside = list[Middleware]()
    if edge.console != "off":
        beside = [Middleware(_Beside, Console(edge, rim.serve, openapi_document))]
    return Starlette(
        middleware=[*beside, *cors.middleware(edge.cors_origins), Middleware(_Served, rim=rim)],
        lifespan=lifespan,
    )


class _Beside:
    """The outermost middleware: what is the console's goes there, and no origin but its own."""

    def __init__(self, app: ASGIApp, console: Console) -> None:
        self._app = app
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        is_consoles = path == "/" or path.startswith(("/console", "/docs"))
        serve = self._console if is_consoles else self._app
        await serve(scope, receive, send)


class _Served:
    """The innermost middleware: requests over HTTP go to the rim, the lifespan to Starlette."""

    def __init__(self, app: ASGIApp, rim: Rim) -> None:
        self._app = app
        self._rim = rim

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serve = self._rim.serve if scope["type"] == "http" else self._app
        await serve(scope, receive, send)


class Rim:
    """Answers requests. Nothing behind it may leave one unanswered."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._lines = SampledLines(edge.clock)
        self._routes = list(zip(routes(OPERATIONS), OPERATIONS, strict=True))

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, inside: InsideCall | None = None
    ) -> None:
        """Answer one request: an ASGI application. `inside` is a call that the edge makes of
        itself."""
        identity = str(uuid.uuid4()) if inside is None else inside.request_id
        edge, caller = self._edge, context_of(scope["headers"])
        trace = Trace(identity, caller, clock=edge.clock, wall_clock=edge.wall_clock)
        with tracing(trace):
            await self._answer(scope, receive, send, trace, inside)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, trace: Trace, inside: InsideCall | None
    ) -> None:
        identity = trace.request_id
        headers = AnswerHeaders()
        id_headers = [
            (b"cf-ai-req-id", identity.encode()),
            (b"x-request-id", identity.encode()),
            (b"traceresponse", trace.context.traceparent.encode()),
        ]
        status: int | None = None
        path = UNMATCHED

        async def send_identified(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = headers.fields() if headers else ()
                message["headers"] = [*message["headers"], *id_headers, *own]
            await send(message)

        def matched(operation: Operation) -> None:
            nonlocal path
            path = operation.path

        try:
            await self._run(scope, receive, send_identified, trace, inside, headers, matched)
        except ClientDisconnect:
            status = CLIENT_GONE
        except Exception as exc:
            if status is not None:  # half an answer is out; closing the connection says so
                raise
            encode_error = errors_of(scope["path"]).encode
            response = error_response(known_error(exc, identity), encode_error, identity)
            if isinstance(exc, _WrongMethod):
                response.headers["allow"] = exc.allowed
            await response(scope, receive, send_identified)
            exc.__traceback__ = None  # what it went through may hold it, until a collection
        finally:
            self._record(scope, status, path, trace)

    async def _run(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        trace: Trace,
        inside: InsideCall | None,
        headers: AnswerHeaders,
        matched: Callable[[Operation], None],
    ) -> None:
        """Let the request in, and have its operation answer it. Raises what refuses it."""
        edge, given = self._edge, scope["headers"]
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in given[::-1]}
        if edge.hosts and inside is None and ZONE_KEY not in scope:
            check_host(scope, fields, edge.hosts)
        principal = await self._principal(scope, inside)
        zone = None
        if principal is not None:
            if principal.residency is not None or RESIDENCY_HEADER in fields:
                zone = kept_zone(given, principal, edge.residency)
            if edge.steering is not None and inside is None:
                onward = await steered(edge.steering, scope, zone, receive, send)
                if onward is None:
                    return
                send = onward
        operation = self._operation(scope)
        matched(operation)
        if operation.scopes is not None and principal is not None:
            check_scopes(operation.scopes, principal)
            if operation.is_counted:
                if principal.account_id in edge.desk.preparation.paid_at:
                    edge.desk.preparation.check(principal.account_id)
                await edge.admission.prepare(principal.account_id)
                edge.admission.arrive(principal.account_id, tell=headers.update)
        request = EdgeRequest(
            scope,
            receive,
            send,
            edge=edge,
            fields=fields,
            principal=principal,
            residency=zone,
            inside=inside,
            serve=self.serve,
            trace=trace,
            answer_headers=headers,
        )
        try:
            response = await operation.handler(request)
            request.forget_body()
            await response(scope, receive, send)
        finally:
            request.let_go()
            if principal is not None and trace.prepared_seconds and not trace.is_admitted:
                edge.desk.preparation.charge(principal.account_id, trace.prepared_seconds)
        if principal is not None and "round_trip" in scope:
            edge.client_rtts.seen(scope)

    async def _principal(self, scope: Scope, inside: InsideCall | None) -> Principal | None:
        """Return the caller; None of a path that needs no token. Raises as `authenticated`."""
        if inside is not None:
            if inside.principal is None:
                raise AuthenticationError("The API token was revoked.")
            return inside.principal
        if scope["path"] in PUBLIC:
            return None
        return await authenticated(scope, self._edge.tokens, self._edge.logins)

    def _operation(self, scope: Scope) -> Operation:
        """Return the operation of a request, whose path's parameters go into the scope.

        Raises `NotFound` or `MethodNotAllowed`.
        """
        allowed: set[str] = set()
        for route, operation in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                return operation
            if match is Match.PARTIAL:
                allowed |= route.methods or set()
        if not allowed:
            raise NotFound(f"Could not route to {scope['path'][:200]}, "
                           "perhaps your object identifier is invalid?")  # fmt: skip
        method = scope["method"] if scope["method"] in METHODS else "This method is"
        raise _WrongMethod(f"{method} not supported for requested URI.", allowed)

    def _record(self, scope: Scope, status: int | None, path: str, trace: Trace) -> None:
        shown = scope["method"] if scope["method"] in METHODS else "other"
        self._edge.metrics.http_requests.add(1, path, shown, str(status or CLIENT_GONE))
        self._log(scope, status or CLIENT_GONE, path, shown, trace)
        if self._edge.traces.end(trace, status, path):
            for model, seconds in trace.seconds_of("tokenise"):
                self._edge.metrics.tokenize_time.observe(seconds, model)
            if self._edge.export is not None:
                record = self._edge.traces.record(trace.request_id)
                if record is not None:
                    self._edge.export(record)

    def _log(self, scope: Scope, status: int, path: str, shown: str, trace: Trace) -> None:
        is_plain = status == 200 and path not in PROBES
        left_out = 0 if is_plain else self._lines.left_out(path, status)
        if left_out is None:
            return
        target = scope.get("raw_path", b"")[:256].decode("latin-1")
        fields = {
            "method": shown,
            "path": target,
            "status": status,
            "seconds": round(trace.now(), 6),
        } | ({"left_out": left_out} if left_out else {})
        access_logger.info(
            "%s %s %d %.1f ms %s",
            shown,
            target,
            status,
            trace.now() * 1e3,
            trace.request_id,
            extra={"fields": fields},
        )


class _WrongMethod(MethodNotAllowed):
    """A path that is known, with other methods."""

    def __init__(self, message: str, allowed: set[str]) -> None:
        super().__init__(message)
        self.allowed = ", ".join(sorted(allowed))
