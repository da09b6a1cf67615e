"""Machines that join, and the tokens that let them."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from skerry_regions.control.api.requests import (
    actor_of,
    control_of,
    idempotency_key_of,
    json_answer,
    object_of,
    page_answer,
)
from skerry_regions.control.errors import Busy, Conflict
from skerry_regions.control.machines.book import Machine
from skerry_regions.control.machines.host import MachineView, view
from skerry_regions.control.machines.joining import Joining
from skerry_regions.registry import RegistryUnavailable


def _joining(request: Request) -> Joining:
    joining = control_of(request).joining
    if joining is None:
        raise Conflict("this control plane takes no machines: start it with --join-host")
    return joining


async def list_tokens(request: Request) -> Response:
    return page_answer(request, await asyncio.to_thread(_joining(request).tokens.all))


async def list_machines(request: Request) -> Response:
    joining = _joining(request)
    machines = await asyncio.to_thread(joining.machines.all)
    return page_answer(request, machines, lambda machine: _shown(joining, machine))


async def create_token(request: Request) -> Response:
    tokens, values = _joining(request).tokens, await object_of(request)
    actor, key = actor_of(request), idempotency_key_of(request)
    made = await asyncio.to_thread(lambda: tokens.create(values, actor=actor, idempotency_key=key))
    return json_answer(made, 201)


async def get_token(request: Request) -> Response:
    tokens = _joining(request).tokens
    return json_answer(await asyncio.to_thread(tokens.get, request.path_params["id"]))


async def delete_token(request: Request) -> Response:
    tokens, id, actor = _joining(request).tokens, request.path_params["id"], actor_of(request)
    await asyncio.to_thread(lambda: tokens.delete(id, actor=actor))
    return Response(status_code=204)


async def get_machine(request: Request) -> Response:
    joining, id = _joining(request), request.path_params["id"]
    return json_answer(_shown(joining, await asyncio.to_thread(joining.machines.get, id)))


async def revoke_machine(request: Request) -> Response:
    joining, id, actor = _joining(request), request.path_params["id"], actor_of(request)
    try:
        machine = await joining.revoke(id, actor=actor)
    except RegistryUnavailable as error:
        raise Busy(f"it is revoked, but edges are not notified yet: {error}") from None
    return json_answer(view(machine))


def _shown(joining: Joining, machine: Machine) -> MachineView:
    return view(machine, joining.nodes.host(machine.id))
