"""Logging in at an OpenID provider: the browser goes there, and comes back with a code.

    /console/oidc/ISSUER          → the issuer's own page, with state, nonce and challenge
    /console/oidc?code=…&state=…  the code becomes an ID token, and that a login

The authorization code flow of OpenID Connect Core 1.0 (3.1) with PKCE (RFC 7636), as a public
client. What was begun is bound to the browser by a cookie, and void after ten minutes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from skerry.errors import Unavailable
from skerry_edge.console.login import cookie_in, cookie_of, keep_session
from skerry_edge.console.sessions import Sessions
from skerry_edge.gate.oidc.issuers import Issuer
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.gate.principal import Principal
from skerry_edge.gate.token_file import digest_of

HOME = "/console/"
LOGIN_PATH = "/console/oidc"
NO_STORE = {"cache-control": "no-store"}
PENDING_SECONDS = 600
MAX_PENDING = 1024  # beyond, the oldest are void
SCOPE = "openid profile"

Reason = Literal["over", "denied", "away"]
"""It took too long, or another browser began it; it is denied; the issuer does not answer."""


class LoginRefused(Exception):
    """A login by redirect that comes to nothing."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """A login that has begun."""

    issuer: Issuer
    verifier: str
    nonce: str
    redirect_uri: str
    ends_at: float  # seconds


class Redirects:
    """Logins on their way, in memory. `clock` gives seconds. Lives on one event loop."""

    def __init__(self, logins: Logins, clock: Callable[[], float]) -> None:
        self._logins = logins
        self._clock = clock
        self._pending: OrderedDict[str, PendingLogin] = OrderedDict()  # by state, oldest first

    @property
    def names(self) -> list[str]:
        """Return the names of issuers at which one can log in."""
        return [each.name for each in self._logins.clients()]

    async def begin(self, name: str, redirect_uri: str) -> tuple[str, str]:
        """Return where the browser is to go, and what its cookie is to hold. Raises
        LoginRefused."""
        from skerry_edge.gate.oidc.issuer_keys import KeysError, fetch_endpoints

        issuer = next((each for each in self._logins.clients() if each.name == name), None)
        if issuer is None:
            raise LoginRefused("denied")
        try:
            endpoints = await asyncio.to_thread(fetch_endpoints, issuer)
        except KeysError:
            raise LoginRefused("away") from None
        secret, verifier, nonce = (secrets.token_urlsafe(32) for _ in range(3))
        end = self._clock() + PENDING_SECONDS
        self._pending[digest_of(secret)] = PendingLogin(issuer, verifier, nonce, redirect_uri, end)
        while len(self._pending) > MAX_PENDING:
            self._pending.popitem(last=False)
        query = {
            "response_type": "code",
            "client_id": issuer.client_id,
            "redirect_uri": redirect_uri,
            "scope": SCOPE,
            "state": digest_of(secret),
            "nonce": nonce,
            "code_challenge": _challenge(verifier),
            "code_challenge_method": "S256",
        }
        url = endpoints.authorization_endpoint
        return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}", secret

    async def finish(self, state: str, code: str, secret: str) -> Principal:
        """Return who logged in; `secret` is the cookie's. Raises LoginRefused."""
        if not hmac.compare_digest(state.encode(), digest_of(secret).encode()):
            raise LoginRefused("over")
        pending = self._pending.pop(state, None)
        if pending is None or pending.ends_at < self._clock():
            raise LoginRefused("over")
        if not code:  # the issuer says why in its own words, on its own page
            raise LoginRefused("denied")
        return await self._granted(pending, code)

    async def _granted(self, pending: PendingLogin, code: str) -> Principal:
        from skerry_edge.gate.oidc.issuer_keys import KeysError, fetch_endpoints, fetch_token
        from skerry_edge.gate.oidc.verification import nonce_of

        form = {
            "grant_type": "authorization_code",
            "code": code,
            "client_id": pending.issuer.client_id or "",
            "redirect_uri": pending.redirect_uri,
            "code_verifier": pending.verifier,
        }

        def exchanged() -> str:
            endpoints = fetch_endpoints(pending.issuer)
            return fetch_token(pending.issuer, endpoints.token_endpoint, form)

        try:
            token = await asyncio.to_thread(exchanged)
            principal = await self._logins.authenticate(token)
        except (KeysError, Unavailable):
            raise LoginRefused("away") from None
        if principal is None or nonce_of(token) != pending.nonce:
            raise LoginRefused("denied")
        return principal


async def redirected(redirects: Redirects, sessions: Sessions, request: Request) -> Response:
    """Answer a browser on its way to an issuer, or back: there, or to the pages."""
    name = f"{cookie_of(request)[0]}-oidc"
    issuer = request.url.path.removeprefix(LOGIN_PATH).lstrip("/")
    try:
        if issuer:
            url, secret = await redirects.begin(issuer, _back(request))
            response = RedirectResponse(url, 303, headers=NO_STORE)
            response.set_cookie(
                name, secret, max_age=PENDING_SECONDS, path="/",
                secure=request.url.scheme == "https", httponly=True, samesite="lax",
            )  # fmt: skip
            return response
        query = request.query_params
        principal = await redirects.finish(
            query.get("state", ""), query.get("code", ""), cookie_in(request.headers, name)
        )
    except LoginRefused as refusal:
        return RedirectResponse(f"{HOME}#refused={refusal.reason}", 303, headers=NO_STORE)
    response = RedirectResponse(HOME, 303, headers=NO_STORE)
    keep_session(request, response, sessions.begin(principal))
    response.delete_cookie(name, path="/", secure=request.url.scheme == "https", httponly=True)
    return response


def _back(request: Request) -> str:
    """Return where the issuer is to send the browser: the name by which it came."""
    return f"{request.url.scheme}://{request.headers.get('host', '')}{LOGIN_PATH}"


def _challenge(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
