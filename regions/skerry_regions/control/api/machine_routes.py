"""`/control/v1/join_tokens` and `/control/v1/machines`: who may join, and who has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skerry_regions.control.api.openapi import PREFIX
from skerry_regions.control.api.requests import (
    actor_of,
    body_of,
    control_of,
    idempotency_key_of,
    json_answer,
    limit_of,
)
from skerry_regions.control.desired.validation import decode_object
from skerry_regions.control.errors import Busy, Conflict
from skerry_regions.control.machines.book import MachineView, view
from skerry_regions.control.machines.join_tokens import JoinToken
from skerry_regions.control.machines.joining import Joining
from skerry_regions.registry import RegistryUnavailable


def machine_routes() -> list[Route]:
    tokens, machines = f"{PREFIX}/join_tokens", f"{PREFIX}/machines"
    return [
        Route(tokens, _tokens, methods=["GET"]),
        Route(tokens, _create_token, methods=["POST"]),
        Route(f"{tokens}/{{id}}", _token, methods=["GET"]),
        Route(f"{tokens}/{{id}}", _delete_token, methods=["DELETE"]),
        Route(machines, _machines, methods=["GET"]),
        Route(f"{machines}/{{id}}", _machine, methods=["GET"]),
        Route(f"{machines}/{{id}}", _revoke, methods=["DELETE"]),
    ]


def _joining(request: Request) -> Joining:
    joining = control_of(request).joining
    if joining is None:
        raise Conflict("this control plane takes no machines: start it with --join-host")
    return joining


async def _tokens(request: Request) -> Response:
    return _page(request, await asyncio.to_thread(_joining(request).tokens.all))


async def _machines(request: Request) -> Response:
    machines = await asyncio.to_thread(_joining(request).machines.all)
    return _page(request, [view(machine) for machine in machines])


def _page(request: Request, items: Sequence[JoinToken | MachineView]) -> Response:
    """Of items that are in the order of their ids."""
    after, limit = request.query_params.get("after", ""), limit_of(request)
    behind = [item for item in items if item.id > after]
    next = behind[limit - 1].id if len(behind) > limit else None
    return json_answer({"items": behind[:limit], "next": next})


async def _create_token(request: Request) -> Response:
    tokens, values = _joining(request).tokens, decode_object(await body_of(request))
    actor, key = actor_of(request), idempotency_key_of(request)
    made = await asyncio.to_thread(lambda: tokens.create(values, actor=actor, idempotency_key=key))
    return json_answer(made, 201)


async def _token(request: Request) -> Response:
    tokens = _joining(request).tokens
    return json_answer(await asyncio.to_thread(tokens.get, request.path_params["id"]))


async def _delete_token(request: Request) -> Response:
    tokens, id, actor = _joining(request).tokens, request.path_params["id"], actor_of(request)
    await asyncio.to_thread(lambda: tokens.delete(id, actor=actor))
    return Response(status_code=204)


async def _machine(request: Request) -> Response:
    machines = _joining(request).machines
    return json_answer(view(await asyncio.to_thread(machines.get, request.path_params["id"])))


async def _revoke(request: Request) -> Response:
    joining, id, actor = _joining(request), request.path_params["id"], actor_of(request)
    try:
        machine = await joining.revoke(id, actor=actor)
    except RegistryUnavailable as error:
        raise Busy(f"it is revoked, but edges are not told yet: {error}") from None
    return json_answer(view(machine))
