"""Terraform's `http` backend: states kept in the control plane's database, with locks.

terraform {
  backend "http" {
    address        = "http://127.0.0.1:8788/control/v1/terraform/states/prod"
    lock_address   = "http://127.0.0.1:8788/control/v1/terraform/states/prod"
    unlock_address = "http://127.0.0.1:8788/control/v1/terraform/states/prod"
    username       = "skerry"   # any; the password is an API token with the scope admin
  }
}
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from skerry_regions.control.desired.store import Store, Writing
from skerry_regions.control.errors import Conflict, Locked, Malformed, NotFound

MAX_STATES = 1000
MAX_LOCK_BYTES = 64 << 10
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class LockInfo(Struct):
    """What Terraform says of whoever locks; only the id matters here."""

    id: Annotated[str, Meta(min_length=1, max_length=256)] = msgspec.field(name="ID")


class HeldLock(Locked):
    """Somebody else holds it. Terraform wants the holder's own words as the answer."""

    def __init__(self, held: bytes) -> None:
        super().__init__("the state is locked")
        self.held = held

    def body(self) -> bytes:
        return self.held


class TerraformStates:
    """By name. Methods block for milliseconds: call them on a thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, name: str) -> bytes:
        """Raises NotFound."""
        with self._store.reading() as database:
            row = database.execute(
                "SELECT state FROM terraform_states WHERE name = ?", (name,)
            ).fetchone()
        if row is None or row[0] is None:
            raise NotFound(f"there is no state {name!r}")
        return bytes(row[0])

    def put(self, name: str, state: bytes, *, lock_id: str | None, md5: str | None) -> None:
        """Raises HeldLock, Malformed for what arrived broken, or Conflict for one too many."""
        if md5 is not None and md5 != base64.b64encode(hashlib.md5(state).digest()).decode():
            raise Malformed("the state differs from its Content-MD5: send it again")
        _decoded(state, dict[str, Any])
        with self._store.writing() as writing:
            self._check_lock(writing, name, lock_id)
            self._write(writing, name, "state", state)

    def delete(self, name: str, *, lock_id: str | None) -> None:
        """Of none such: nothing. Raises HeldLock."""
        with self._store.writing() as writing:
            self._check_lock(writing, name, lock_id)
            writing.execute("DELETE FROM terraform_states WHERE name = ?", (name,))

    def lock(self, name: str, info: bytes) -> None:
        """Raises HeldLock, or Malformed.

        The same words again are of who holds it already, and lost our answer: with its time and its
        random id nobody else says them. An id alone proves less: whoever was refused was told it.
        """
        if len(info) > MAX_LOCK_BYTES:
            raise Malformed(f"a lock's description takes {MAX_LOCK_BYTES} bytes")
        _decoded(info, LockInfo)
        with self._store.writing() as writing:
            held = self._held(writing, name)
            if held not in (None, info):
                raise HeldLock(held)
            if held is None:
                self._write(writing, name, "lock", info)

    def unlock(self, name: str, info: bytes) -> None:
        """With an empty `info` whoever holds it. Raises HeldLock."""
        with self._store.writing() as writing:
            held = self._held(writing, name)
            if held is None:
                return
            if info and _decoded(info, LockInfo).id != _decoded(held, LockInfo).id:
                raise HeldLock(held)
            writing.execute("UPDATE terraform_states SET lock = NULL WHERE name = ?", (name,))
            writing.execute(
                "DELETE FROM terraform_states WHERE name = ? AND state IS NULL", (name,)
            )

    def _check_lock(self, writing: Writing, name: str, lock_id: str | None) -> None:
        """Raises HeldLock unless nobody holds it, or this id."""
        held = self._held(writing, name)
        if held is not None and _decoded(held, LockInfo).id != lock_id:
            raise HeldLock(held)

    def _held(self, writing: Writing, name: str) -> bytes | None:
        rows = writing.execute("SELECT lock FROM terraform_states WHERE name = ?", (name,))
        return bytes(rows[0][0]) if rows and rows[0][0] is not None else None

    def _write(self, writing: Writing, name: str, column: str, value: bytes) -> None:
        (known,) = writing.execute("SELECT count(*) FROM terraform_states WHERE name <> ?", (name,))
        if known[0] >= MAX_STATES:
            raise Conflict(f"there are {MAX_STATES} states already")
        writing.execute(
            f"INSERT INTO terraform_states (name, {column}, updated_at) VALUES (?, ?, ?)"
            f" ON CONFLICT (name) DO UPDATE SET {column} = excluded.{column},"
            " updated_at = excluded.updated_at",
            (name, value, writing.now),
        )


def _decoded(body: bytes, type_: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"not what Terraform sends: {error}") from None
