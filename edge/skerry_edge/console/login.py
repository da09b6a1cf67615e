"""A login as a browser sends it, and the cookie that it gets."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from skerry.errors import BodyTooLarge, InvalidInput
from skerry_edge.console.sessions import SESSION_SECONDS

COOKIE = "skerry"
LOGIN_BYTES = 8 << 10  # of a login's body: tokens of issuers are a few thousand


class ConsoleLogin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a login: one of both."""

    token: str = ""
    code: str = ""

    @classmethod
    async def of(cls, request: Request) -> ConsoleLogin:
        """Read a request's body. Raises BodyTooLarge or InvalidInput."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LOGIN_BYTES:
                raise BodyTooLarge(f"The body of a login exceeds {LOGIN_BYTES} bytes.")
        try:
            return msgspec.json.decode(body, type=cls)
        except msgspec.DecodeError as error:
            raise InvalidInput(f"Bad input: {error}") from None


def cookie_of(request: Request) -> tuple[str, bool]:
    """Return a cookie's name, and whether it goes over TLS alone. In the clear the name has the
    port: browsers show a cookie to every port of a host."""
    if request.url.scheme == "https":
        return f"__Host-{COOKIE}", True
    server = request.scope.get("server")
    return f"{COOKIE}-{server[1] if server else 0}", False


def keep_session(request: Request, response: Response, secret: str) -> None:
    """Have the browser keep a session's cookie."""
    name, is_secure = cookie_of(request)
    response.set_cookie(
        name, secret, max_age=SESSION_SECONDS, path="/", secure=is_secure, httponly=True,
        samesite="strict",
    )  # fmt: skip


def cookie_in(headers: Headers, name: str) -> str:
    """Return what a cookie holds; nothing where there is none."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value
