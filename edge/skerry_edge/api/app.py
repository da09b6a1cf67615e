"""The edge as an ASGI application: routes, and the rim that every request passes.

cors           answers browsers' preflights, if any page may call
Rim            request id, metrics, one log line, errors → the dialect's answer
Authenticate   deny by default
KeepResidency  refuse what must not leave another zone
Steered        send clients to an edge that is nearer, if the operator wants it
routes         native `/ai/run`, the binding's `/run`, OpenAI and Anthropic `/v1`, lists,
               health
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skerry.errors import InternalError, MethodNotAllowed, NotFound, SkerryError
from skerry_edge.api import cors
from skerry_edge.api.anthropic import messages
from skerry_edge.api.batch import batches, files
from skerry_edge.api.batch.service import dispatching
from skerry_edge.api.documents import listings, openapi, schemas, traces, usage_routes
from skerry_edge.api.handler import edge_of
from skerry_edge.api.openai import chat as openai
from skerry_edge.api.openai import completions, embeddings
from skerry_edge.api.responses import responses
from skerry_edge.api.workers_ai import binding, native
from skerry_edge.envelopes import BINDING_PATH, JSONBytes, encode, error_response
from skerry_edge.gate.auth import Authenticate
from skerry_edge.gate.residency import KeepResidency
from skerry_edge.gate.steering import Steered
from skerry_edge.generation.edge import Edge
from skerry_edge.internal import request_id_of
from skerry_edge.telemetry import metrics
from skerry_edge.telemetry.tracing import Trace, tracing
from skerry_regions.trace_context import context_of

ACCOUNT = "/client/v4/accounts/{account_id}"
OPENAI_PREFIXES = (f"{ACCOUNT}/ai/v1", "/ai/v1", "/v1")
CLIENT_GONE = 499  # nginx's number for it; only ever logged and counted
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

logger = logging.getLogger(__name__)
access_logger = logging.getLogger("skerry.access")

__all__ = ["Edge", "create_app"]


def create_app(edge: Edge) -> Starlette:
    """The application for one edge. Shutting it down closes the edge's region client."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, edge.stores.close)
            if edge.responses is not None:
                stack.callback(edge.responses.close)
            stack.push_async_callback(edge.region.close)
            await stack.enter_async_context(dispatching(app, edge))
            yield

    app = Starlette(
        routes=_routes(),
        middleware=[
            *cors.middleware(edge.cors_origins),
            Middleware(Rim, edge=edge),
            Middleware(Authenticate, tokens=edge.tokens),
            Middleware(KeepResidency, zone=edge.residency),
            *([] if edge.steering is None else [Middleware(Steered, steering=edge.steering)]),
        ],
        exception_handlers={404: _no_route, 405: _no_method},
        lifespan=lifespan,
    )
    app.state.edge = edge
    app.router.redirect_slashes = False
    return app


def _routes() -> list[Route]:
    """They are tried in order, and each try takes a microsecond: first what is asked most."""
    routes = [
        *(
            Route(f"{prefix}/chat/completions", openai.chat_completions, methods=["POST"])
            for prefix in OPENAI_PREFIXES
        ),
        Route(f"{ACCOUNT}/ai/run/{{model:path}}", native.run, methods=["POST"]),
        Route("/healthz", health),
        Route("/readyz", ready),
        Route("/metrics", show_metrics),
        Route("/openapi.json", openapi.openapi),
        Route("/client/v4/user/tokens/verify", native.verify_token),
        Route(f"{ACCOUNT}/ai/run", native.run_named, methods=["POST"]),
        Route(f"{ACCOUNT}/ai/models/search", listings.search_models),
        Route(f"{ACCOUNT}/ai/models/schema", schemas.model_schema),
        Route(f"{ACCOUNT}/ai/authors/search", listings.search_authors),
        Route(f"{ACCOUNT}/ai/tasks/search", listings.search_tasks),
        Route(f"{ACCOUNT}/ai/usage", usage_routes.usage),
        Route(f"{ACCOUNT}/ai/traces/{{request_id}}", traces.show_trace),
        Route(BINDING_PATH, binding.run, methods=["POST"]),
        Route("/ai-api/models/search", listings.search_models),
    ]
    for prefix in OPENAI_PREFIXES:
        routes += [
            Route(f"{prefix}/completions", completions.completions, methods=["POST"]),
            Route(f"{prefix}/messages", messages.messages, methods=["POST"]),
            Route(f"{prefix}/messages/count_tokens", messages.count_tokens, methods=["POST"]),
            Route(f"{prefix}/responses", responses.create, methods=["POST"]),
            Route(f"{prefix}/responses/{{id}}", responses.retrieve, methods=["GET"]),
            Route(f"{prefix}/responses/{{id}}", responses.delete, methods=["DELETE"]),
            Route(f"{prefix}/embeddings", embeddings.create, methods=["POST"]),
            Route(f"{prefix}/files", files.upload, methods=["POST"]),
            Route(f"{prefix}/files", files.list_files, methods=["GET"]),
            Route(f"{prefix}/files/{{id}}", files.retrieve, methods=["GET"]),
            Route(f"{prefix}/files/{{id}}", files.delete, methods=["DELETE"]),
            Route(f"{prefix}/files/{{id}}/content", files.content),
            Route(f"{prefix}/batches", batches.create, methods=["POST"]),
            Route(f"{prefix}/batches", batches.list_batches, methods=["GET"]),
            Route(f"{prefix}/batches/{{id}}", batches.retrieve, methods=["GET"]),
            Route(f"{prefix}/batches/{{id}}/cancel", batches.cancel, methods=["POST"]),
            Route(f"{prefix}/models", listings.list_models),
            Route(f"{prefix}/models/{{model:path}}", listings.get_model),
        ]
    return routes


