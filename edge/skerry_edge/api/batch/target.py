"""The operation that a batch's items are sent to, and the headers that go with each."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from skerry.errors import PermissionDenied
from skerry_edge.api.edge_request import EdgeRequest
from skerry_edge.gate.principal import Principal
from skerry_edge.gate.residency import HEADER as RESIDENCY_HEADER
from skerry_regions.queue import BatchRecord

# Where and how a request may be computed, which its tenant decided when it was submitted.
KEPT_HEADERS = ("x-skerry-mixed-builds", "x-session-affinity")


class Target(Struct, frozen=True):
    """A path of this edge, and headers."""

    path: str
    headers: dict[str, str] = {}


class Bound(Struct):
    """What the `meta` of a batch says of it, among other things."""

    residency: str | None = None


_decoder = msgspec.json.Decoder(Target)
_bound_decoder = msgspec.json.Decoder(Bound)


def target_of(request: EdgeRequest, path: str, *, residency: str | None) -> str:
    """Return the target of items submitted by `request`, as the queue keeps it.

    Bound to a zone, `residency`, or to none.
    """
    headers = {
        name: value for name in KEPT_HEADERS if (value := request.headers.get(name)) is not None
    }
    if residency is not None:
        headers[RESIDENCY_HEADER] = residency
    return msgspec.json.encode(Target(path, headers)).decode()


def lasting_token(principal: Principal) -> str:
    """Return the id of the token in whose name items run, also when the caller is long gone.

    Raises `PermissionDenied` for a login, which no one can check again then.
    """
    if principal.login:
        raise PermissionDenied(
            "What is queued runs when a login has ended: send it with an API token."
        )
    return principal.token_id


def zone_of(record: BatchRecord) -> str | None:
    """Return the zone that a batch is bound to, by what its `meta` says; None: to none."""
    return _bound_decoder.decode(record.meta).residency if record.meta else None


def decode_target(text: str) -> Target:
    return _decoder.decode(text)
