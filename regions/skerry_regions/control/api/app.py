"""The control API over HTTP: `/control/v1`, for operators and for Terraform.

Every route wants a bearer token with the scope `admin`, but for `/healthz` and the description.
Answers are JSON; a refusal is `{"error": {"type", "message", "field"}}`. See docs/control.md.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from skerry import __version__
from skerry_regions.control.api.dns_routes import dns_routes
from skerry_regions.control.api.machine_routes import machine_routes
from skerry_regions.control.api.openapi import PREFIX, PUBLIC_PATHS, document
from skerry_regions.control.api.requests import (
    Caller,
    Control,
    actor_of,
    body_of,
    control_of,
    idempotency_key_of,
    if_match_of,
    json_answer,
    limit_of,
    refusal,
    sequence_of,
)
from skerry_regions.control.api.terraform_routes import STATES, terraform_routes
from skerry_regions.control.desired.desired import Record
from skerry_regions.control.desired.resources import KINDS, REGION, Kind, RegionStatus
from skerry_regions.control.desired.validation import decode_object
from skerry_regions.control.desired.views import (
    PlatformStatus,
    RegionSummary,
    view,
)
from skerry_regions.control.errors import (
    ControlError,
    Forbidden,
    MethodNotAllowed,
    NotFound,
    Unauthorized,
)


def create_app(control: Control) -> Starlette:
    """The ASGI application, to be served by a server that bounds heads and slow senders."""
    routes = [
        Route("/healthz", _health),
        Route(f"{PREFIX}/openapi.json", _openapi),
        Route(f"{PREFIX}/status", _platform_status),
        Route(f"{PREFIX}/nodes", _nodes),
        Route(f"{PREFIX}/events", _events),
        Route(f"{PREFIX}/audit", _audit),
    ]
    for kind in KINDS:
        routes += _routes(kind)
    routes += dns_routes(control.store, control.answer_dns, PREFIX)
    routes += terraform_routes()
    routes += machine_routes()
    app = Starlette(
        routes=routes,
        exception_handlers={ControlError: _refused, HTTPException: _not_routed},
    )
    app.state.control = control
    app.add_middleware(Authenticate, authenticate=control.authenticate)
    return app


class Authenticate:
    """ASGI middleware: deny by default, decided on the path that the router will see."""

    def __init__(self, app: ASGIApp, authenticate: Callable[[str], Caller | None]) -> None:
        self._app = app
        self._authenticate = authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in PUBLIC_PATHS:
            try:
                scope["caller"] = self._caller(scope)
            except ControlError as error:
                return await refusal(error)(scope, receive, send)
        await self._app(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller:
        token = given_token(scope["path"], scope["headers"])
        if token is None:
            raise Unauthorized("Send one header `Authorization: Bearer TOKEN`.")
        caller = self._authenticate(token)
        if caller is None:
            raise Unauthorized("The token is wrong.")
        if not caller.is_admin:
            raise Forbidden("The token lacks the scope 'admin'.")
        return caller


def given_token(path: str, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The one token of a request. Terraform's backend can only send it as a basic password."""
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) != 1:
        return None
    scheme, _, credentials = given[0].decode("latin-1").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() == "basic" and path.startswith(STATES):
        try:
            return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
        except ValueError:
            return None
    return None


# --- resources -----------------------------------------------------------------------------------


