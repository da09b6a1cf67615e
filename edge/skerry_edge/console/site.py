"""What every console is, whoever serves it: pages, logins, sessions, and an API behind them.

    /                            → /console/
    /console/…                   the shell, whatever the page
    /console/static/…            scripts and styles
    /console/login, …/logout     a session, by token or one-time code
    /console/issuers, …/oidc     a session, by a login at an OpenID provider
    /console/session             who is logged in, and what there is to see
    /docs                        → /console/docs
    /console/docs…               docs, and the reference of the API: for whoever sees the console
    /console/api/…               the API of whoever serves it, as the session's token

No route of an API takes the cookie, and none of a console a bearer token.
"""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Literal

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skerry import __version__
from skerry.errors import AuthenticationError, NotFound, SkerryError
from skerry_edge.console.assets import Assets
from skerry_edge.console.codes import LoginCodes
from skerry_edge.console.docs import Docs
from skerry_edge.console.login import ConsoleLogin, cookie_in, cookie_of, keep_session
from skerry_edge.console.markdown import PATH as DOCS
from skerry_edge.console.origin import SECURITY_HEADERS, check_own, is_shown, leads_there
from skerry_edge.console.redirect import HOME, LOGIN_PATH, NO_STORE, Redirects, redirected
from skerry_edge.console.sessions import Session, Sessions
from skerry_edge.envelopes import JSONBytes, encode, known_error, retry_headers
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.gate.principal import Principal
from skerry_edge.gate.tokens import TokenStore
from skerry_regions.spec_types import ConsoleMode

API = "/console/api"
NOT_FORWARDED = frozenset({b"cookie", b"authorization", b"x-api-key", b"cf-aig-authorization"})

Answer = Callable[[Request], Awaitable[Response]]


