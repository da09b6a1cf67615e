"""What was changed: the audit log, by revision."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from skerry_regions.control.desired.resources import API_TOKEN, KINDS
from skerry_regions.control.desired.store import Store

REVISED = msgspec.json.encode([kind.name for kind in KINDS if kind is not API_TOKEN]).decode()
"""Kinds that revisions are of: API tokens are left alone."""


class ResourceChange(Struct, frozen=True, kw_only=True):
    """What happens to one resource. `changes` are fields as [before, after]."""

    kind: str
    id: str
    action: str  # create, update, delete; restore: it was being deleted, and stays
    changes: dict[str, Any] = {}


class RevisionEntry(Struct, frozen=True, kw_only=True):
    """One revision: who changed what, and when (Unix seconds)."""

    revision: int
    at: float
    actor: str
    changes: list[ResourceChange]


def history(
    store: Store, *, before: int | None = None, limit: int = 100, kind: str = "", id: str = ""
) -> list[RevisionEntry]:
    """Return revisions below `before`, newest first; of one kind, or one resource."""
    rows = store.select(
        "SELECT revision, at, actor, action, kind, id, changes FROM audit"
        " WHERE revision IN (SELECT DISTINCT revision FROM audit WHERE outcome = 'granted'"
        "   AND kind IN (SELECT value FROM json_each(?1)) AND revision < ?2"
        "   AND ?3 IN ('', kind) AND ?4 IN ('', id) ORDER BY revision DESC LIMIT ?5)"
        " AND outcome = 'granted' AND kind IN (SELECT value FROM json_each(?1))"
        " AND ?3 IN ('', kind) AND ?4 IN ('', id) ORDER BY sequence",
        (REVISED, (1 << 62) if before is None else before, kind, id, limit),
    )
    found: dict[int, RevisionEntry] = {}
    for revision, at, actor, action, name, resource, changes in rows:
        entry = found.setdefault(
            revision, RevisionEntry(revision=revision, at=at, actor=actor, changes=[])
        )
        entry.changes.append(
            ResourceChange(
                kind=name, id=resource, action=action, changes=msgspec.json.decode(changes)
            )
        )
    return sorted(found.values(), key=lambda entry: -entry.revision)
