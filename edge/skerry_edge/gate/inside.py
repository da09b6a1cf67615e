"""Calls that the edge makes of itself: a batch's items, and requests over WebSockets, pass the same
rim as all requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from skerry_edge.gate.principal import Principal

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

Priority = Literal["interactive", "batch"]  # whatever comes over the network is interactive


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideCall:
    """The principal, request id and priority of a call from inside."""

    request_id: str
    principal: Principal | None  # None: a token that was revoked
    priority: Priority


Serve = Callable[["Scope", "Receive", "Send", InsideCall], Awaitable[None]]
"""The rim."""
