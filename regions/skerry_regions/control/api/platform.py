"""The platform at a glance: its state, what runs, what happened, and who changed what."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from skerry import __version__
from skerry_regions.control.api.requests import (
    control_of,
    json_answer,
    limit_of,
    note,
    page_answer,
    sequence_of,
)
from skerry_regions.control.desired.resources import REGION
from skerry_regions.control.desired.statuses import RegionStatus
from skerry_regions.control.desired.store import AuditEntry, EventEntry
from skerry_regions.control.desired.views import PlatformStatus, RegionOverview


async def health(request: Request) -> Response:
    return json_answer({"status": "ok"})


async def status(request: Request) -> Response:
    control = control_of(request)
    desired = control.store.desired
    regions = []
    for record in desired.of(REGION):
        seen = control.observer.status(record)
        if not isinstance(seen, RegionStatus):
            seen = RegionStatus()
        regions.append(
            RegionOverview(
                name=record.id,
                phase=seen.phase,
                ready_nodes=seen.ready_nodes,
                desired_nodes=seen.desired_nodes,
            )
        )
    return json_answer(
        PlatformStatus(
            version=__version__,
            revision=desired.revision,
            observed_revision=control.observer.revision,
            account_id=control.account_id,
            regions=regions,
            failing=control.observer.failing(),
        )
    )


async def nodes(request: Request) -> Response:
    found = sorted(control_of(request).observer.nodes(), key=lambda node: node.id)
    return page_answer(request, found)


async def drain(request: Request) -> Response:
    """Have a process replaced, and note who wanted it."""
    id = request.path_params["id"]
    drained = control_of(request).observer.drain(id)
    await note(request, "drain", drained.kind, id, {})
    return json_answer(drained, 202)


async def events(request: Request) -> Response:
    store, after, limit = control_of(request).store, sequence_of(request), limit_of(request)
    kind, id = (request.query_params.get(name, "") for name in ("kind", "id"))
    return _log(await asyncio.to_thread(lambda: store.events(after, limit, kind=kind, id=id)))


async def audit(request: Request) -> Response:
    store, after, limit = control_of(request).store, sequence_of(request), limit_of(request)
    newest = request.query_params.get("newest", "") == "1"
    return _log(await asyncio.to_thread(lambda: store.audit(after, limit, newest=newest)))


def _log(entries: list[EventEntry] | list[AuditEntry]) -> Response:
    return json_answer({"items": entries, "next": entries[-1].sequence if entries else None})
