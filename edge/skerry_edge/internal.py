"""Calls that the edge makes of itself: a batch's items pass the same rim as everybody's requests.

A server builds scopes from what comes over the network and knows nothing of this key, so whatever
carries it was made here.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # `auth` needs this module, and the `skerry` command starts without starlette
    from starlette.types import Scope

    from skerry_edge.gate.auth import Principal

INSIDE = "skerry.inside"  # a scope's key

Priority = Literal["interactive", "batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideCall:
    """Who calls, under which request id, and how urgent it is."""

    request_id: str
    principal: Principal | None  # None: a token that was revoked
    priority: Priority


def inside_call(scope: Scope) -> InsideCall | None:
    """The call, if the edge made it itself."""
    call = scope.get(INSIDE)
    return call if isinstance(call, InsideCall) else None


def request_id_of(scope: Scope) -> str:
    """The id of a request: its own, if the edge gave it one before, else a new one."""
    call = inside_call(scope)
    return str(uuid.uuid4()) if call is None else call.request_id


def priority_of(scope: Scope) -> Priority:
    """How urgent a request is: whatever comes over the network is interactive."""
    call = inside_call(scope)
    return "interactive" if call is None else call.priority
