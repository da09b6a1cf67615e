"""Who is calling: bearer tokens, hashed at rest, and the one check every route passes.

A token is `skerry_<id>_<secret>`: the id finds the record, the secret (256 random bits) proves it.
Only SHA-256 of the secret is stored; with that much entropy a slow hash would add nothing. The file
is read again when it changes, so a revoked token stops working at its next request.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import logging
import os
import re
import secrets
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from skerry.errors import AuthenticationError, NotFound
from skerry_edge.internal import inside_call
from skerry_regions.private_files import replace_file
from skerry_regions.zones import Zone, is_zone

if TYPE_CHECKING:  # the `skerry tokens` command starts without the web framework
    from starlette.types import ASGIApp, Receive, Scope, Send

MAX_DOLLARS = 1e9  # of a cap

Scopes = frozenset[str]
Dollars = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_DOLLARS)]
ScopeName = Literal["run", "read", "admin"]
ALL_SCOPES: tuple[ScopeName, ...] = ("run", "read", "admin")

PREFIX = "skerry"
MAX_TOKEN_LENGTH = 256
MAX_TOKENS = 100_000
ACCOUNT_ID = re.compile(r"[0-9a-f]{32}")

# What may be asked without a token; every other path is refused without one, known or not.
PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json"})
ACCOUNT_PATH = re.compile(r"(?:/client/v4)?/accounts/([^/]*)(?:/|$)")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What a token may spend. US$; None: as much as it likes."""

    per_day: float | None = None  # UTC
    per_month: float | None = None

    @property
    def is_unlimited(self) -> bool:
        return self.per_day is None and self.per_month is None


UNCAPPED = Caps()


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is stored: everything but the secret."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}$")]
    digest: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]  # SHA-256 of the secret
    account_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$")]
    name: Annotated[str, msgspec.Meta(max_length=128)] = ""
    scopes: tuple[ScopeName, ...] = ALL_SCOPES
    residency: Zone | None = None  # that its requests never leave
    created_at: int  # Unix seconds
    per_day: Dollars | None = None  # that it may spend in a UTC day …
    per_month: Dollars | None = None  # … and month

    @property
    def caps(self) -> Caps:
        return Caps(per_day=self.per_day, per_month=self.per_month)


class TokenFile(msgspec.Struct, kw_only=True):
    """Content of `tokens.json`."""

    version: Literal[1] = 1
    tokens: Annotated[list[TokenRecord], msgspec.Meta(max_length=MAX_TOKENS)] = []


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller. `account_id` is the tenant of caches, fairness and usage."""

    token_id: str
    account_id: str
    scopes: Scopes
    caps: Caps = UNCAPPED  # of what the token may spend
    residency: str | None = None  # zone that its requests never leave


class TokenStoreError(Exception):
    """The token file cannot be read or written; the message names the file and the reason."""


def new_account_id() -> str:
    """A fresh account id: 32 hex digits, as upstream's."""
    return secrets.token_hex(16)


def token_text(id: str, secret: str) -> str:
    """A token as its bearer sends it."""
    return f"{PREFIX}_{id}_{secret}"


