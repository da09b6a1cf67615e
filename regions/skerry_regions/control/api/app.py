"""The control API over HTTP: `/control/v1`, for operators and for Terraform.

Every route wants a bearer token whose role includes the right that the route needs (`access`), but
for `/healthz` and the description.
Answers are JSON; a refusal is `{"error": {"type", "message", "field"}}`. See docs/control.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from skerry_regions.control.api.access import CHANGING, NOBODY, ControlCaller, guarded
from skerry_regions.control.api.operations import OPERATIONS
from skerry_regions.control.api.requests import Control, control_of, refusal
from skerry_regions.control.api.terraform_routes import STATES
from skerry_regions.control.errors import (
    ControlError,
    Forbidden,
    HiddenResource,
    Misdirected,
    Unauthorized,
    UnknownResource,
    UnsupportedMethod,
)
from skerry_regions.known_hosts import comes_from_page, host_of, is_known_host
from skerry_regions.operations import public_paths, routes


def create_app(control: Control) -> Starlette:
    """Return the ASGI application, to be served by a server that bounds heads and slow senders."""
    app = Starlette(
        routes=routes(OPERATIONS, guarded),
        exception_handlers={ControlError: _refused, HTTPException: _not_routed},
    )
    app.state.control = control
    app.add_middleware(ControlAuthentication, control=control, public=public_paths(OPERATIONS))
    return app


class ControlAuthentication:
    """ASGI middleware: deny by default, decided on the path that the router will see."""

    def __init__(self, app: ASGIApp, control: Control, public: frozenset[str]) -> None:
        """`public` are the paths that need no token."""
        self._app = app
        self._control = control
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check_sender(scope)
                if not self._is_public(scope["path"]):
                    scope["caller"] = await self._caller(scope)
            except ControlError as error:
                await _note_denied(self._control, scope, error)
                return await refusal(error)(scope, receive, send)
        await self._app(scope, receive, send)

    def _check_sender(self, scope: Scope) -> None:
        """Raise Misdirected for a foreign `Host`, Forbidden for a change that a page asks for."""
        headers = {name.decode("latin-1"): it.decode("latin-1") for name, it in scope["headers"]}
        host, own = headers.get("host", ""), (scope.get("server") or ("",))[0]
        if not is_known_host(host, self._control.hosts, own):
            raise Misdirected(
                f"The control plane is not {host_of(host)[:253]!r}: start it with `--known-host`, "
                "if that is a name of it."
            )
        if scope["method"] in CHANGING and comes_from_page(headers):
            raise Forbidden("Web pages change nothing here.")

    def _is_public(self, path: str) -> bool:
        return path in self._public or path.startswith(STATES)  # Terraform sends no bearer token

    async def _caller(self, scope: Scope) -> ControlCaller:
        token = given_token(scope["headers"])
        if token is None:
            raise Unauthorized("Send one header `Authorization: Bearer TOKEN`.")
        caller = await self._control.authenticate(token)
        if caller is None:
            raise Unauthorized("The token is wrong, or has expired.")
        if not caller.rights:
            raise Forbidden("The token has no role at the control plane.")
        return caller


async def _note_denied(control: Control, scope: Scope, error: ControlError) -> None:
    """Note a change that was denied in the audit log."""
    if scope["method"] in CHANGING and isinstance(error, Unauthorized | Forbidden | HiddenResource):
        caller = scope.get("caller")
        actor = caller.actor if isinstance(caller, ControlCaller) else NOBODY
        note = control.denials.note
        await asyncio.to_thread(note, actor, scope["method"], scope["path"], error.message)


def given_token(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the one bearer token of a request."""
    given = [value for name, value in headers if name == b"authorization"]
    scheme, _, credentials = (given[0] if len(given) == 1 else b"").decode("latin-1").partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else None


async def _refused(request: Request, error: Exception) -> Response:
    if not isinstance(error, ControlError):
        raise error
    await _note_denied(control_of(request), request.scope, error)
    return refusal(error)


async def _not_routed(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        return refusal(UnsupportedMethod(f"{request.method} is not allowed here"))
    return refusal(UnknownResource(f"there is no route {request.url.path[:200]}"))
