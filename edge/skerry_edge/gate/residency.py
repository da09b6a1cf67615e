"""Requests that must not leave a zone: bound by their token, or by a header.

    x-skerry-residency: eu

An edge outside of the zone refuses with 421 before it reads the body: it has seen the head, and
what the client sent without waiting is thrown away unread. A header can bind a request of a free
token; it cannot move one whose token is bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from skerry.errors import InvalidInput, PermissionDenied
from skerry_edge.gate.auth import Principal
from skerry_regions import zones as residency

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

HEADER = "x-skerry-residency"

_NAME = HEADER.encode()


class KeepResidency:
    """ASGI middleware behind `Authenticate`: puts the request's zone into `scope["residency"]`.

    None is a request that may go anywhere. Raises `ResidencyUnmet` where this edge is in another
    zone, `InvalidInput` for a header that names none, and `PermissionDenied` for one that
    contradicts the token.
    """

    def __init__(self, app: ASGIApp, zone: str) -> None:
        self._app = app
        self._zone = zone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = scope.get("principal")
        if isinstance(principal, Principal):
            bound = zone_of(scope["headers"], principal)
            residency.check(bound, self._zone, "this edge")
            scope["residency"] = bound
        await self._app(scope, receive, send)


def zone_of(headers: Iterable[tuple[bytes, bytes]], principal: Principal) -> str | None:
    """The zone that a request is bound to. Raises as `KeepResidency`."""
    given = {value.decode("latin-1") for name, value in headers if name == _NAME}
    if not given:
        return principal.residency
    zone = given.pop()
    if given or not residency.is_zone(zone):
        raise InvalidInput(f"Bad input: {HEADER} must name one zone, such as `eu`", param=HEADER)
    if principal.residency not in (None, zone):
        raise PermissionDenied(
            f"This API token's requests must stay in the zone {principal.residency!r}."
        )
    return zone
