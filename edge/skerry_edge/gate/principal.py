"""The principal of a call: an account, its scopes, and the budgets that it spends."""

from __future__ import annotations

import msgspec

from skerry_edge.money.caps import Budget
from skerry_regions.access import AccessRole

Scopes = frozenset[str]


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller. `account_id` is the tenant of caches, fairness and usage."""

    token_id: str
    account_id: str
    scopes: Scopes  # and the role: an operation requires one of them
    role: AccessRole | None = None
    budgets: tuple[Budget, ...] = ()  # of the token and its ancestors, where they have caps
    residency: str | None = None  # zone that its requests never leave
    models: tuple[tuple[str, ...], ...] = ()  # patterns: a model is among those of each
    expires_at: int | None = None  # Unix seconds
    login: str = ""  # `ISSUER:SUBJECT` of one whom an issuer vouches for; "": it is an API token
    token_days: int | None = None  # that API tokens last at most which a login makes
