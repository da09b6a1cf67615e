"""Who calls: an account, what they may do, and whose money they spend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from skerry_regions.access import AccessRole

Scopes = frozenset[str]
Payer = Literal["token", "ancestor", "account"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What may be spent. US$; None: as much as they like."""

    per_day: float | None = None  # UTC
    per_month: float | None = None

    @property
    def is_unlimited(self) -> bool:
        return self.per_day is None and self.per_month is None


UNCAPPED = Caps()


@dataclass(frozen=True, slots=True)
class Budget:
    """Caps, and of whom: of the token that calls, of one that it was made with, of the account."""

    id: str  # of the token or the account
    caps: Caps
    payer: Payer = "token"


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
