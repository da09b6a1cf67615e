"""The control API over HTTP: `/control/v1`, for operators and for Terraform.

Every route wants a bearer token whose role includes the right that the route needs (`access`), but
for `/healthz` and the description.
Answers are JSON; a refusal is `{"error": {"type", "message", "field"}}`. See docs/control.md.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from skerry_regions.control.api.access import CHANGING, INSIDE, NOBODY, ControlCaller
from skerry_regions.control.api.operations import OPERATIONS
from skerry_regions.control.api.requests import (
    PREFIX,
    Control,
    ControlRequest,
    check_host,
    refusal,
)
from skerry_regions.control.api.terraform_routes import STATES
from skerry_regions.control.errors import (
    ControlError,
    Forbidden,
    HiddenResource,
    NotLeading,
    Unauthorized,
    UnknownResource,
    UnsupportedMethod,
)
from skerry_regions.known_hosts import comes_from_page
from skerry_regions.operations import Handler, Operation, public_paths, routes

FOLLOWED = frozenset(f"{PREFIX}/{name}" for name in ("history", "audit", "events", "metrics"))
"""What control planes answer that follow another: what is written down, and how they are. How what
runs is, the leader alone sees."""

logger = logging.getLogger(__name__)


def create_app(control: Control) -> Starlette:
    """Return the ASGI application, to be served by a server that bounds heads and slow senders."""
    gate = ControlGate(control, public_paths(OPERATIONS))
    app = Starlette(
        routes=routes(OPERATIONS, gate.guarded),
        exception_handlers={HTTPException: gate.not_routed, Exception: gate.failed},
    )
    app.router.redirect_slashes = False  # a redirect would pass the gate, and name routes
    return app


class ControlGate:
    """Lets requests in: deny by default, whether or not there is such a route."""

    def __init__(self, control: Control, public: frozenset[str]) -> None:
        """`public` are the paths that need no token."""
        self._control = control
        self._public = public

    def guarded(self, operation: Operation) -> Handler:
        """Return an operation's handler behind the check of the sender and the caller's rights."""
        handler, needed = operation.handler, operation.scopes

        async def checked(request: Request) -> Response:
            scope, caller = request.scope, None
            try:
                self._check_sender(scope)
                if needed is not None:
                    caller = await self._caller(scope)
                    if caller.rights.isdisjoint(needed):
                        raise Forbidden(
                            f"Your role does not include the right to {needed[0]} here."
                        )
                    self._check_leading(operation)
                return await handler(ControlRequest(scope, request.receive, self._control, caller))
            except ControlError as error:
                return await self._refusal(scope, error, caller)

        return checked

    async def not_routed(self, request: Request, error: Exception) -> Response:
        """Answer a request without an operation; one without a token learns nothing of routes."""
        scope, caller = request.scope, None
        try:
            self._check_sender(scope)
            if not self._is_public(scope["path"]):
                caller = await self._caller(scope)
            if isinstance(error, HTTPException) and error.status_code == 405:
                raise UnsupportedMethod(f"{request.method} is not allowed here")
            raise UnknownResource(f"there is no route {request.url.path[:200]}")
        except ControlError as refused:
            return await self._refusal(scope, refused, caller)

    async def failed(self, request: Request, error: Exception) -> Response:
        """Answer a request whose operation raised; the log says more of the error's id."""
        error_id = secrets.token_hex(8)
        what = f"{request.method} {request.url.path[:200]!r}"
        logger.error("error %s: %s failed", error_id, what, exc_info=error)
        return refusal(ControlError(f"The control plane failed; its log says why: {error_id}"))

    def _check_sender(self, scope: Scope) -> None:
        """Raise Misdirected for a foreign `Host`, Forbidden for a change that a page requests."""
        check_host(scope, self._control.hosts)
        headers = {name.decode("latin-1"): it.decode("latin-1") for name, it in scope["headers"]}
        if scope["method"] in CHANGING and comes_from_page(headers):
            raise Forbidden("Web pages change nothing here.")

    def _check_leading(self, operation: Operation) -> None:
        """Raise NotLeading for what only the leader of several control planes knows or does."""
        if self._control.leader is not None and operation.path not in FOLLOWED:
            where = self._control.leader()
            raise NotLeading(
                f"The control plane at {where} leads: send it there."
                if where
                else "No control plane leads now; one will in a few seconds."
            )

    def _is_public(self, path: str) -> bool:
        return path in self._public or path.startswith(STATES)  # Terraform sends no bearer token

    async def _caller(self, scope: Scope) -> ControlCaller:
        caller: ControlCaller = scope.get(INSIDE) or await self._authenticated(scope)
        if not caller.rights:
            raise Forbidden("The token has no role at the control plane.")
        return caller

    async def _authenticated(self, scope: Scope) -> ControlCaller:
        token = given_token(scope["headers"])
        if token is None:
            raise Unauthorized("Send one header `Authorization: Bearer TOKEN`.")
        caller = await self._control.authenticate(token)
        if caller is None:
            raise Unauthorized("The token is wrong, or has expired.")
        return caller

    async def _refusal(
        self, scope: Scope, error: ControlError, caller: ControlCaller | None
    ) -> Response:
        """Return the answer of an error; a change that was denied is noted in the audit log."""
        is_denial = isinstance(error, Unauthorized | Forbidden | HiddenResource)
        if is_denial and scope["method"] in CHANGING:
            actor = NOBODY if caller is None else caller.actor
            note = self._control.denials.note
            await asyncio.to_thread(note, actor, scope["method"], scope["path"], error.message)
        return refusal(error)


def given_token(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the one bearer token of a request."""
    given = [value for name, value in headers if name == b"authorization"]
    scheme, _, credentials = (given[0] if len(given) == 1 else b"").decode("latin-1").partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else None
