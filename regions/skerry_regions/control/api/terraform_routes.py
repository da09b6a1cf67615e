"""`/control/v1/terraform/states/NAME`: Terraform's `http` backend over HTTP."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skerry_regions.control.api.openapi import PREFIX
from skerry_regions.control.api.requests import body_of, control_of
from skerry_regions.control.desired.terraform_state import NAME, TerraformStates
from skerry_regions.control.errors import Malformed

STATES = f"{PREFIX}/terraform/states/"
METHODS = ["GET", "POST", "DELETE", "LOCK", "UNLOCK"]


def terraform_routes() -> list[Route]:
    return [Route(f"{STATES}{{name}}", _state, methods=METHODS)]


async def _state(request: Request) -> Response:
    states = TerraformStates(control_of(request).store)
    name = request.path_params["name"]
    if NAME.fullmatch(name) is None:
        raise Malformed("a state's name has letters, digits, dots, dashes and underscores")
    if request.method == "GET":
        state = await asyncio.to_thread(states.get, name)
        return Response(state, media_type="application/json")
    body = await body_of(request)
    await asyncio.to_thread(_change, states, request, name, body)
    return Response(status_code=200)


def _change(states: TerraformStates, request: Request, name: str, body: bytes) -> None:
    match request.method:
        case "POST":
            lock_id = request.query_params.get("ID")
            md5 = request.headers.get("content-md5")
            states.put(name, body, lock_id=lock_id, md5=md5)
        case "DELETE":
            states.delete(name, lock_id=request.query_params.get("ID"))
        case "LOCK":
            states.lock(name, body)
        case _:
            states.unlock(name, body)