class TokenStore:
    """The tokens of one edge, kept in a file that only its owner can read.

    Several processes may share the file: writes replace it atomically, one after the other, and
    reads follow its changes.
    """

    def __init__(self, path: Path) -> None:
        """Read `path` if it exists. Raises TokenStoreError on an unreadable file."""
        self._path = path
        self._stamp: tuple[int, ...] | None = None
        self._records: dict[str, TokenRecord] = {}
        self._refresh()

    def create(
        self,
        *,
        account_id: str,
        name: str = "",
        scopes: tuple[ScopeName, ...] = ALL_SCOPES,
        caps: Caps = UNCAPPED,
        residency: str | None = None,
        now: int,
    ) -> tuple[str, TokenRecord]:
        """Add a token and return it with its record. The token itself is not kept: show it once.

        Raises ValueError for what a record cannot be, or TokenStoreError.
        """
        if not ACCOUNT_ID.fullmatch(account_id):
            raise ValueError(f"an account id is 32 lower-case hex digits, got {account_id!r}")
        unknown = sorted(set(scopes) - set(ALL_SCOPES))
        if unknown or not scopes:
            raise ValueError(
                f"scopes are {', '.join(ALL_SCOPES)}; got {', '.join(scopes) or 'none'}"
            )
        if residency is not None and not is_zone(residency):
            raise ValueError(f"a zone is a name such as `eu`, got {residency!r}")
        secret = secrets.token_urlsafe(32)
        record = TokenRecord(
            id=secrets.token_hex(8),
            digest=_digest(secret),
            account_id=account_id,
            name=name,
            scopes=scopes,
            residency=residency,
            created_at=now,
            per_day=_checked_cap(caps.per_day),
            per_month=_checked_cap(caps.per_month),
        )
        self.keep(record)
        return token_text(record.id, secret), record

    def keep(self, record: TokenRecord) -> None:
        """Add a token whose secret somebody else drew, or replace its record.

        The zone and the caps of one that is there stay as they were set: only `set_caps` and a
        new token change what a token may do here.
        """
        with self._changing() as records:
            if (known := records.get(record.id)) is not None:
                record = msgspec.structs.replace(
                    record,
                    residency=known.residency,
                    per_day=known.per_day,
                    per_month=known.per_month,
                )
            records[record.id] = record

    def revoke(self, token_id: str) -> bool:
        """Forget a token at once. False if there is none of that id."""
        with self._changing() as records:
            return records.pop(token_id, None) is not None

    def set_caps(self, token_id: str, caps: Caps) -> bool:
        """Change what a token may spend. False if there is none of that id. Raises ValueError."""
        per_day, per_month = _checked_cap(caps.per_day), _checked_cap(caps.per_month)
        with self._changing() as records:
            record = records.get(token_id)
            if record is None:
                return False
            records[token_id] = msgspec.structs.replace(
                record, per_day=per_day, per_month=per_month
            )
            return True

    def is_live(self, token_id: str) -> bool:
        """Whether the token works now."""
        self._refresh_or_keep()
        return token_id in self._records

    def principal(self, token_id: str) -> Principal | None:
        """Whom a token stands for now. None when it was revoked."""
        self._refresh_or_keep()
        record = self._records.get(token_id)
        return None if record is None else _principal(record)

    def records(self) -> list[TokenRecord]:
        """Every live token's record, oldest first."""
        self._refresh()
        return list(self._records.values())

    def authenticate(self, token: str) -> Principal | None:
        """Whose token this is, or None. Takes equally long for every wrong token of a known id."""
        if len(token) > MAX_TOKEN_LENGTH:
            return None
        self._refresh_or_keep()
        prefix, _, rest = token.partition("_")
        token_id, _, secret = rest.partition("_")
        record = self._records.get(token_id) if prefix == PREFIX else None
        expected = record.digest if record is not None else "0" * 64
        matches = hmac.compare_digest(_digest(secret), expected)
        if record is None or not matches:
            return None
        return _principal(record)

    def _refresh_or_keep(self) -> None:
        """Follow the file; if it became unreadable keep the last good tokens and say so."""
        try:
            self._refresh()
        except TokenStoreError:
            logger.exception("keeping the last good tokens")

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._stamp, self._records = None, {}
            return
        except OSError as exc:
            raise TokenStoreError(f"cannot read {self._path}: {exc.strerror}") from exc
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp == self._stamp:
            return
        self._stamp = stamp  # also when it proves unreadable: report a bad file once, not per call
        try:
            content = msgspec.json.decode(self._path.read_bytes(), type=TokenFile)
        except OSError as exc:
            raise TokenStoreError(f"cannot read {self._path}: {exc.strerror}") from exc
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise TokenStoreError(f"{self._path} is not a token file: {exc}") from exc
        self._records = {record.id: record for record in content.tokens}

    @contextlib.contextmanager
    def _changing(self) -> Generator[dict[str, TokenRecord]]:
        """The records by id, to be changed and written. Nobody else changes them meanwhile: a token
        that another process revokes now must not come back with what we write.
        """
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise TokenStoreError(f"cannot write {self._path}: {exc.strerror}") from exc
        with os.fdopen(lock, "wb"):
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for the time of one write
            self._refresh()
            records = dict(self._records)
            yield records
            if records != self._records:
                self._write(list(records.values()))

    def _write(self, records: list[TokenRecord]) -> None:
        """Replace the file, or leave it as it was. Raises TokenStoreError."""
        if len(records) > MAX_TOKENS:
            raise TokenStoreError(f"{self._path} holds {MAX_TOKENS} tokens already; revoke some")
        data = msgspec.json.format(msgspec.json.encode(TokenFile(tokens=records)), indent=2)
        try:
            replace_file(self._path, data + b"\n")
        except OSError as exc:
            raise TokenStoreError(f"cannot write {self._path}: {exc.strerror}") from exc
        self._refresh()


class Authenticate:
    """ASGI middleware: deny by default, decided on the path that the router will see.

    Wrong credentials raise `AuthenticationError` before anything about models or routes is looked
    up. A path that names an account other than the token's raises `NotFound`, like a path that
    does not exist. The caller is put into `scope["principal"]`.
    """

    def __init__(self, app: ASGIApp, tokens: TokenStore) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in PUBLIC_PATHS:
            principal = self._principal(scope)
            check_account(scope["path"], principal)
            scope["principal"] = principal
        await self._app(scope, receive, send)

    def _principal(self, scope: Scope) -> Principal:
        if (inside := inside_call(scope)) is not None:
            if inside.principal is None:
                raise AuthenticationError("The API token was revoked.")
            return inside.principal
        token = bearer_token(scope["headers"])
        if token is not None and (found := self._tokens.authenticate(token)):
            return found
        raise AuthenticationError("Authentication error")


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The token of a request: `Authorization: Bearer`, or `x-api-key` as Anthropic's clients send.

    None when there is none or more than one of the header that counts.
    """
    fields = list(headers)
    given = [value for name, value in fields if name == b"authorization"]
    if not given:
        keys = [value for name, value in fields if name == b"x-api-key"]
        return keys[0].decode("latin-1").strip() if len(keys) == 1 else None
    scheme, _, token = given[0].decode("latin-1").partition(" ")
    return token.strip() if len(given) == 1 and scheme.lower() == "bearer" else None


def check_account(path: str, principal: Principal) -> None:
    """Raise NotFound if `path` is under an account that is not the caller's."""
    match = ACCOUNT_PATH.match(path)
    if match and not hmac.compare_digest(match[1].encode(), principal.account_id.encode()):
        raise NotFound(
            f"Could not route to {path[:200]}, perhaps your object identifier is invalid?"
        )


def _checked_cap(dollars: float | None) -> float | None:
    if dollars is not None and not 0.0 <= dollars <= MAX_DOLLARS:
        raise ValueError(f"a cap is between 0 and {MAX_DOLLARS:g} US$, got {dollars}")
    return dollars


def _principal(record: TokenRecord) -> Principal:
    return Principal(
        record.id,
        record.account_id,
        frozenset(record.scopes),
        caps=record.caps,
        residency=record.residency,
    )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
