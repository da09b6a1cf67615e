"""The console of an edge, beside its API: the playground, requests, regions, and what they follow.

    /console/live                what a page follows, as a stream of events

The rest is every console's (`site`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from skerry.errors import InvalidInput, PermissionDenied, RequestError
from skerry_edge.console.codes import LoginCodes
from skerry_edge.console.live import Live
from skerry_edge.console.sessions import Session
from skerry_edge.console.site import ConsoleSite
from skerry_edge.gate.auth import check_account, check_scopes
from skerry_edge.gate.grants import may_run
from skerry_edge.gate.inside import InsideCall
from skerry_edge.gate.principal import Principal
from skerry_edge.generation.edge import Edge
from skerry_edge.limits import Limits
from skerry_edge.text.prompts import OPENAI_TEMPERATURE
from skerry_regions.access import ROLES
from skerry_regions.models.catalog import ModelSpec

ROUTE = "/console"  # in metrics, of all that is not the API's
STREAM = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}


class Serve(Protocol):
    """Answers a request of the API, which may be one that the edge makes of itself."""

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, inside: InsideCall | None = None
    ) -> None: ...


class Console(ConsoleSite):
    """The console of one edge. `serve` answers what is the API's, and `describe` describes it."""

    site = "edge"

    def __init__(
        self,
        edge: Edge,
        serve: Serve,
        describe: Callable[[], Mapping[str, Any]],
    ) -> None:
        super().__init__(
            serve,
            describe,
            tokens=edge.tokens,
            logins=edge.logins,
            codes=LoginCodes(edge.secret, edge.traces.edge, edge.wall_clock),
            mode=edge.console,
            hosts=edge.hosts,
            clock=edge.wall_clock,
        )
        self._edge = edge
        self._serve = serve
        self.live = Live(edge.traces, edge.wall_clock, edge.is_ending)
        self.answers["GET", "/console/live"] = self._follow

    def told(self, session: Session) -> dict[str, Any]:
        edge, principal = self._edge, session.principal
        served = [each for each in edge.served_specs() if may_run(each, principal.models)]
        return {
            "edge": edge.traces.edge,
            "sees_platform": self._sees_platform(principal),
            "models": [_model(each, edge.limits) for each in served],
        }

    def elsewhere(self, session: Session) -> str:
        return self._edge.control() if self._sees_platform(session.principal) else ""

    async def serve_as(
        self, principal: Principal, scope: Scope, receive: Receive, send: Send
    ) -> None:
        check_account(scope["path"], principal)
        call = InsideCall(request_id=str(uuid.uuid4()), principal=principal, priority="interactive")
        await self._serve(scope, receive, send, call)

    def answered(self, method: str, status: int) -> None:
        method = "GET" if method in ("GET", "HEAD") else "POST"
        self._edge.metrics.http_requests.add(1, ROUTE, method, str(status))

    async def _follow(self, request: Request) -> Response:
        """Return what a page follows, as a stream. Raises PermissionDenied without a role, as
        traces want it, or without one of the platform's for what is the platform's."""
        view = request.query_params.get("view")
        if view not in ("requests", "regions"):
            raise InvalidInput("Bad input: view: expected `requests` or `regions`", param="view")
        principal = self.logged_in(request).principal
        self._check_view(view, principal)

        def is_welcome() -> bool:
            try:
                self._check_view(view, self.logged_in(request).principal)
            except RequestError:
                return False
            return True

        holder = principal.login or principal.token_id
        if view == "regions":
            frames = self.live.fleet(self._edge.fleet, holder, is_welcome)
        else:
            frames = self.live.requests(principal.account_id, holder, is_welcome)
        return StreamingResponse(frames, headers=STREAM)

    def _check_view(self, view: str, principal: Principal) -> None:
        check_scopes(ROLES, principal)
        if view == "regions" and not self._sees_platform(principal):
            raise PermissionDenied("Regions and nodes are for roles of the platform's account.")

    def _sees_platform(self, principal: Principal) -> bool:
        is_own = bool(self._edge.platform) and principal.account_id == self._edge.platform
        return principal.role == "operator" or (principal.role is not None and is_own)


def _model(spec: ModelSpec, limits: Limits) -> dict[str, Any]:
    """Return what a page needs to know of a model."""
    price = spec.price
    return {
        "id": spec.id,
        "task": spec.task,
        "context": spec.context_window,
        "bytes": spec.size,
        "max_tokens": spec.default_max_tokens or limits.default_max_tokens,
        "sampling": spec.sampling.resolved(OPENAI_TEMPERATURE),
        "capabilities": list(spec.capabilities),
        "price": [price.prompt, price.cached, price.output],
    }
