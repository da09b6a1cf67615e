"""Many changes at once, as one revision: all of them are kept, or none. And going back to one.

A revision is one transaction. The audit log has what each changed, so what was wanted after any of
them can be had again: what came later is undone, newest first. API tokens are left alone: what was
revoked stays so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from skerry_regions.control.desired.changes import MAX_RESOURCES, differences
from skerry_regions.control.desired.desired import Desired, Record
from skerry_regions.control.desired.history import REVISED, ResourceChange, history
from skerry_regions.control.desired.manifest import Manifest, Wish, wishes
from skerry_regions.control.desired.resources import BY_NAME, KINDS
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.validation import check_deletable, check_references, spec_of
from skerry_regions.control.desired.writing import MAX_AUDIT_ROWS, Writing, as_gone, as_new
from skerry_regions.control.errors import Conflict, ControlError, Invalid

SOURCE = "source"  # name of the decision that marks what came from a file
FILE = "topology"  # its value: a file that was applied, or that a control plane was started with
UP = "up"  # or that of `skerry up --topology`, whose resources go with a start without it
Key = tuple[str, str]  # kind and id


class Applied(Struct, frozen=True, kw_only=True):
    """What applying a manifest, or going back, did; or, where nothing was written, would do."""

    revision: int  # of what is wanted now
    written: bool
    changes: list[ResourceChange]
    unnamed: list[str] = []  # `KIND ID` that an earlier file named, and this one does not


def apply(
    manifest: Manifest,
    store: Store,
    *,
    actor: str,
    source: str = FILE,
    prunes: bool = False,
    dry_run: bool = False,
) -> Applied:
    """Set the desired state to what a manifest says. `prunes`: what earlier files of this source
    named and this one does not goes; of `UP` what others need stays, as if they had made it.

    What was made by other means is left alone, unless the file has the same. Raises ControlError,
    whose `field` is a path in the manifest.
    """
    wanted = wishes(manifest)
    named = {(wish.kind.name, wish.id) for wish in wanted}
    marked = {key for key, value in store.decisions(SOURCE).items() if value == source} - named
    unnamed = [
        (record.kind.name, record.id)
        for kind in KINDS
        for record in store.desired.of(kind)
        if (kind.name, record.id) in marked and not record.deleting
    ]
    kept = _needed(unnamed, store.desired) if source == UP else set()
    unnamed = [key for key in unnamed if key not in kept]

    def mark(writing: Writing) -> None:
        for wish in wanted:
            writing.decide(wish.kind, wish.id, SOURCE, source)
        for kind, id in kept:
            writing.undecide(BY_NAME[kind], id, SOURCE)

    with store.writing() as writing:
        changes = _converge(writing, wanted, unnamed if prunes else (), actor, mark, dry_run)
    return Applied(
        revision=store.desired.revision,
        written=not dry_run,
        changes=changes,
        unnamed=[] if prunes else [f"{kind} {id}" for kind, id in unnamed],
    )


def delete(store: Store, keys: Collection[Key], *, actor: str, dry_run: bool = False) -> Applied:
    """Delete resources, which may need each other; those that are not there are left out.

    Raises Conflict where something that stays needs one, or it is protected.
    """
    with store.writing() as writing:
        changes = _converge(writing, (), keys, actor, lambda _: None, dry_run)
    return Applied(revision=store.desired.revision, written=not dry_run, changes=changes)


def roll_back(store: Store, revision: int | None, *, actor: str, dry_run: bool = False) -> Applied:
    """Set the desired state back to that after `revision`; None: before the last change of a
    resource.

    Raises Invalid for a revision that is not known, or Conflict for what cannot be had again.
    """
    entries = history(store, limit=1)
    if revision is None:
        if not entries:
            raise Conflict("nothing was changed yet")
        revision = entries[0].revision - 1
    with store.writing() as writing:
        if not 0 <= revision <= writing.desired.revision:
            raise Invalid(
                f"there is no revision {revision}: the last is {writing.desired.revision}",
                field="revision",
            )
        wanted, absent = _state_after(writing, revision)
        changes = _converge(writing, wanted, absent, actor, lambda _: None, dry_run)
    return Applied(revision=store.desired.revision, written=not dry_run, changes=changes)


def _converge(
    writing: Writing,
    wanted: Iterable[Wish],
    absent: Collection[Key],
    actor: str,
    settle: Callable[[Writing], None],
    dry_run: bool,
) -> list[ResourceChange]:
    """Write what differs. Raises ControlError, and then nothing is written."""
    records = dict(writing.desired.records)
    changed: list[tuple[Wish, ResourceChange]] = []
    for wish in wanted:
        before = records.get((wish.kind.name, wish.id))
        if (change := _difference(wish, before)) is not None:
            changed.append((wish, change))
            records[wish.kind.name, wish.id] = Record(
                kind=wish.kind, id=wish.id, spec=wish.spec, revision=writing.desired.revision,
                created_at=writing.now, updated_at=writing.now,
            )  # fmt: skip
    going = [records[key] for key in absent if key in records and not records[key].deleting]
    for record in going:
        records[record.kind.name, record.id] = dataclasses.replace(record, deleting=True)
    after = Desired(writing.desired.revision, records)
    for wish, _ in changed:
        try:
            check_references(wish.spec, wish.id, after)
            if len(after.of(wish.kind)) > MAX_RESOURCES:
                raise Conflict(f"there would be more than {MAX_RESOURCES} {wish.kind.collection}")
        except ControlError as error:
            raise error.within(wish.path) from None
    order = [kind.name for kind in reversed(KINDS)]  # users before what they use
    going.sort(key=lambda record: order.index(record.kind.name))
    for record in going:
        check_deletable(record, after)
    removals = [
        ResourceChange(
            kind=record.kind.name, id=record.id, action="delete", changes=as_gone(record.spec)
        )
        for record in going
    ]
    if not dry_run:
        for wish, change in changed:
            put = writing.put(wish.kind, wish.id, wish.spec, revives=True)
            writing.audit(actor, change.action, wish.kind, wish.id, put.revision, change.changes)
        for record, change in zip(going, removals, strict=True):
            revision = writing.mark_deleting(record)
            writing.audit(actor, "delete", record.kind, record.id, revision, change.changes)
        settle(writing)
    return [change for _, change in changed] + removals


def _needed(keys: Sequence[Key], desired: Desired) -> set[Key]:
    """Return those, of keys in the order of `KINDS`, that cannot go with the others: what stays
    needs them, or they are protected."""
    records = dict(desired.records)
    records |= {key: dataclasses.replace(records[key], deleting=True) for key in keys}
    stay: set[Key] = set()
    for key in reversed(keys):  # users before what they use
        try:
            check_deletable(records[key], Desired(0, records))
        except Conflict:
            stay.add(key)
            records[key] = desired.records[key]
    return stay


def _difference(wish: Wish, before: Record | None) -> ResourceChange | None:
    """Return what a wish changes; None where all is so already. Raises Invalid."""
    if before is None or before.deleting:
        action = "create" if before is None else "restore"
        changes = as_new(wish.spec)
    else:
        after = msgspec.to_builtins(wish.spec)
        action, changes = "update", differences(msgspec.to_builtins(before.spec), after)
        if not changes:
            return None
        for field in changes:
            if field in wish.kind.fixed:
                raise Invalid(
                    f"{field} of {wish.kind.name} {wish.id!r} cannot be changed: "
                    "delete it, or choose another name",
                    field=f"{wish.path}.{field}" if wish.path else field,
                )
    return ResourceChange(kind=wish.kind.name, id=wish.id, action=action, changes=changes)


def _state_after(writing: Writing, revision: int) -> tuple[list[Wish], list[Key]]:
    """Return what was wanted after a revision of what was changed since, and what was not there.

    Raises Conflict where the audit log does not reach so far.
    """
    count, oldest = writing.execute(
        "SELECT count(*), min(revision) FROM audit WHERE outcome = 'granted'", ()
    )[0]
    if count >= MAX_AUDIT_ROWS["granted"] and revision < oldest - 1:
        raise Conflict(f"the audit log begins with revision {oldest}")
    values: dict[Key, dict[str, Any] | None] = {}
    rows = writing.execute(
        "SELECT kind, id, action, changes FROM audit WHERE outcome = 'granted' AND revision > ?"
        " AND kind IN (SELECT value FROM json_each(?)) ORDER BY sequence DESC",
        (revision, REVISED),
    )
    for name, id, action, encoded in rows:
        key = (name, id)
        changes: Mapping[str, list[Any]] = msgspec.json.decode(encoded)
        record = writing.desired.records.get(key)
        if key not in values:
            is_there = record is not None and not record.deleting
            values[key] = msgspec.to_builtins(record.spec) if record and is_there else None
        values[key] = _undone(values[key], action, changes, record, name, id)
    wanted, absent = [], []
    for kind in KINDS:  # what others need first
        for (name, id), fields in values.items():
            if name == kind.name and fields is not None:
                given = {field: value for field, value in fields.items() if value is not None}
                wanted.append(Wish(kind=kind, id=id, spec=spec_of(kind, given), path=""))
            elif name == kind.name:
                absent.append((name, id))
    return wanted, absent


def _undone(
    after: dict[str, Any] | None,
    action: str,
    changes: Mapping[str, list[Any]],
    record: Record | None,
    kind: str,
    id: str,
) -> dict[str, Any] | None:
    """Return a resource's fields before one entry of the audit log; None: it was not there."""
    if action in ("create", "restore"):
        return None
    if action == "update":
        return (after or {}) | {field: before for field, (before, _) in changes.items()}
    if changes:
        return {field: before for field, (before, _) in changes.items()}
    if record is None:
        raise Conflict(
            f"{kind} {id!r} was deleted by an earlier version of Skerry, which did not note what "
            "it was"
        )
    fields: dict[str, Any] = msgspec.to_builtins(record.spec)
    return fields
