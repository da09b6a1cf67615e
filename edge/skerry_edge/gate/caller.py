"""The caller of a request: whose it is, how long it may take, where it may be computed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from skerry_edge.gate.inside import Priority
from skerry_edge.money.caps import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """One request's caller. Times are seconds on the edge's clock."""

    request_id: str
    tenant: str  # id of the account
    token: str = ""  # id of the API token, or the login
    budgets: tuple[Budget, ...] = ()  # of what the token and its ancestors may spend
    models: tuple[tuple[str, ...], ...] = ()  # patterns of what it may run; of each grant one
    cache_key: bytes = b""  # of the tenant's KV: see `Edge.cache_key`
    started: float
    deadline: float  # the whole answer is out by then
    begin_by: float = math.inf  # the caller waits no longer for the answer to begin
    residency: str | None = None  # zone that the request must not leave
    priority: Priority = "interactive"
    reject_if_busy: bool = False  # rather than wait for a place in an engine
    mixed_builds: bool = False  # consents to KV of another numeric build
    affinity: bytes = b""  # the session that the request belongs to
    pin_seconds: float = 0.0  # that its prompt stays cached
    wants_reasons: bool = False  # for the nodes that were chosen
