"""Join tokens: with one a machine becomes part of the platform, once.

A token is `skjoin_<id>_<fingerprint>_<secret>`. The id finds its record; the secret, 256 random
bits of which only SHA-256 is stored, proves it; the fingerprint is that of the control plane's
authority, so that the machine knows whom it speaks to before it sends the secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.desired.resources import Id
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.validation import converted
from skerry_regions.control.desired.views import rfc3339
from skerry_regions.control.desired.writing import Writing, as_new
from skerry_regions.control.errors import Conflict, Invalid, Unauthorized, UnknownResource
from skerry_regions.spec_types import Name

KIND = "join_token"
PREFIX = "skjoin"
TEXT = re.compile(rf"{PREFIX}_([0-9a-f]{{16}})_([0-9a-f]{{64}})_([A-Za-z0-9_-]{{43}})")
MAX_TOKENS = 10_000
MAX_USES = 10_000

JoinRole = Literal["prefill", "decode", "hybrid", "edge", "host"]
Select = Callable[[str, tuple[Any, ...]], list[Any]]
"""An SQL statement and its values to its rows."""


class JoinTokenSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may join with the token: a node of one pool, or nodes, edges and hosts of a region."""

    pool: Id | None = None
    region: Name | None = None
    roles: Annotated[tuple[JoinRole, ...], Meta(max_length=5)] = ()  # in a region; none: all
    max_uses: Annotated[int, Meta(ge=1, le=MAX_USES)] = 1
    expires_in_seconds: Annotated[float, Meta(gt=0, le=30 * 86_400)] = 3600.0
    name: Annotated[str, Meta(max_length=128)] = ""  # what it is for


class JoinToken(Struct, frozen=True, kw_only=True):
    """A token as it is shown. `secret`, the token itself, is in the answer to its creation only."""

    id: str
    name: str
    pool: str | None
    region: str | None
    roles: tuple[JoinRole, ...]
    max_uses: int
    uses: int
    created_at: str  # RFC 3339, UTC
    expires_at: str
    is_usable: bool
    secret: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class ParsedToken:
    """What a machine finds in a token's text."""

    id: str
    fingerprint: str
    secret: str


def parse(text: str) -> ParsedToken:
    """Raises ValueError."""
    match = TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"a join token looks like {PREFIX}_<id>_<fingerprint>_<secret>")
    return ParsedToken(*match.groups())


@dataclass(frozen=True, slots=True)
class StoredJoinToken:
    """A token as it is stored. Times are Unix seconds."""

    id: str
    digest: str
    spec: JoinTokenSpec
    uses: int
    created_at: float
    expires_at: float


class JoinTokens:
    """The tokens of one store. Methods block for milliseconds: call them on a thread."""

    def __init__(self, store: Store, secret: bytes, fingerprint: str) -> None:
        """`secret` is the control plane's, `fingerprint` its authority's."""
        self._store = store
        self._secret = secret
        self._fingerprint = fingerprint

    def create(
        self, values: dict[str, Any], *, actor: str, idempotency_key: str | None
    ) -> JoinToken:
        """Raises Invalid or Conflict. With a key, the same request gets the same token again."""
        spec: JoinTokenSpec = converted(JoinTokenSpec, values)
        _check_alone(spec)
        id, secret = self._drawn(actor, idempotency_key)
        with self._store.writing() as writing:
            known = find(writing.execute, id)
            if known is not None and known.spec != spec:
                raise Conflict("this idempotency key was used for another request")
            if known is None:
                _check_place(spec, writing.desired)
                known = _insert(writing, id, secret, spec)
                writing.audit(actor, "create", KIND, id, writing.desired.revision, as_new(spec))
        text = f"{PREFIX}_{id}_{self._fingerprint}_{secret}"
        return msgspec.structs.replace(view(known, self._store.clock()), secret=text)

    def get(self, id: str) -> JoinToken:
        """Raises UnknownResource."""
        return view(_known(self._store.select, id), self._store.clock())

    def all(self) -> list[JoinToken]:
        """Return them by id."""
        rows = self._store.select(f"SELECT {COLUMNS} FROM join_tokens ORDER BY id")
        now = self._store.clock()
        return [view(_row(row), now) for row in rows]

    def delete(self, id: str, *, actor: str) -> None:
        """Delete it; machines that joined with it stay. Raises UnknownResource."""
        with self._store.writing() as writing:
            _known(writing.execute, id)
            writing.execute("DELETE FROM join_tokens WHERE id = ?", (id,))
            writing.audit(actor, "delete", KIND, id, writing.desired.revision, {})

    def _drawn(self, actor: str, idempotency_key: str | None) -> tuple[str, str]:
        """Return id and secret: random, or of the request's own key, so that they can be sent
        again."""
        if idempotency_key is None:
            return secrets.token_hex(8), secrets.token_urlsafe(32)
        message = f"join token\n{actor}\n{idempotency_key}".encode()
        drawn = hmac.digest(self._secret, message, "sha512")
        secret = base64.urlsafe_b64encode(drawn[:32]).rstrip(b"=").decode()
        return drawn[32:40].hex(), secret


