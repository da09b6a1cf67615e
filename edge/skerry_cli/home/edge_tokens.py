"""API tokens of the control plane: published to edges, and what its own callers show."""

from __future__ import annotations

import time
from functools import partial

from msgspec.structs import asdict

from skerry_cli.home.errors import raised_as
from skerry_edge.gate.principal import Principal
from skerry_edge.gate.token_file import (
    TokenRecord,
    TokenStoreError,
    digest_of,
    new_secret,
    token_text,
)
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.money.caps import Caps
from skerry_regions.access import SCOPES, Grant
from skerry_regions.control.api.access import ControlCaller
from skerry_regions.control.desired.resources import ApiTokenSpec
from skerry_regions.control.errors import Busy

_token_file = partial(raised_as, Busy, TokenStoreError)


class EdgeTokens:
    """`TokenPublisher`: the token file that this machine's edges follow. Raises Busy."""

    def __init__(self, tokens: TokenStore, account_id: str) -> None:
        self._tokens = tokens
        self._account_id = account_id

    def publish(self, id: str, secret_digest: str, spec: ApiTokenSpec, created_at: int) -> None:
        record = TokenRecord(
            id=id,
            digest=secret_digest,
            account_id=spec.account_id or self._account_id,
            name=spec.name,
            created_at=created_at,
            parent=spec.parent,
            **asdict(spec.grant),
        )
        with _token_file():
            self._tokens.keep(record)

    def stand_for(self, id: str, login: str, account_id: str, grant: Grant) -> None:
        record = TokenRecord(
            id=id,
            digest=digest_of(new_secret()),  # which is not known: it is no token to show
            account_id=account_id,
            name=login[:128],
            created_at=int(time.time()),
            **asdict(grant),
        )
        with _token_file():
            self._tokens.stand_for(record)

    def withdraw(self, id: str) -> None:
        with _token_file():
            self._tokens.revoke(id)

    def set_caps(self, id: str, spec: ApiTokenSpec) -> None:
        with _token_file():
            self._tokens.set_caps(id, Caps(per_day=spec.per_day, per_month=spec.per_month))

    def rotate(self, id: str, secret_digest: str, grace_seconds: int) -> bool:
        with _token_file():
            return self._tokens.rotate(id, secret_digest, grace_seconds=grace_seconds)

    def is_published(self, id: str) -> bool:
        with _token_file():
            return self._tokens.has(id)

    def text(self, id: str, secret: str) -> str:
        return token_text(id, secret)


def caller_of(principal: Principal, platform: str) -> ControlCaller:
    """Return an authenticated caller as the control plane sees one.

    Of caps the lowest of the token and its ancestors counts, of grants of models the token's own.
    That a login ends soon bounds nothing that it makes: `token_days` does.
    """
    caps = [budget.caps for budget in principal.budgets]
    return ControlCaller(
        id=principal.token_id,
        account_id=principal.account_id,
        grant=Grant(
            role=principal.role,
            scopes=tuple(scope for scope in SCOPES if scope in principal.scopes),
            residency=principal.residency,
            models=principal.models[0] if principal.models else None,
            per_day=min((cap.per_day for cap in caps if cap.per_day is not None), default=None),
            per_month=min(
                (cap.per_month for cap in caps if cap.per_month is not None), default=None
            ),
            expires_at=None if principal.login else principal.expires_at,
        ),
        is_platforms=principal.account_id == platform,
        login=principal.login,
        token_days=principal.token_days,
    )
