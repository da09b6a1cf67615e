"""API tokens as edges know them: those that there are, by their present secrets.

Which they know is noted beside what is wanted. Several control planes share both, and tokens.
"""

from __future__ import annotations

import threading
from typing import Protocol

from skerry_regions.access import Grant
from skerry_regions.control.desired.desired import Record
from skerry_regions.control.desired.resources import API_TOKEN, ApiTokenSpec
from skerry_regions.control.desired.store import Store


class TokenPublisher(Protocol):
    """The tokens as edges read them. Every call but `rotate` may be repeated. Raises Busy."""

    def publish(self, id: str, secret_digest: str, spec: ApiTokenSpec, created_at: int) -> None: ...

    def stand_for(self, id: str, login: str, account_id: str, grant: Grant) -> None:
        """Keep what a login is granted now, as the parent of the tokens that it makes."""
        ...

    def withdraw(self, id: str) -> None: ...

    def set_caps(self, id: str, spec: ApiTokenSpec) -> None:
        """Have it spend what its spec says from now on."""
        ...

    def rotate(self, id: str, secret_digest: str, grace_seconds: int) -> bool:
        """Give it another secret; the one of before works so much longer. False: it is gone."""
        ...

    def is_published(self, id: str) -> bool: ...

    def text(self, id: str, secret: str) -> str:
        """Return the token as its bearer sends it."""
        ...


class PublishedTokens:
    """Safe to use from several threads. Methods block for milliseconds."""

    def __init__(self, store: Store, tokens: TokenPublisher) -> None:
        self._store = store
        self._tokens = tokens
        self._settling = threading.Lock()

    def settle(self) -> None:
        """Publish tokens that are new, were rotated or have other caps, withdraw those that go.
        Raises Busy.

        One that edges knew and know no more was revoked there: it is forgotten, never brought back.
        """
        with self._settling:
            known, tokens = self._store.published(), self._store.desired.of(API_TOKEN)
            for id in known.keys() - {record.id for record in tokens}:
                self._withdraw(id)  # by a copy that was put back
            digests, caps = (self._store.decisions(name) for name in ("digest", "caps"))
            for record in tokens:
                if record.deleting and record.id in known:
                    self._withdraw(record.id)
                if record.deleting or self._was_revoked(record, known):
                    with self._store.writing() as writing:
                        writing.remove(API_TOKEN, record.id)
                else:
                    key = API_TOKEN.name, record.id
                    self._publish(record, digests.get(key), caps.get(key), known.get(record.id))

    def _was_revoked(self, record: Record, known: dict[str, str]) -> bool:
        return record.id in known and not self._tokens.is_published(record.id)

    def _publish(self, record: Record, digest: str | None, caps: object, known: str | None) -> None:
        """Have edges know a token. `caps` are those that were set since it was made; `known` is
        what they know."""
        if digest is None or not isinstance(record.spec, ApiTokenSpec):
            return  # it was forgotten this moment
        present = digest if caps is None else f"{digest} {caps}"
        if present == known:
            return
        if known is None:
            self._tokens.publish(record.id, digest, record.spec, int(record.created_at))
        else:
            former, _, former_caps = known.partition(" ")
            if former != digest:
                graces = self._store.decisions("grace")
                until = graces.get((API_TOKEN.name, record.id), 0)
                self._tokens.rotate(record.id, digest, max(0, round(until - self._store.clock())))
            if caps is not None and former_caps != str(caps):
                self._tokens.set_caps(record.id, record.spec)
        self._store.note_published(record.id, present)

    def _withdraw(self, id: str) -> None:
        self._tokens.withdraw(id)
        self._store.note_published(id, None)