class ConsoleSite(ABC):
    """A console as an ASGI application."""

    site: ClassVar[Literal["edge", "control"]]  # whose pages it has

    def __init__(
        self,
        app: ASGIApp,
        describe: Callable[[], Mapping[str, Any]],
        *,
        tokens: TokenStore,
        logins: Logins | None,
        codes: LoginCodes,
        mode: ConsoleMode,
        hosts: frozenset[str],
        clock: Callable[[], float],
    ) -> None:
        """`app` answers what is not the console's, and `describe` returns the OpenAPI document of
        its API. `hosts` are names that it answers to, where `mode` is `on`. `clock` gives Unix
        seconds."""
        self._app = app
        self._tokens = tokens
        self._logins = logins
        self._codes = codes
        self._mode: ConsoleMode = mode
        self._hosts = hosts
        self._assets = Assets()
        self._shell = self._assets.shell(self.site)
        self._docs = Docs(self._assets, self.site, describe)
        self._redirects = None if logins is None else Redirects(logins, clock)
        self.sessions = Sessions(tokens, logins, clock)
        self.answers: dict[tuple[str, str], Answer] = {
            ("POST", "/console/login"): self._login,
            ("POST", "/console/logout"): self._logout,
            ("GET", "/console/session"): self._session,
            ("GET", "/console/issuers"): self._issuers,
        }

    # --- what is its server's --------------------------------------------------------------------

    @abstractmethod
    def told(self, session: Session) -> dict[str, Any]:
        """Return what a page needs to know of who is logged in, and of what there is."""

    @abstractmethod
    def elsewhere(self, session: Session) -> str:
        """Return where the platform's other console is, an edge's or the control plane's; empty
        where that is not known, or nothing for who is logged in."""

    @abstractmethod
    async def serve_as(
        self, principal: Principal, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Have the API answer as it answers a token. Raises what refuses it."""

    @abstractmethod
    def answered(self, method: str, status: int) -> None:
        """Count an answer of the console itself."""

    # --- what is alike ---------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to what is the console's; others, and those of whom it is not shown to,
        as the API would."""
        path = scope.get("path", "")
        is_own = path in ("/", "/docs") or path.startswith(("/console", "/docs/"))
        if not (is_own and is_shown(scope, Headers(scope=scope), self._mode, self._hosts)):
            await self._app(scope, receive, send)
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
        self.answered(request.method, response.status_code)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Raises what refuses the request."""
        path, method = request.url.path, request.method
        if (answer := self.answers.get((method, path))) is not None:
            check_own(request.scope, request.headers)
            return await answer(request)
        if method not in ("GET", "HEAD") or any(path == known for _, known in self.answers):
            raise NotFound("The console has no such page.")
        if path.startswith(LOGIN_PATH) and self._redirects is not None:
            return await redirected(self._redirects, self.sessions, request)
        if path in ("/", "/console"):
            return RedirectResponse(HOME, headers=NO_STORE)
        if path.startswith("/docs"):
            return RedirectResponse(f"/console{path}", headers=NO_STORE)
        if path == DOCS or path.startswith(f"{DOCS}/"):
            query = request.query_params.get("q", "")
            page = await asyncio.to_thread(self._docs.find, path, query)
            return page.answer(request.headers)
        if (asset := self._assets.find(path)) is not None:
            return asset.answer(request.headers)
        if path.startswith("/console/static/") or not path.startswith(HOME):
            raise NotFound("The console has no such file; load the page again.")
        return self._shell.answer(request.headers)

    async def _login(self, request: Request) -> Response:
        """Take an API token, a login of an issuer or a one-time code, and give a session."""
        given = await ConsoleLogin.of(request)
        principal = await self._authenticated(given)
        if principal is None:
            what = (
                "code is void: `skerry console` prints another" if given.code else "token is wrong"
            )
            raise AuthenticationError(f"This {what}.")
        response = self._session_answer(Session(principal, 0.0), request)
        keep_session(request, response, self.sessions.begin(principal))
        return response

    async def _issuers(self, request: Request) -> Response:
        """Return the names of issuers at which one can log in, to whoever asks."""
        names = [] if self._redirects is None else self._redirects.names
        return JSONBytes(encode({"issuers": names}), headers=NO_STORE)

    async def _authenticated(self, given: ConsoleLogin) -> Principal | None:
        if given.code:
            token_id = self._codes.take(given.code)
            return None if token_id is None else self._tokens.principal(token_id)
        principal = self._tokens.authenticate(given.token)
        if principal is None and self._logins is not None:
            principal = await self._logins.authenticate(given.token)
        return principal

    async def _logout(self, request: Request) -> Response:
        name, is_secure = cookie_of(request)
        self.sessions.end(cookie_in(request.headers, name))
        response = Response(status_code=204, headers=NO_STORE)
        response.delete_cookie(name, path="/", secure=is_secure, httponly=True, samesite="strict")
        return response

    async def _session(self, request: Request) -> Response:
        return self._session_answer(self.logged_in(request), request)

    def logged_in(self, request: Request) -> Session:
        """Return the session of a request. Raises AuthenticationError."""
        session = self.sessions.find(cookie_in(request.headers, cookie_of(request)[0]))
        if session is None:
            raise AuthenticationError("Log in: there is no session, or it is over.")
        return session

    def _session_answer(self, session: Session, request: Request) -> Response:
        elsewhere = self.elsewhere(session)
        told = {
            "account": session.principal.account_id,
            "holder": session.holder,
            "role": session.principal.role,
            "scopes": sorted(session.principal.scopes),
            "version": __version__,
            "elsewhere": elsewhere if leads_there(elsewhere, request.headers) else "",
        }
        return JSONBytes(encode(told | self.told(session)), headers=NO_STORE)

    async def _forward(self, request: Request, send: Send) -> None:
        """Have the API answer as it answers the session's token. Raises what refuses it."""
        check_own(request.scope, request.headers)
        session, scope = self.logged_in(request), request.scope
        path = scope["path"].removeprefix(API)
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

        await self.serve_as(session.principal, inner, request.receive, send_safely)


def _refusal(exc: Exception) -> Response:
    error: SkerryError = known_error(exc, str(uuid.uuid4()))
    told = {"error": {"code": error.code, "message": error.message}}
    return JSONBytes(encode(told), error.http_status, headers=NO_STORE | retry_headers(error))
