"""Writes to what is wanted: checked, atomic, audited, and safe to send twice.

A request with an idempotency key that comes again gets the answer of the first time. Keys are kept
hashed, for a day. A token's secret is not kept at all: it follows from the key and the platform's
secret, so that a lost answer can be given again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Any

import msgspec

from skerry_regions.access import Grant, role_of_admin
from skerry_regions.control.desired.desired import Desired, Record
from skerry_regions.control.desired.published_tokens import PublishedTokens, TokenPublisher
from skerry_regions.control.desired.resources import (
    API_TOKEN,
    BY_NAME,
    ApiTokenSpec,
    ResourceKind,
    Spec,
    new_id,
)
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.validation import check_deletable, check_references, spec_of
from skerry_regions.control.desired.writing import IdempotentAnswer, Writing, as_gone, as_new
from skerry_regions.control.errors import Conflict, Invalid, StaleEtag, UnknownResource

KEEP_ANSWERS_SECONDS = 86_400.0
MAX_RESOURCES = 10_000  # of one kind


@dataclass(frozen=True, slots=True)
class CreatedResource:
    """A resource that was created, now or by the same request before; a token with its secret."""

    record: Record
    secret: str | None = None


class Changes:
    """All writes of the API. `secret` is 32 bytes that only this platform has."""

    def __init__(self, store: Store, tokens: TokenPublisher, secret: bytes) -> None:
        self._store = store
        self._tokens = tokens
        self._published = PublishedTokens(store, tokens)
        self._secret = secret

    def create(
        self, kind: ResourceKind, values: dict[str, Any], *, actor: str, idempotency_key: str | None
    ) -> CreatedResource:
        """Raises Invalid, or Conflict when it exists or the key was used for something else."""
        spec = spec_of(kind, values)
        key = request = ""
        if idempotency_key is not None:
            key = _hashed(f"{actor}\n{idempotency_key}".encode())
            request = _hashed(kind.name.encode() + msgspec.json.encode(spec))
        with self._store.writing() as writing:
            answered = writing.answered(key, keep_seconds=KEEP_ANSWERS_SECONDS) if key else None
            if answered is not None and not _is_there(answered, writing.desired):
                answered = None  # it was deleted since: another is created
            if answered is not None:
                record = _answered_before(answered, request)
            else:
                record = _create(writing, kind, spec, actor)
                if key:
                    writing.answer(key, request, record, keep_seconds=KEEP_ANSWERS_SECONDS)
            if kind is not API_TOKEN:
                return CreatedResource(record)
            token = self._token_secret(record.id, idempotency_key)
            if answered is None:
                writing.decide(kind, record.id, "digest", _hashed(token.encode()))
        self.settle_tokens()
        return CreatedResource(record, self._tokens.text(record.id, token))

    def acknowledge(self, idempotency_key: str, *, actor: str) -> None:
        """Forget an idempotency key: its caller has the answer, and will not send it again."""
        with self._store.writing() as writing:
            writing.forget_answer(_hashed(f"{actor}\n{idempotency_key}".encode()))

    def update(
        self,
        kind: ResourceKind,
        id: str,
        patch: dict[str, Any],
        *,
        actor: str,
        if_match: str | None,
    ) -> Record:
        """Merge `patch` into the spec (RFC 7386).

        Raises UnknownResource, StaleEtag, Invalid, Conflict or Busy.
        """
        if kind is API_TOKEN:
            self.settle_tokens()  # one that was revoked is not there any more
        with self._store.writing() as writing:
            record = _current(writing, kind, id, if_match)
            if record.deleting:
                raise Conflict(f"{kind.name} {id!r} is being deleted")
            before = msgspec.to_builtins(record.spec)
            spec = spec_of(kind, _merged(before, patch))
            changes = differences(before, msgspec.to_builtins(spec))
            for field in changes:
                if field in kind.fixed:
                    raise Invalid(
                        f"{field} cannot be changed: create another {kind.name}", field=field
                    )
            if not changes:
                return record
            check_references(spec, id, writing.desired)
            changed = writing.put(kind, id, spec)
            if isinstance(spec, ApiTokenSpec):
                writing.decide(kind, id, "caps", [spec.per_day, spec.per_month])
            writing.audit(actor, "update", kind, id, changed.revision, changes)
        if kind is API_TOKEN:
            self.settle_tokens()
        return changed

    def delete(self, kind: ResourceKind, id: str, *, actor: str, if_match: str | None) -> None:
        """Delete it once all of it has drained; one with nothing to drain at once.

        Deleting what is being deleted changes nothing. Raises UnknownResource, StaleEtag or
        Conflict.
        """
        with self._store.writing() as writing:
            record = _current(writing, kind, id, if_match)
            if record.deleting:
                return
            check_deletable(record, writing.desired)
            revision = writing.mark_deleting(record)
            writing.audit(actor, "delete", kind, id, revision, as_gone(record.spec))
        if kind is API_TOKEN:
            self.settle_tokens()

    def rotate(
        self, id: str, *, actor: str, if_match: str | None, grace_seconds: int
    ) -> CreatedResource:
        """Draw another secret for a token. Raises UnknownResource, StaleEtag, Conflict or Busy."""
        self.settle_tokens()  # one that was revoked is not there any more
        token = secrets.token_urlsafe(32)
        with self._store.writing() as writing:
            record = _current(writing, API_TOKEN, id, if_match)
            if record.deleting:
                raise Conflict(f"{API_TOKEN.name} {id!r} is being deleted")
            record = writing.put(API_TOKEN, id, record.spec)
            writing.decide(API_TOKEN, id, "digest", _hashed(token.encode()))
            writing.decide(API_TOKEN, id, "grace", writing.now + grace_seconds)
            changes = {"secret": ["another", f"{grace_seconds} s beside it"]}
            writing.audit(actor, "rotate", API_TOKEN, id, record.revision, changes)
        self.settle_tokens()
        return CreatedResource(record, self._tokens.text(id, token))

    def stand_for(self, id: str, login: str, account_id: str, grant: Grant) -> None:
        """Keep what a login is granted now, as the parent of the tokens it makes. Raises Busy."""
        self._tokens.stand_for(id, login, account_id, grant)

    def give_roles(self, platform: str) -> None:
        """Give tokens that earlier versions made with the scope `admin` their roles."""
        with self._store.writing() as writing:
            for record in writing.desired.of(API_TOKEN):
                spec = record.spec
                if not isinstance(spec, ApiTokenSpec) or spec.role or "admin" not in spec.scopes:
                    continue
                role = role_of_admin(spec.account_id or platform, platform)
                changed = writing.put(
                    API_TOKEN, record.id, msgspec.structs.replace(spec, role=role)
                )
                changes = {"role": [None, role]}
                writing.audit("skerry", "update", API_TOKEN, record.id, changed.revision, changes)

    def settle_tokens(self) -> None:
        """Have edges of this machine know the tokens that there are. Raises Busy."""
        self._published.settle()

    def _token_secret(self, id: str, idempotency_key: str | None) -> str:
        """Return 256 bits: drawn, or of the request's own key, so that they can be sent again."""
        if idempotency_key is None:
            return secrets.token_urlsafe(32)
        message = f"api token {id}\n{idempotency_key}".encode()
        key = hmac.digest(self._secret, message, "sha256")
        return base64.urlsafe_b64encode(key).rstrip(b"=").decode()