def _routes(kind: Kind) -> list[Route]:
    async def listed(request: Request) -> Response:
        control = control_of(request)
        records = control.store.desired.of(kind)
        after, limit = request.query_params.get("after", ""), limit_of(request)
        behind = [record for record in records if record.id > after]
        page = [view(each, control.observer.status(each)) for each in behind[:limit]]
        next = behind[limit - 1].id if len(behind) > limit else None
        return json_answer({"items": page, "next": next})

    async def create(request: Request) -> Response:
        control = control_of(request)
        values = decode_object(await body_of(request))
        actor, key = actor_of(request), idempotency_key_of(request)
        made = await asyncio.to_thread(
            lambda: control.changes.create(kind, values, actor=actor, idempotency_key=key)
        )
        control.changed()
        more = {} if made.secret is None else {"secret": made.secret}
        return _resource(control, made.record, 201, **more)

    async def get(request: Request) -> Response:
        control = control_of(request)
        return _resource(control, _found(control, kind, request))

    async def update(request: Request) -> Response:
        control = control_of(request)
        patch = decode_object(await body_of(request))
        id, actor, if_match = request.path_params["id"], actor_of(request), if_match_of(request)
        record = await asyncio.to_thread(
            lambda: control.changes.update(kind, id, patch, actor=actor, if_match=if_match)
        )
        control.changed()
        return _resource(control, record)

    async def delete(request: Request) -> Response:
        control = control_of(request)
        id, actor, if_match = request.path_params["id"], actor_of(request), if_match_of(request)
        await asyncio.to_thread(
            lambda: control.changes.delete(kind, id, actor=actor, if_match=if_match)
        )
        control.changed()
        record = control.store.desired.get(kind, id)
        return Response(status_code=204) if record is None else _resource(control, record, 202)

    collection = f"{PREFIX}/{kind.collection}"
    item = f"{collection}/{{id}}"
    return [
        Route(collection, listed, methods=["GET"]),
        Route(collection, create, methods=["POST"]),
        Route(item, get, methods=["GET"]),
        Route(item, update, methods=["PATCH"]),
        Route(item, delete, methods=["DELETE"]),
    ]


def _found(control: Control, kind: Kind, request: Request) -> Record:
    id = request.path_params["id"]
    record = control.store.desired.get(kind, id)
    if record is None:
        raise NotFound(f"there is no {kind.name} {id!r}")
    return record


def _resource(control: Control, record: Record, status: int = 200, **more: Any) -> Response:
    body = view(record, control.observer.status(record), **more)
    return json_answer(body, status, {"etag": f'"{record.etag}"'})


# --- the rest ------------------------------------------------------------------------------------


async def _health(request: Request) -> Response:
    return json_answer({"status": "ok"})


async def _openapi(request: Request) -> Response:
    return json_answer(document())


async def _platform_status(request: Request) -> Response:
    control = control_of(request)
    desired = control.store.desired
    regions = []
    for record in desired.of(REGION):
        status = control.observer.status(record)
        if not isinstance(status, RegionStatus):
            status = RegionStatus()
        regions.append(
            RegionSummary(
                name=record.id,
                phase=status.phase,
                ready_nodes=status.ready_nodes,
                desired_nodes=status.desired_nodes,
            )
        )
    return json_answer(
        PlatformStatus(
            version=__version__,
            revision=desired.revision,
            observed_revision=control.observer.revision,
            account_id=control.account_id,
            regions=regions,
        )
    )


async def _nodes(request: Request) -> Response:
    nodes = sorted(control_of(request).observer.nodes(), key=lambda node: node.id)
    after, limit = request.query_params.get("after", ""), limit_of(request)
    behind = [node for node in nodes if node.id > after]
    next = behind[limit - 1].id if len(behind) > limit else None
    return json_answer({"items": behind[:limit], "next": next})


async def _events(request: Request) -> Response:
    store, after, limit = control_of(request).store, sequence_of(request), limit_of(request)
    kind, id = (request.query_params.get(name, "") for name in ("kind", "id"))
    events = await asyncio.to_thread(lambda: store.events(after, limit, kind=kind, id=id))
    return json_answer({"items": events, "next": events[-1].sequence if events else None})


async def _audit(request: Request) -> Response:
    store, after, limit = control_of(request).store, sequence_of(request), limit_of(request)
    entries = await asyncio.to_thread(lambda: store.audit(after, limit))
    return json_answer({"items": entries, "next": entries[-1].sequence if entries else None})


async def _refused(request: Request, error: Exception) -> Response:
    if not isinstance(error, ControlError):
        raise error
    return refusal(error)


async def _not_routed(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        return refusal(MethodNotAllowed(f"{request.method} is not allowed here"))
    return refusal(NotFound(f"there is no route {request.url.path[:200]}"))