COLUMNS = "id, digest, spec, uses, created_at, expires_at"


def proven(select: Select, text: str) -> StoredJoinToken:
    """Return the record of a token, used up or expired as it may be. Raises Unauthorized."""
    try:
        given = parse(text)
    except ValueError as error:
        raise Unauthorized(str(error)) from None
    row = find(select, given.id)
    expected = row.digest if row is not None else "0" * 64
    matches = hmac.compare_digest(_digest(given.secret), expected)
    if row is None or not matches:
        raise Unauthorized("The join token is wrong, or was deleted.")
    return row


def spend(writing: Writing, row: StoredJoinToken) -> None:
    """Count one more use. Raises Unauthorized when none is left, or its time is over."""
    if row.expires_at <= writing.now:
        raise Unauthorized("The join token has expired: make another.")
    if row.uses >= row.spec.max_uses:
        raise Unauthorized("The join token is used up: make another.")
    writing.execute("UPDATE join_tokens SET uses = uses + 1 WHERE id = ?", (row.id,))


def find(select: Select, id: str) -> StoredJoinToken | None:
    rows = select(f"SELECT {COLUMNS} FROM join_tokens WHERE id = ?", (id,))
    return _row(rows[0]) if rows else None


def _known(select: Select, id: str) -> StoredJoinToken:
    if (row := find(select, id)) is None:
        raise UnknownResource(f"there is no join token {id!r}")
    return row


def view(row: StoredJoinToken, now: float) -> JoinToken:
    spec = row.spec
    return JoinToken(
        id=row.id,
        name=spec.name,
        pool=spec.pool,
        region=spec.region,
        roles=spec.roles,
        max_uses=spec.max_uses,
        uses=row.uses,
        created_at=rfc3339(row.created_at),
        expires_at=rfc3339(row.expires_at),
        is_usable=row.uses < spec.max_uses and now < row.expires_at,
    )


def _insert(writing: Writing, id: str, secret: str, spec: JoinTokenSpec) -> StoredJoinToken:
    """Insert a token, and forget those whose time was over a day ago."""
    writing.execute("DELETE FROM join_tokens WHERE expires_at < ?", (writing.now - 86_400.0,))
    [(number,)] = writing.execute("SELECT count(*) FROM join_tokens", ())
    if number >= MAX_TOKENS:
        raise Conflict(f"there are {MAX_TOKENS} join tokens already")
    row = StoredJoinToken(
        id=id,
        digest=_digest(secret),
        spec=spec,
        uses=0,
        created_at=writing.now,
        expires_at=writing.now + spec.expires_in_seconds,
    )
    writing.execute(
        f"INSERT INTO join_tokens ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
        (row.id, row.digest, msgspec.json.encode(spec), 0, row.created_at, row.expires_at),
    )
    return row


def _row(values: Sequence[Any]) -> StoredJoinToken:
    id, digest, spec, *rest = values
    return StoredJoinToken(id, digest, msgspec.json.decode(spec, type=JoinTokenSpec), *rest)


def _check_alone(spec: JoinTokenSpec) -> None:
    if (spec.pool is None) == (spec.region is None):
        raise Invalid("give either a pool or a region", field="pool")
    if spec.pool is not None and spec.roles:
        raise Invalid("a pool has its own role; roles belong to a region", field="roles")


def _check_place(spec: JoinTokenSpec, desired: Desired) -> None:
    if spec.pool is not None and spec.pool not in desired.pools():
        raise Invalid(f"there is no pool {spec.pool!r}", field="pool")
    if spec.region is not None and spec.region not in desired.regions():
        raise Invalid(f"there is no region {spec.region!r}", field="region")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
