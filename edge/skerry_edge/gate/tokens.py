"""The API tokens of a platform: made, bounded, rotated, revoked, and whom each stands for.

A token that was made with another one is its child. It works as long as all its ancestors do, and
has their zone and their models beside its own; what it spends counts against the caps of each. The
file is read again when it changes, so a revoked token stops working at its next request.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from skerry_edge.gate.principal import Principal
from skerry_edge.gate.token_file import (
    ACCOUNT_ID,
    PREFIX,
    TokenRecord,
    TokenRecords,
    digest_of,
    new_secret,
    token_text,
)
from skerry_edge.money.caps import UNCAPPED, Budget, Caps
from skerry_regions.access import (
    MAX_ANCESTORS,
    MAX_DOLLARS,
    SCOPES,
    SCOPES_OF,
    AccessRole,
    ScopeName,
    excess,
    fault,
    rank,
    role_of_admin,
)
from skerry_regions.zones import is_zone

MAX_TOKEN_LENGTH = 256
FORGET_SECONDS = 7 * 86_400  # after a token has expired


class TokenStore:
    """The tokens of one home, or of all homes that share them."""

    def __init__(
        self, kept: Path | TokenRecords, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Read the records, or a file of them if it exists; `clock` gives Unix seconds. Raises
        TokenStoreError."""
        self._records = TokenRecords(kept) if isinstance(kept, Path) else kept
        self._known: dict[str, Principal] = {}  # by token id, of these records:
        self._known_of: Mapping[str, TokenRecord] | None = None
        self._clock = clock

    def create(
        self,
        *,
        account_id: str,
        name: str = "",
        role: AccessRole | None = None,
        scopes: tuple[ScopeName, ...] | None = None,
        caps: Caps = UNCAPPED,
        residency: str | None = None,
        models: tuple[str, ...] | None = None,
        expires_at: int | None = None,
        parent: str | None = None,
        now: int,
    ) -> tuple[str, TokenRecord]:
        """Add a token and return it with its record. The token itself is not kept: show it once.

        Without `scopes` it has those of its role. Raises ValueError for what a record cannot be,
        or for more than its parent is, or TokenStoreError.
        """
        if not ACCOUNT_ID.fullmatch(account_id):
            raise ValueError(f"an account id is 32 lower-case hex digits, got {account_id!r}")
        scopes = SCOPES_OF[role] if scopes is None else scopes
        if set(scopes) - set(SCOPES):
            raise ValueError(f"scopes are {', '.join(SCOPES)}; got {', '.join(scopes)}")
        if residency is not None and not is_zone(residency):
            raise ValueError(f"a zone is a name such as `eu`, got {residency!r}")
        secret = new_secret()
        record = TokenRecord(
            id=secrets.token_hex(8),
            digest=digest_of(secret),
            account_id=account_id,
            name=name,
            role=role,
            scopes=scopes,
            residency=residency,
            models=models,
            created_at=now,
            expires_at=expires_at,
            parent=parent,
            per_day=_checked_cap(caps.per_day),
            per_month=_checked_cap(caps.per_month),
        )
        if (found := fault(record.grant)) is not None:
            raise ValueError(found.message)
        with self._records.changing() as records:
            if parent is not None:
                self._check_parent(record, records)
            records[record.id] = record
        return token_text(record.id, secret), record

    def keep(self, record: TokenRecord) -> None:
        """Add a token whose secret was drawn elsewhere, or replace its record.

        The zone, the caps and the rotated secret of one that is there stay as they were set here.
        """
        with self._records.changing() as records:
            if (known := records.get(record.id)) is not None:
                record = msgspec.structs.replace(
                    record,
                    residency=known.residency,
                    per_day=known.per_day,
                    per_month=known.per_month,
                )
            records[record.id] = record
            _forget_expired(records, self._clock())

    def stand_for(self, record: TokenRecord) -> None:
        """Keep what a login is granted now, as the parent of the tokens that it makes."""
        with self._records.changing() as records:
            known = records.get(record.id, record)
            records[record.id] = msgspec.structs.replace(
                record, digest=known.digest, created_at=known.created_at
            )

    def revoke(self, token_id: str) -> int:
        """Forget a token at once, and all that were made with it; return how many there were."""
        with self._records.changing() as records:
            gone = [id for id in records if id == token_id or token_id in _above(id, records)]
            for id in gone:
                del records[id]
            return len(gone)

    def rotate(self, token_id: str, digest: str, *, grace_seconds: int = 0) -> bool:
        """Give a token another secret, of this digest; the one of before works that much longer.

        Its id, its bounds and its children stay. Returns False if there is none of that id.
        """
        now = int(self._clock())
        with self._records.changing() as records:
            record = records.get(token_id)
            if record is None:
                return False
            former = record.digest if grace_seconds else None
            records[token_id] = msgspec.structs.replace(
                record, digest=digest, former_digest=former, former_until=now + grace_seconds
            )
            return True

    def set_caps(self, token_id: str, caps: Caps) -> bool:
        """Change what a token may spend. False if there is none of that id. Raises ValueError."""
        per_day, per_month = _checked_cap(caps.per_day), _checked_cap(caps.per_month)
        with self._records.changing() as records:
            record = records.get(token_id)
            if record is None:
                return False
            records[token_id] = msgspec.structs.replace(
                record, per_day=per_day, per_month=per_month
            )
            return True

    def give_roles(self, platform: str) -> int:
        """Replace the scope `admin` of earlier versions by roles; return of how many tokens.

        `platform` is the platform's own account, whose admins become operators.
        """
        with self._records.changing() as records:
            found = [each for each in records.values() if "admin" in each.scopes]
            for record in found:
                role = record.role or role_of_admin(record.account_id, platform)
                kept = tuple(each for each in record.scopes if each != "admin")
                records[record.id] = msgspec.structs.replace(record, role=role, scopes=kept)
            return len(found)

    def is_live(self, token_id: str) -> bool:
        """Return whether the token works now."""
        return self.principal(token_id) is not None

    def principal(self, token_id: str) -> Principal | None:
        """Return whom a token stands for now. None when it was revoked or has expired."""
        return self._principal(self._records.last_good(), token_id)

    def records(self) -> list[TokenRecord]:
        """Return every token's record, oldest first."""
        return list(self._records.read().values())

    def has(self, token_id: str) -> bool:
        """Return whether there is a record of it, expired or not. Raises TokenStoreError."""
        return token_id in self._records.read()

    def authenticate(self, token: str) -> Principal | None:
        """Return whose token this is, or None. Takes equally long for every wrong token of a known
        id."""
        if len(token) > MAX_TOKEN_LENGTH:
            return None
        records = self._records.last_good()
        prefix, _, rest = token.partition("_")
        token_id, _, secret = rest.partition("_")
        record = records.get(token_id) if prefix == PREFIX else None
        if record is None:
            digest_of(secret)  # as long as for one that is known
            return None
        if not record.is_proven_by(secret, self._clock()):
            return None
        return self._principal(records, token_id)

    def _principal(self, records: Mapping[str, TokenRecord], token_id: str) -> Principal | None:
        """Return whom a token stands for. Worked out once, until the records change, or one of
        those that it follows from expires."""
        if records is not self._known_of:
            self._known_of, self._known = records, {}
        known = self._known.get(token_id)
        if known is None or (known.expires_at is not None and known.expires_at <= self._clock()):
            known = self._worked_out(records, token_id)
            if known is not None:
                self._known[token_id] = known
        return known

    def _worked_out(self, records: Mapping[str, TokenRecord], token_id: str) -> Principal | None:
        lineage = self._lineage(records, token_id)
        if lineage is None:
            return None
        record = lineage[0]
        grant = record.grant
        role = min(lineage, key=lambda each: rank(each.grant.role)).grant.role
        return Principal(
            token_id=record.id,
            account_id=record.account_id,
            scopes=frozenset(grant.scopes) | ({role} if role is not None else set()),
            role=role,
            budgets=tuple(
                Budget(each.id, each.caps, "token" if each is record else "ancestor")
                for each in lineage
                if not each.caps.is_unlimited
            ),
            residency=next((each.residency for each in lineage if each.residency), None),
            models=tuple(each.models for each in lineage if each.models is not None),
            expires_at=min((each.expires_at for each in lineage if each.expires_at), default=None),
        )

    def _lineage(
        self, records: Mapping[str, TokenRecord], token_id: str
    ) -> list[TokenRecord] | None:
        """Return a token and its ancestors, nearest first; None where one of them works no more."""
        found: list[TokenRecord] = []
        next_id: str | None = token_id
        while next_id is not None:
            record = records.get(next_id)
            if record is None or record.is_expired(self._clock()) or len(found) > MAX_ANCESTORS:
                return None
            found.append(record)
            next_id = record.parent
        return found

    def _check_parent(self, record: TokenRecord, records: Mapping[str, TokenRecord]) -> None:
        """Raises ValueError."""
        lineage = self._lineage(records, record.parent or "")
        if lineage is None or lineage[0].account_id != record.account_id:
            raise ValueError(f"there is no token {record.parent} of this account that works")
        if len(lineage) > MAX_ANCESTORS:
            raise ValueError(f"a token has at most {MAX_ANCESTORS} ancestors")
        for ancestor in lineage:
            if (found := excess(record.grant, ancestor.grant)) is not None:
                raise ValueError(f"more than the token {ancestor.id} is: {found.message}")


def _above(token_id: str, records: Mapping[str, TokenRecord]) -> list[str]:
    """Return ids of a token's ancestors."""
    found: list[str] = []
    record = records.get(token_id)
    while record is not None and record.parent is not None and record.parent not in found:
        found.append(record.parent)
        record = records.get(record.parent)
    return found


def _forget_expired(records: dict[str, TokenRecord], now: float) -> None:
    for record in [each for each in records.values() if each.is_expired(now - FORGET_SECONDS)]:
        del records[record.id]


def _checked_cap(dollars: float | None) -> float | None:
    if dollars is not None and not 0.0 <= dollars <= MAX_DOLLARS:
        raise ValueError(f"a cap is between 0 and {MAX_DOLLARS:g} US$, got {dollars}")
    return dollars