def _create(writing: Writing, kind: ResourceKind, spec: Spec, actor: str) -> Record:
    id = new_id(spec)
    if (existing := writing.desired.get(kind, id)) is not None:
        state = "is being deleted" if existing.deleting else "exists already"
        raise Conflict(f"{kind.name} {id!r} {state}", field="name")
    if len(writing.desired.of(kind)) >= MAX_RESOURCES:
        raise Conflict(f"there are {MAX_RESOURCES} resources of the kind {kind.name} already")
    check_references(spec, id, writing.desired)
    record = writing.put(kind, id, spec)
    writing.audit(actor, "create", kind, id, record.revision, as_new(spec))
    return record


def _is_there(answered: IdempotentAnswer, desired: Desired) -> bool:
    """Return whether what was created then is still there, and is to stay."""
    record = desired.get(BY_NAME[answered.kind], answered.id)
    return record is not None and not record.deleting and record.created_at == answered.at


def _answered_before(answered: IdempotentAnswer, request: str) -> Record:
    if answered.request != request:
        raise Conflict("this idempotency key was used for another request")
    kind = BY_NAME[answered.kind]
    return Record(
        kind=kind,
        id=answered.id,
        spec=msgspec.json.decode(answered.spec, type=kind.spec),
        revision=answered.revision,
        created_at=answered.at,
        updated_at=answered.at,
    )


def _current(writing: Writing, kind: ResourceKind, id: str, if_match: str | None) -> Record:
    record = writing.desired.get(kind, id)
    if record is None:
        raise UnknownResource(f"there is no {kind.name} {id!r}")
    if if_match not in (None, "*", record.etag):
        raise StaleEtag(
            f"{kind.name} {id!r} was changed since it was read: its etag is {record.etag}"
        )
    return record


def _merged(before: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Merge by RFC 7386 for flat objects: null takes a field back to its default."""
    merged = before | patch
    return {name: value for name, value in merged.items() if value is not None}


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that differ, as [before, after]."""
    names = [*after, *(name for name in before if name not in after)]
    return {
        name: [before.get(name), after.get(name)]
        for name in names
        if before.get(name) != after.get(name)
    }


def _hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
