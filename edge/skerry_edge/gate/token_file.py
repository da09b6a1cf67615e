"""`tokens.json`: API tokens as they are stored, hashed, in a file that only its owner can read.

A token is `skerry_<id>_<secret>`: the id finds the record, the secret (256 random bits) proves it.
Only SHA-256 of the secret is stored; with that much entropy a slow hash would add nothing.

Fields are only ever added to a record: an edge of an earlier version follows those that it knows.
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
from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec

from skerry_edge.money.caps import Caps
from skerry_regions.access import AccessRole, Dollars, Grant, ModelPattern, StoredScope
from skerry_regions.private_files import replace_file
from skerry_regions.zones import Zone

PREFIX = "skerry"
MAX_TOKENS = 100_000
ACCOUNT_ID = re.compile(r"[0-9a-f]{32}")

logger = logging.getLogger(__name__)


class TokenStoreError(Exception):
    """The token file cannot be read or written; the message names the file and the reason."""


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is stored: everything but the secret. Times are Unix seconds."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}$")]
    digest: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]  # SHA-256 of the secret
    account_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$")]
    name: Annotated[str, msgspec.Meta(max_length=128)] = ""
    role: AccessRole | None = None
    scopes: tuple[StoredScope, ...] = ()
    residency: Zone | None = None  # that its requests never leave
    models: tuple[ModelPattern, ...] | None = None  # that it may run; None: all
    created_at: int
    expires_at: int | None = None
    parent: Annotated[str, msgspec.Meta(max_length=64)] | None = None  # id of what it was made with
    per_day: Dollars | None = None  # that it may spend in a UTC day …
    per_month: Dollars | None = None  # … and month
    former_digest: str | None = None  # of the secret before it was rotated, which works …
    former_until: int = 0  # … until then

    @property
    def caps(self) -> Caps:
        return Caps(per_day=self.per_day, per_month=self.per_month)

    @property
    def grant(self) -> Grant:
        """Return what it may do by itself. The scope `admin` of earlier versions is a
        developer's."""
        is_admin = "admin" in self.scopes
        return Grant(
            role="developer" if is_admin and self.role is None else self.role,
            scopes=tuple(each for each in self.scopes if each != "admin"),
            residency=self.residency,
            models=self.models,
            per_day=self.per_day,
            per_month=self.per_month,
            expires_at=self.expires_at,
        )

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def is_proven_by(self, secret: str, now: float) -> bool:
        """Compare secrets in a time that is equal for every wrong one."""
        given = digest_of(secret)
        matches = hmac.compare_digest(given, self.digest)
        if self.former_digest is not None and now < self.former_until:
            matches |= hmac.compare_digest(given, self.former_digest)
        return matches


class TokenFile(msgspec.Struct, kw_only=True):
    """Content of `tokens.json`. Where NATS servers have the platform's state it is a picture of
    what they have: of the stream that was made then, as of a revision."""

    version: Literal[1] = 1
    stream: str = ""  # when it was made; "": this file has the tokens
    revision: int = 0
    tokens: Annotated[list[TokenRecord], msgspec.Meta(max_length=MAX_TOKENS)] = []


class TokenRecords:
    """The records of one file, by id. Several processes may share it: writes replace it atomically,
    one after the other, and reads follow its changes."""

    def __init__(self, path: Path) -> None:
        """Read `path` if it exists. Raises TokenStoreError on an unreadable file."""
        self._path = path
        self._stamp: tuple[int, ...] | None = None
        self._records: Mapping[str, TokenRecord] = MappingProxyType({})
        self._picture_of = ("", 0)  # a stream, and its revision
        self.read()

    def read(self) -> Mapping[str, TokenRecord]:
        """Return the records of now, oldest first. Raises TokenStoreError."""
        self._follow()
        return self._records

    def last_good(self) -> Mapping[str, TokenRecord]:
        """Return the records of now; those of before, logged, if the file became unreadable."""
        try:
            self._follow()
        except TokenStoreError:
            logger.exception("keeping the last good tokens")
        return self._records

    @contextlib.contextmanager
    def changing(self) -> Generator[dict[str, TokenRecord]]:
        """Give the records to be changed, and write them at the end of the block.

        No other process changes them meanwhile: a token that it revokes now must not come back with
        what we write. Raises TokenStoreError.
        """
        with self._locked():
            records = dict(self.read())
            yield records
            if records == self._records:
                return
            if self._picture_of[0]:
                raise TokenStoreError(
                    f"{self._path} is a picture of what NATS servers have, and this command does "
                    "not go by them: set SKERRY_STATE as the platform's edges have it"
                )
            check_number(len(records), str(self._path))
            self._write(TokenFile(tokens=list(records.values())))

    def picture(self) -> tuple[str, int]:
        """Return which stream's picture the file is, and of which revision; "": of none. Raises
        TokenStoreError."""
        self._follow()
        return self._picture_of

    def take_in(self, picture: TokenFile) -> None:
        """Have the file be this picture, unless it is a later one. Raises TokenStoreError."""
        with self._locked():
            stream, revision = self.picture()
            is_later = stream != picture.stream or revision < picture.revision
            if is_later and (stream, [*self._records.values()]) != (picture.stream, picture.tokens):
                self._write(picture)

    def keep(self) -> None:
        """Have the file be what has the tokens, and a picture of servers no more. Raises
        TokenStoreError."""
        with self._locked():
            self._write(TokenFile(tokens=[*self.read().values()]))

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise TokenStoreError(f"cannot write {self._path}: {exc.strerror}") from exc
        with os.fdopen(lock, "wb"):
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for the time of one write
            yield

    def _follow(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._stamp, self._records = None, MappingProxyType({})
            self._picture_of = ("", 0)
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
        self._records = MappingProxyType({record.id: record for record in content.tokens})
        self._picture_of = (content.stream, content.revision)

    def _write(self, content: TokenFile) -> None:
        """Replace the file, or leave it as it was. Raises TokenStoreError."""
        data = msgspec.json.format(msgspec.json.encode(content), indent=2)
        try:
            replace_file(self._path, data + b"\n")
        except OSError as exc:
            raise TokenStoreError(f"cannot write {self._path}: {exc.strerror}") from exc
        self._follow()


def check_number(tokens: int, where: str) -> None:
    """Raise TokenStoreError for more tokens than there may be."""
    if tokens > MAX_TOKENS:
        raise TokenStoreError(f"{where} holds {MAX_TOKENS} tokens already; revoke some")


def new_account_id() -> str:
    """Return a fresh account id: 32 hex digits, as upstream's."""
    return secrets.token_hex(16)


def new_secret() -> str:
    """Return 256 random bits, as text."""
    return secrets.token_urlsafe(32)


def token_text(id: str, secret: str) -> str:
    """Return a token as its bearer sends it."""
    return f"{PREFIX}_{id}_{secret}"


def digest_of(secret: str) -> str:
    """Return what is stored of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
