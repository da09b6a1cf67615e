"""What the holder of an API token may do: scopes at edges, a role at the control plane, and bounds.

A token can be made by another one. What is made is never more than what it was made with: a smaller
role, fewer scopes and models, the same zone, a lower cap, an earlier end (`excess`). What is not
said of it, it has of its ancestors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from skerry_regions.zones import Zone

MAX_DOLLARS = 1e9  # of a cap
MAX_MODELS = 64  # patterns of one token
MAX_ANCESTORS = 8

ScopeName = Literal["run", "read", "steer", "metrics"]
AccessRole = Literal["viewer", "developer", "operator"]
StoredScope = Literal["run", "read", "steer", "metrics", "admin"]
"""With `admin`, which versions up to 0.1 had in place of roles; taken on input until 0.3."""
Dollars = Annotated[float, Meta(ge=0.0, le=MAX_DOLLARS)]
ModelPattern = Annotated[str, Meta(pattern=r"^[^*\s]{1,255}$|^[^*\s]{0,255}\*$")]
"""The id or an alias of a model, or the beginning of some with `*` behind it."""

SCOPES: tuple[ScopeName, ...] = get_args(ScopeName)
ROLES: tuple[AccessRole, ...] = get_args(AccessRole)  # from least to most
SCOPES_OF: dict[AccessRole | None, tuple[ScopeName, ...]] = {
    "viewer": ("read",),
    "developer": ("run", "read"),
    "operator": ("run", "read"),
    None: ("run", "read"),
}
"""Of a token that says nothing of its scopes, by its role."""


class Grant(Struct, frozen=True, kw_only=True):
    """What a token may do."""

    role: AccessRole | None = None  # None: the control plane refuses it
    scopes: tuple[ScopeName, ...] = SCOPES_OF[None]
    residency: Zone | None = None  # that its requests never leave
    models: tuple[ModelPattern, ...] | None = None  # that it may run; None: all
    per_day: float | None = None  # US$ of a UTC day; None: no cap of its own
    per_month: float | None = None  # … and month
    expires_at: int | None = None  # Unix seconds

    @property
    def is_bounded(self) -> bool:
        """Return whether the holder could make themselves more than they are with another's
        token."""
        bounds = (self.residency, self.models, self.per_day, self.per_month, self.expires_at)
        return self.role != "operator" or any(bound is not None for bound in bounds)


class Fault(Struct, frozen=True):
    """A field of a grant, and what is wrong with it."""

    field: str
    message: str


def role_of_admin(account_id: str, platform: str) -> AccessRole:
    """Return what a token of the former scope `admin` is: an operator in the platform's account."""
    return "operator" if account_id == platform else "developer"


def fault(grant: Grant) -> Fault | None:
    """Return what cannot be of a grant by itself."""
    if not grant.scopes and grant.role is None:
        return Fault("scopes", "a token without a role and without a scope may do nothing")
    if grant.role == "viewer" and "run" in grant.scopes:
        return Fault("scopes", "a viewer reads: make it a developer, or leave 'run' out")
    if grant.models is not None and not 0 < len(grant.models) <= MAX_MODELS:
        return Fault("models", f"name 1 to {MAX_MODELS} models, or leave it out for all of them")
    return None


def excess(grant: Grant, maker: Grant) -> Fault | None:
    """Return what of a grant is more than that of the token which it is made with."""
    if rank(grant.role) > rank(maker.role):
        return Fault("role", f"the role {grant.role} is above that of your own token")
    beyond = sorted(set(grant.scopes) - set(maker.scopes))
    if beyond and maker.role != "operator":
        return Fault("scopes", f"your own token lacks the scope {beyond[0]!r}")
    if maker.residency is not None and grant.residency not in (None, maker.residency):
        return Fault("residency", f"your own token is bound to the zone {maker.residency!r}")
    if maker.models is not None and grant.models is not None:
        for pattern in grant.models:
            if not any(_covers(known, pattern) for known in maker.models):
                return Fault("models", f"your own token may not run {pattern!r}")
    for period in ("per_day", "per_month"):
        cap, asked = getattr(maker, period), getattr(grant, period)
        if cap is not None and asked is not None and asked > cap:
            return Fault(period, f"your own token may spend US$ {cap:g} {period.replace('_', ' ')}")
    if maker.expires_at is not None and (grant.expires_at or 0) > maker.expires_at:
        return Fault("expires_at", "your own token ends before that")
    return None


def rank(role: AccessRole | None) -> int:
    """Return how much a role may do, as a number that can be compared."""
    return -1 if role is None else ROLES.index(role)


def allows_model(patterns: Iterable[str], names: Iterable[str]) -> bool:
    """Return whether a model of these names, its id and its aliases, is among the patterns."""
    names = tuple(names)
    return any(_covers(pattern, name) for pattern in patterns for name in names)


def _covers(pattern: str, name: str) -> bool:
    """Return whether it covers `name`, which may be a pattern, too."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
