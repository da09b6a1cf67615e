"""`issuers.yaml`: whose logins count, and what their claims grant. No one's unless set.

    issuers:
      - name: acme                          # in logs and usage: `acme:SUBJECT`
        issuer: https://login.example.com/realms/acme
        audience: [skerry]
        grants:                             # the first one that fits
          - {when: {groups: operators}, account: platform, role: operator}
          - {when: {groups: research}, account: "0123456789abcdef0123456789abcdef",
             role: developer, models: ["@cf/meta/*"], per_day: 5}
          - {account_claim: skerry_account}

Mistakes are reported with file, line and key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from msgspec import Meta, Struct
from msgspec.structs import replace

from skerry_regions.access import (
    MAX_MODELS,
    SCOPES_OF,
    AccessRole,
    Dollars,
    Grant,
    ModelPattern,
    ScopeName,
    fault,
)
from skerry_regions.address import is_loopback
from skerry_regions.models import located_yaml
from skerry_regions.spec_types import Name
from skerry_regions.zones import Zone

PLATFORM = "platform"  # in place of the id of the platform's own account
ACCOUNT = re.compile(r"[0-9a-f]{32}")
MAX_ISSUERS = 16
Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"
]  # fmt: skip
"""Signatures with a public key, and no others: with HS256 that key would be a secret."""
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

ClaimName = Annotated[str, Meta(min_length=1, max_length=255)]
Url = Annotated[str, Meta(pattern=r"^https?://[^\s?#]+$", max_length=1024)]


class LoginGrant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What callers may do whose claims are as in `when`."""

    when: Annotated[dict[ClaimName, str | int | bool], Meta(max_length=16)] = {}
    account: Annotated[str, Meta(pattern=r"^(platform|[0-9a-f]{32})$")] | None = None
    account_claim: ClaimName | None = None  # that names the account; never the platform's own
    role: AccessRole | None = None
    scopes: Annotated[tuple[ScopeName, ...], Meta(max_length=4)] | None = None  # None: its role's
    models: Annotated[tuple[ModelPattern, ...], Meta(max_length=MAX_MODELS)] | None = None
    residency: Zone | None = None
    per_day: Dollars | None = None  # US$ of each subject in a UTC day …
    per_month: Dollars | None = None  # … and month
    token_days: Annotated[int, Meta(ge=1, le=3650)] = 90  # that API tokens last which they make

    @property
    def grant(self) -> Grant:
        """Return what the caller may do, in the words of API tokens."""
        return Grant(
            role=self.role,
            scopes=SCOPES_OF[self.role] if self.scopes is None else self.scopes,
            residency=self.residency,
            models=self.models,
            per_day=self.per_day,
            per_month=self.per_month,
        )

    def account_of(self, claims: Mapping[str, Any], platform: str) -> str | None:
        """Return the account of a caller whom this grant fits; None for everybody else."""
        if not all(_holds(claims, name, value) for name, value in self.when.items()):
            return None
        if self.account_claim is None:
            return self.account
        named = claim(claims, self.account_claim)
        is_account = isinstance(named, str) and ACCOUNT.fullmatch(named) is not None
        return str(named) if is_account and named != platform else None


class Issuer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An OpenID provider. Its keys are those of its discovery document, or at `jwks_url`."""

    name: Name
    issuer: Url  # exactly as in the claim `iss`
    audience: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...],
        Meta(min_length=1, max_length=16),
    ]
    client_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """Of the console, where one can log in by going to the issuer: a public client with PKCE."""
    jwks_url: Url | None = None
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = ALGORITHMS
    leeway_seconds: Annotated[int, Meta(ge=0, le=300)] = 30  # of clocks that differ
    refresh_seconds: Annotated[int, Meta(ge=1, le=86_400)] = 300  # between looks for other keys
    keep_seconds: Annotated[int, Meta(ge=0, le=7 * 86_400)] = 86_400
    """For which the keys of before count while the issuer does not answer."""
    grants: Annotated[tuple[LoginGrant, ...], Meta(min_length=1, max_length=1000)]

    def grant_of(self, claims: Mapping[str, Any], platform: str) -> tuple[str, LoginGrant] | None:
        """Return account and grant of a caller; None for whom no grant fits."""
        for grant in self.grants:
            if (account := grant.account_of(claims, platform)) is not None:
                return account, grant
        return None


class IssuerFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of `issuers.yaml`."""

    issuers: Annotated[tuple[Issuer, ...], Meta(max_length=MAX_ISSUERS)] = ()


def load_issuers(path: Path, platform: str) -> tuple[Issuer, ...]:
    """Read and check a file. No file: no issuers. Raises `YamlError`.

    `platform` is the id of the platform's own account, which the issuers name instead of
    "platform" from now on.
    """
    document = located_yaml.load_if_there(path, IssuerFile)
    found: list[Issuer] = []
    for i, issuer in enumerate(document.value.issuers):
        where = f"issuers[{i}]"
        for known in found:
            for field in ("name", "issuer"):
                if getattr(known, field) == getattr(issuer, field):
                    raise document.error(f"{where}.{field}", "is there twice")
        for field in ("issuer", "jwks_url"):
            url = getattr(issuer, field)
            if url is not None and not is_trustworthy(url):
                raise document.error(f"{where}.{field}", "needs https, but for loopback")
        if issuer.client_id is not None and issuer.client_id not in issuer.audience:
            raise document.error(f"{where}.client_id", "has to be in the audience, too")
        grants = []
        for j, grant in enumerate(issuer.grants):
            at = f"{where}.grants[{j}]"
            if (grant.account is None) == (grant.account_claim is None):
                raise document.error(f"{at}.account", "name one of account and account_claim")
            if grant.account == PLATFORM:
                grant = replace(grant, account=platform)
            if grant.role == "operator" and platform not in (grant.account, ""):
                raise document.error(f"{at}.role", "operators are of the account `platform`")
            if (wrong := fault(grant.grant)) is not None:
                raise document.error(f"{at}.{wrong.field}", wrong.message)
            grants.append(grant)
        found.append(replace(issuer, grants=tuple(grants)))
    return tuple(found)


def is_trustworthy(url: str) -> bool:
    """Return whether no one on the way can change what a URL answers."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name, or by its path: `realm_access.roles`. None where it is not."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _holds(claims: Mapping[str, Any], name: str, value: str | int | bool) -> bool:
    """Return whether a claim is a value, or a list that has it; `scope` is a list in a string."""
    found = claim(claims, name)
    if name == "scope" and isinstance(found, str):
        found = found.split()
    values = found if isinstance(found, list) else [found]
    return any(type(each) is type(value) and each == value for each in values)
