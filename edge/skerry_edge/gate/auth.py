"""Authentication: the one check that every route passes, and the token that a request shows."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from skerry.errors import AuthenticationError, NotFound, PermissionDenied, RequestError
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.gate.principal import Principal
from skerry_edge.gate.tokens import TokenStore
from skerry_regions.access import ROLES
from skerry_regions.known_hosts import BINDING_HOST, MISDIRECTED, host_of, is_known_host

if TYPE_CHECKING:  # the `skerry tokens` command starts without the web framework
    from starlette.types import Scope

PROBES = frozenset({"/healthz", "/readyz"})  # which address a process, by whatever name
ACCOUNT_PATH = re.compile(  # also in a gateway's URL: /v1/{account}/{gateway}
    r"(?:(?:/client/v4)?/accounts/([^/]*)|/v1/([0-9a-f]{32}))(?:/|$)"
)


async def authenticated(scope: Scope, tokens: TokenStore, logins: Logins | None) -> Principal:
    """Return whose token a request over HTTP has: one of ours, or an issuer's.

    Wrong credentials raise `AuthenticationError` before anything about models or routes is looked
    up. A path that names an account other than the token's raises `NotFound`, like a path that
    does not exist. `Unavailable` says that an issuer's cannot be checked now.
    """
    token = bearer_token(scope["headers"])
    principal = None if token is None else tokens.authenticate(token)
    if principal is None and token is not None and logins is not None:
        principal = await logins.authenticate(token)
    if principal is None:
        raise AuthenticationError("Authentication error")
    check_account(scope["path"], principal)
    return principal


def check_host(scope: Scope, fields: Mapping[str, str], hosts: frozenset[str]) -> None:
    """Raise RequestError for a request to a name that is none of the edge's. A Worker's runtime
    has a name of its own for all, which is Cloudflare's: no page has it lead here."""
    if scope["path"] in PROBES:
        return
    host, own = fields.get("host", ""), (scope.get("server") or ("",))[0]
    if host != BINDING_HOST and not is_known_host(host, hosts, own):
        raise RequestError(f"This edge is not {host_of(host)[:253]!r}.", http_status=MISDIRECTED)


def check_scopes(scopes: tuple[str, ...], principal: Principal) -> None:
    """Raise PermissionDenied for a caller with none of these scopes or roles."""
    if principal.scopes.isdisjoint(scopes):
        is_role = scopes[0] in ROLES
        what = "a role, such as viewer" if is_role else f"the scope '{scopes[0]}'"
        raise PermissionDenied(f"This API token lacks {what}.")


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the token of a request: `Authorization: Bearer`, or where that is absent
    `cf-aig-authorization`, as gateways have it, or `x-api-key` as Anthropic's clients send.

    None when there is none or more than one of the header that counts.
    """
    fields = list(headers)
    given = [value for name, value in fields if name == b"authorization"] or [
        value for name, value in fields if name == b"cf-aig-authorization"
    ]
    if not given:
        keys = [value for name, value in fields if name == b"x-api-key"]
        return keys[0].decode("latin-1").strip() if len(keys) == 1 else None
    scheme, _, token = given[0].decode("latin-1").partition(" ")
    return token.strip() if len(given) == 1 and scheme.lower() == "bearer" else None


def check_account(path: str, principal: Principal) -> None:
    """Raise NotFound if `path` is under an account that is not the caller's."""
    match = ACCOUNT_PATH.match(path)
    if match is None:
        return
    named = match[2] if match[1] is None else match[1]
    if not hmac.compare_digest(named.encode(), principal.account_id.encode()):
        raise NotFound(
            f"Could not route to {path[:200]}, perhaps your object identifier is invalid?"
        )
