"""Audit of changes of API tokens past the control plane: JSON lines beside their file.

Each line is written to disk when its change was made or denied. A file of 1 MiB is renamed, and of
those that were renamed four are kept; a line has no secret.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from skerry_regions.process.log_files import NUM_KEPT, rotate

MAX_FILE_BYTES = 1 << 20
MAX_TEXT = 256  # characters of what was requested, in a line

Outcome = Literal["granted", "denied"]


class TokenChange(Struct, frozen=True, kw_only=True):
    """A change of a token, done or denied; with the fields of the control plane's audit log."""

    at: float  # Unix seconds
    actor: str
    action: str
    kind: str = "api_token"
    id: Annotated[str, Meta(max_length=MAX_TEXT)]
    changes: dict[str, Any] = {}
    outcome: Outcome = "granted"


class TokenAudit:
    """One file. Processes may share it."""

    def __init__(self, path: Path, actor: str) -> None:
        """`actor` is who changes tokens here: `user:NAME`, or `skerry` itself."""
        self._path = path
        self._actor = actor

    def note(
        self, action: str, id: str, changes: dict[str, Any] | None = None, *, denied: str = ""
    ) -> None:
        """Write a line; `denied` says why a change was not made. Raises OSError."""
        told = {name: value for name, value in (changes or {}).items() if value is not None}
        line = TokenChange(
            at=time.time(),
            actor=self._actor,
            action=action,
            id=id[:MAX_TEXT],
            changes=told | ({"denied": denied[:MAX_TEXT]} if denied else {}),
            outcome="denied" if denied else "granted",
        )
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        rotate(self._path, most=MAX_FILE_BYTES)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        handle = os.open(self._path, flags, 0o600)
        try:
            os.write(handle, msgspec.json.encode(line) + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)


def newest_changes(path: Path, limit: int) -> list[TokenChange]:
    """Return the last changes, oldest first; lines that are none are left out. Raises OSError."""
    found: list[TokenChange] = []
    for number in range(NUM_KEPT + 1):
        file = path.with_name(f"{path.name}.{number}") if number else path
        try:
            lines = file.read_bytes().splitlines()
        except FileNotFoundError:
            continue
        found = [*_changes(lines), *found]
        if len(found) >= limit:
            break
    return found[-limit:]


def _changes(lines: list[bytes]) -> list[TokenChange]:
    found = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=TokenChange))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # a process died while it wrote
    return found
