"""Caps, and whose they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
