"""Requests that must not leave a zone: bound by their token, or by a header.

    x-skerry-residency: eu

An edge outside of the zone refuses with 421 before it reads the body: it has seen the head, and
what the client sent without waiting is thrown away unread. A header can bind a request of a free
token; it cannot move one whose token is bound.
"""

from __future__ import annotations

from collections.abc import Iterable

from skerry.errors import InvalidInput, PermissionDenied
from skerry_edge.gate.principal import Principal
from skerry_regions import zones as residency

HEADER = "x-skerry-residency"

_NAME = HEADER.encode()


def kept_zone(
    headers: Iterable[tuple[bytes, bytes]], principal: Principal, own_zone: str
) -> str | None:
    """Return the zone that a request is bound to; None is one that may go anywhere.

    Raises `ResidencyUnmet` where this edge, in its own zone, is in another one; besides, what
    `zone_of` raises.
    """
    bound = zone_of(headers, principal)
    residency.check(bound, own_zone, "this edge")
    return bound


def bound_by_geo(geo: str, bound: str | None, own_zone: str) -> str | None:
    """Return the zone that Anthropic's `inference_geo` binds a request to, which token and header
    bind to `bound`: one of that name, or with "global" none.

    Raises `InvalidInput` for what is no zone, or contradicts them, and `ResidencyUnmet` as
    `kept_zone` does.
    """
    if geo == bound or (geo == residency.GLOBAL and bound is None):
        return bound
    if not residency.is_zone(geo):
        raise InvalidInput(
            "Bad input: inference_geo must name one zone, such as `eu`, or be `global`",
            param="inference_geo",
        )
    if bound is not None:
        raise InvalidInput(
            f"Bad input: inference_geo: this request must stay in the zone {bound!r}",
            param="inference_geo",
        )
    residency.check(geo, own_zone, "this edge")
    return geo


def zone_of(headers: Iterable[tuple[bytes, bytes]], principal: Principal) -> str | None:
    """Return the zone that a request is bound to, by its token or a header.

    Raises `InvalidInput` for a header that names none, and `PermissionDenied` for one that
    contradicts the token.
    """
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
