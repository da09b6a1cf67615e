"""The console as an ASGI application, beside the API: pages, logins, and the API for who logged in.

    /                            → /console/
    /console/…                   the shell, whatever the page
    /console/static/…            scripts and styles
    /console/login, …/logout     a session, by token or one-time code
    /console/issuers, …/oidc     a session, by a login at an OpenID provider
    /console/session             who is logged in, and what there is to call
    /console/live                what a page follows, as a stream of events
    /console/api/…               the edge's API, as the session's token

No route of the API takes the cookie, and none of the console a bearer token.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from skerry import __version__
from skerry.errors import (
    AuthenticationError,
    InvalidInput,
    NotFound,
    PermissionDenied,
    RequestError,
    SkerryError,
)
from skerry_edge.console.assets import Assets
from skerry_edge.console.codes import LoginCodes
from skerry_edge.console.live import Live
from skerry_edge.console.login import ConsoleLogin, cookie_in, cookie_of, keep_session
from skerry_edge.console.origin import SECURITY_HEADERS, check_own, is_shown
from skerry_edge.console.redirect import HOME, LOGIN_PATH, NO_STORE, Redirects, redirected
from skerry_edge.console.sessions import Session, Sessions
from skerry_edge.envelopes import JSONBytes, encode, known_error, retry_headers
from skerry_edge.gate.auth import check_account, check_scopes
from skerry_edge.gate.grants import may_run
from skerry_edge.gate.inside import InsideCall
from skerry_edge.gate.principal import Principal
from skerry_edge.generation.edge import Edge
from skerry_edge.limits import Limits
from skerry_edge.text.prompts import OPENAI_TEMPERATURE
from skerry_regions.access import ROLES
from skerry_regions.models.catalog import ModelSpec

API = "/console/api"
ROUTE = "/console"  # in metrics, of all that is not the API's
STREAM = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}
NOT_FORWARDED = frozenset({b"cookie", b"authorization", b"x-api-key", b"cf-aig-authorization"})

Answer = Callable[[Request], Awaitable[Response]]


class Serve(Protocol):
    """Answers a request of the API, which may be one that the edge makes of itself."""

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, inside: InsideCall | None = None
    ) -> None: ...


class Console:
    """The console of one edge. `serve` answers what is the API's."""

    def __init__(self, edge: Edge, serve: Serve, assets: Assets | None = None) -> None:
        self._edge = edge
        self._serve = serve
        self._assets = assets or Assets()
        self.sessions = Sessions(edge.tokens, edge.logins, edge.wall_clock)
        self.codes = LoginCodes(edge.secret, edge.traces.edge, edge.wall_clock)
        self._redirects = None if edge.logins is None else Redirects(edge.logins, edge.wall_clock)
        self.live = Live(edge.traces, edge.wall_clock, edge.is_ending)
        self._answers: dict[tuple[str, str], Answer] = {
            ("POST", "/console/login"): self._login,
            ("POST", "/console/logout"): self._logout,
            ("GET", "/console/session"): self._session,
            ("GET", "/console/issuers"): self._issuers,
            ("GET", "/console/live"): self._follow,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to `/` or below `/console`: as the API would, where the console is not
        shown to who sends it."""
        headers = Headers(scope=scope)
        if not is_shown(scope, headers, self._edge.console, self._edge.hosts):
            await self._serve(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            if scope["path"].startswith(f"{API}/"):
                await self._forward(request, send)
                return
            response = await self._answer(request)
        except ClientDisconnect:
            return
        except Exception as exc:
            response = _refusal(exc)
        response.headers.update(SECURITY_HEADERS)
        self._edge.metrics.http_requests.add(
            1, ROUTE, "GET" if request.method in ("GET", "HEAD") else "POST",
            str(response.status_code),
        )  # fmt: skip
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Raises what refuses the request."""
        path, method = request.url.path, request.method
        if (answer := self._answers.get((method, path))) is not None:
            check_own(request.scope, request.headers)
            return await answer(request)
        if method not in ("GET", "HEAD") or any(path == known for _, known in self._answers):
            raise NotFound("The console has no such page.")
        if path.startswith(LOGIN_PATH) and self._redirects is not None:
            return await redirected(self._redirects, self.sessions, request)
        if path in ("/", "/console"):
            return RedirectResponse(HOME, headers=NO_STORE)
        if (asset := self._assets.find(path)) is not None:
            return asset.answer(request.headers)
        if path.startswith("/console/static/") or not path.startswith(HOME):
            raise NotFound("The console has no such file; load the page again.")
        return self._assets.shell.answer(request.headers)

    async def _login(self, request: Request) -> Response:
        """Take an API token, a login of an issuer or a one-time code, and give a session."""
        given = await ConsoleLogin.of(request)
        principal = await self._authenticated(given)
        if principal is None:
            what = (
                "code is void: `skerry console` prints another" if given.code else "token is wrong"
            )
            raise AuthenticationError(f"This {what}.")
        response = self._session_answer(Session(principal, 0.0))
        keep_session(request, response, self.sessions.begin(principal))
        return response

    async def _issuers(self, request: Request) -> Response:
        """Return the names of issuers at which one can log in, to whoever asks."""
        names = [] if self._redirects is None else self._redirects.names
        return JSONBytes(encode({"issuers": names}), headers=NO_STORE)

    async def _authenticated(self, given: ConsoleLogin) -> Principal | None:
        if given.code:
            token_id = self.codes.take(given.code)
            return None if token_id is None else self._edge.tokens.principal(token_id)
        principal = self._edge.tokens.authenticate(given.token)
        if principal is None and self._edge.logins is not None:
            principal = await self._edge.logins.authenticate(given.token)
        return principal

    async def _logout(self, request: Request) -> Response:
        name, is_secure = cookie_of(request)
        self.sessions.end(cookie_in(request.headers, name))
        response = Response(status_code=204, headers=NO_STORE)
        response.delete_cookie(name, path="/", secure=is_secure, httponly=True, samesite="strict")
        return response

    async def _session(self, request: Request) -> Response:
        return self._session_answer(self.logged_in(request))

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

    def logged_in(self, request: Request) -> Session:
        """Return the session of a request. Raises AuthenticationError."""
        session = self.sessions.find(cookie_in(request.headers, cookie_of(request)[0]))
        if session is None:
            raise AuthenticationError("Log in: there is no session, or it is over.")
        return session

    def _session_answer(self, session: Session) -> Response:
        edge, principal = self._edge, session.principal
        served = [each for each in edge.served_specs() if may_run(each, principal.models)]
        told = {
            "account": principal.account_id,
            "holder": session.holder,
            "role": principal.role,
            "scopes": sorted(principal.scopes),
            "edge": edge.traces.edge,
            "version": __version__,
            "sees_platform": self._sees_platform(principal),
            "models": [_model(each, edge.limits) for each in served],
        }
        return JSONBytes(encode(told), headers=NO_STORE)

    async def _forward(self, request: Request, send: Send) -> None:
        """Have the API answer as it answers the session's token. Raises what refuses it."""
        check_own(request.scope, request.headers)
        session, scope = self.logged_in(request), request.scope
        path = scope["path"].removeprefix(API)
        check_account(path, session.principal)
        raw = scope.get("raw_path") or path.encode()
        inner = {
            **scope,
            "path": path,
            "raw_path": raw.removeprefix(API.encode()),
            "headers": [each for each in scope["headers"] if each[0] not in NOT_FORWARDED],
        }

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        call = InsideCall(
            request_id=str(uuid.uuid4()), principal=session.principal, priority="interactive"
        )
        await self._serve(inner, request.receive, send_safely, call)


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


def _refusal(exc: Exception) -> Response:
    error: SkerryError = known_error(exc, str(uuid.uuid4()))
    told = {"error": {"code": error.code, "message": error.message}}
    return JSONBytes(encode(told), error.http_status, headers=NO_STORE | retry_headers(error))