class Rim:
    """The outermost middleware. Nothing behind it may leave a request unanswered."""

    def __init__(self, app: ASGIApp, edge: Edge) -> None:
        self._app = app
        self._edge = edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        edge, identity = self._edge, request_id_of(scope)
        caller = context_of(scope["headers"])
        trace = Trace(identity, caller, clock=edge.clock, wall_clock=edge.wall_clock)
        scope["request_id"], scope["started"] = identity, trace.started
        with tracing(trace):
            await self._answer(scope, receive, send, trace)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, trace: Trace) -> None:
        identity = trace.request_id
        id_headers = [
            (b"cf-ai-req-id", identity.encode()),
            (b"x-request-id", identity.encode()),
            (b"traceresponse", trace.traceresponse.encode()),
        ]
        status: int | None = None

        async def send_identified(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *id_headers, *_own_headers(scope)]
            await send(message)

        try:
            await self._app(scope, receive, send_identified)
        except ClientDisconnect:
            status = CLIENT_GONE
        except Exception as exc:
            if status is not None:  # half an answer is out; closing the connection says so
                raise
            response = error_response(_known(exc, identity), scope["path"], identity)
            await response(scope, receive, send_identified)
        finally:
            self._record(scope, status, trace)

    def _record(self, scope: Scope, status: int | None, trace: Trace) -> None:
        route, method = scope.get("route"), scope["method"]
        path = route.path if isinstance(route, Route) else "unmatched"
        shown = method if method in METHODS else "other"
        self._edge.metrics.http_requests.add(1, path, shown, str(status or CLIENT_GONE))
        target = scope.get("raw_path", b"")[:256].decode("latin-1")
        fields = {
            "method": shown,
            "path": target,
            "status": status or CLIENT_GONE,
            "seconds": round(trace.now(), 6),
        }
        access_logger.info(
            "%s %s %d %.1f ms %s",
            shown,
            target,
            status or CLIENT_GONE,
            trace.now() * 1e3,
            trace.request_id,
            extra={"fields": fields},
        )
        record = self._edge.traces.end(trace, status, path)
        if record is not None:
            self._edge.metrics.traced(record)
            self._edge.export(record)


def _own_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """What handlers have to tell besides their answer."""
    headers: dict[str, str] = scope.get("answer_headers", {})
    return [(name.encode(), value.encode("ascii")) for name, value in headers.items() if value]


def _known(exc: Exception, identity: str) -> SkerryError:
    """The error that a client is told: never an exception's text, but an id that finds it."""
    if isinstance(exc, SkerryError):
        return exc
    logger.error("request %s failed", identity, exc_info=exc)
    return InternalError("Internal error; the request id finds it in the logs.")


async def health(request: Request) -> Response:
    """The process answers, and so do the engines in it."""
    ailment = edge_of(request).ailment()
    body = {"status": "ok"} if ailment is None else {"status": "ill", "reason": ailment}
    return JSONBytes(encode(body), 200 if ailment is None else 503)


async def ready(request: Request) -> Response:
    """Some model can be asked."""
    models = sorted(edge_of(request).region.models())
    body = {"status": "ready" if models else "no model is served", "models": models}
    return JSONBytes(encode(body), 200 if models else 503)


async def show_metrics(request: Request) -> Response:
    """Prometheus text."""
    return Response(edge_of(request).metrics.render(), media_type=metrics.CONTENT_TYPE)


def _no_route(request: Request, exc: Exception) -> Response:
    return _refused(request, NotFound(f"Could not route to {request.scope['path'][:200]}, "
                                      "perhaps your object identifier is invalid?"))  # fmt: skip


def _no_method(request: Request, exc: Exception) -> Response:
    method = request.method if request.method in METHODS else "This method is"
    response = _refused(request, MethodNotAllowed(f"{method} not supported for requested URI."))
    if isinstance(exc, HTTPException) and exc.headers:
        response.headers.update(exc.headers)  # Allow
    return response


def _refused(request: Request, exc: SkerryError) -> Response:
    return error_response(exc, request.scope["path"], request.scope["request_id"])
