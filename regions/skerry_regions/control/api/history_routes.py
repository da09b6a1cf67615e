"""Many changes at once over HTTP: applying a manifest, its history, and going back."""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from skerry_regions.control.api.requests import (
    actor_of,
    asked_of,
    control_of,
    json_answer,
    limit_of,
    number_of,
)
from skerry_regions.control.desired import revisions
from skerry_regions.control.desired.history import history as past
from skerry_regions.control.desired.manifest import Manifest
from skerry_regions.control.desired.resources import API_TOKEN, KINDS
from skerry_regions.control.errors import ControlError, Invalid

LAST = (1 << 62) - 1
MAX_DELETED = 10_000  # at once
DELETABLE = [kind.name for kind in KINDS if kind is not API_TOKEN]  # tokens go one by one


class ManifestRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to want. `prune`: what earlier manifests named and this one does not goes."""

    manifest: Manifest
    prune: bool = False
    dry_run: bool = False  # only answer what would change


class ResourceKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One resource."""

    kind: str
    id: str


class DeleteRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to go, with what needs it."""

    resources: Annotated[tuple[ResourceKey, ...], Meta(min_length=1, max_length=MAX_DELETED)]
    dry_run: bool = False


class RollbackRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The revision to go back to; none: the one before the last change."""

    revision: int | None = None
    dry_run: bool = False


async def apply(request: Request) -> Response:
    """Set the desired state to what a manifest says: all of it, or nothing."""
    control, actor = control_of(request), actor_of(request)
    asked = await asked_of(request, ManifestRequest)
    if asked.manifest.state is not None:
        raise Invalid(
            "where machines keep what they share is set as the control plane starts: "
            "`skerry control --topology FILE`, or SKERRY_STATE",
            field="manifest.state",
        )
    try:
        applied = await asyncio.to_thread(
            lambda: revisions.apply(
                asked.manifest, control.store, actor=actor, prunes=asked.prune,
                dry_run=asked.dry_run,
            )
        )  # fmt: skip
    except ControlError as error:
        if error.field is None:
            raise
        raise error.within("manifest") from None
    control.changed()
    return json_answer(applied)


async def delete(request: Request) -> Response:
    """Delete resources: all of them, or none. What runs of them drains."""
    control, actor = control_of(request), actor_of(request)
    asked = await asked_of(request, DeleteRequest)
    for number, each in enumerate(asked.resources):
        if each.kind not in DELETABLE:
            raise Invalid(f"one of {', '.join(DELETABLE)}", field=f"resources[{number}].kind")
    keys = [(each.kind, each.id) for each in asked.resources]
    applied = await asyncio.to_thread(
        lambda: revisions.delete(control.store, keys, actor=actor, dry_run=asked.dry_run)
    )
    control.changed()
    return json_answer(applied)


async def rollback(request: Request) -> Response:
    """Set the desired state back to that after a revision: all of it, or nothing."""
    control, actor = control_of(request), actor_of(request)
    asked = await asked_of(request, RollbackRequest, empty=b"{}")
    if asked.revision is not None and asked.revision < 0:
        raise Invalid("revision: from 0 up", field="revision")
    applied = await asyncio.to_thread(
        lambda: revisions.roll_back(
            control.store, asked.revision, actor=actor, dry_run=asked.dry_run
        )
    )
    control.changed()
    return json_answer(applied)


async def acknowledge(request: Request) -> Response:
    """Forget an idempotency key of the caller: the answer has arrived."""
    control, actor, key = control_of(request), actor_of(request), request.path_params["key"]
    await asyncio.to_thread(lambda: control.changes.acknowledge(key, actor=actor))
    return Response(status_code=204)


async def history(request: Request) -> Response:
    """Answer with revisions, newest first."""
    store, limit = control_of(request).store, limit_of(request)
    before = number_of(request, "before", LAST, 0, LAST)
    kind, id = (request.query_params.get(name, "") for name in ("kind", "id"))
    entries = await asyncio.to_thread(
        lambda: past(store, before=before, limit=limit, kind=kind, id=id)
    )
    next = entries[-1].revision if len(entries) == limit else None
    return json_answer({"items": entries, "next": next})
