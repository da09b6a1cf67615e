"""Resources over HTTP: for each kind a collection that is listed and added to, and its items."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from skerry_regions.control.api.access import ControlCaller
from skerry_regions.control.api.requests import (
    Control,
    actor_of,
    asked_of,
    caller_of,
    control_of,
    idempotency_key_of,
    if_match_of,
    json_answer,
    object_of,
    page_answer,
)
from skerry_regions.control.desired.desired import Record
from skerry_regions.control.desired.resources import BY_NAME, DEPLOYMENT, POOL, ResourceKind
from skerry_regions.control.desired.validation import check_planned
from skerry_regions.control.desired.views import view
from skerry_regions.control.errors import HiddenResource, Invalid, UnknownResource


@dataclass(frozen=True, slots=True)
class Resources:
    """The handlers of one kind."""

    kind: ResourceKind

    def shown(self, caller: ControlCaller, records: list[Record]) -> list[Record]:
        """Return the records that a caller may read."""
        return records

    async def prepared(self, request: Request, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of what a caller makes. Raises ControlError for what they may not."""
        return values

    def check_patch(self, request: Request, patch: dict[str, Any]) -> None:
        """Raise ControlError for a change that a caller may not make."""

    async def list_all(self, request: Request) -> Response:
        control = control_of(request)
        records = self.shown(caller_of(request), control.store.desired.of(self.kind))
        return page_answer(request, records, lambda each: view(each, control.observer.status(each)))

    async def create(self, request: Request) -> Response:
        control = control_of(request)
        values = await self.prepared(request, await object_of(request))
        actor, key = actor_of(request), idempotency_key_of(request)
        made = await asyncio.to_thread(
            lambda: control.changes.create(self.kind, values, actor=actor, idempotency_key=key)
        )
        control.changed()
        more = {} if made.secret is None else {"secret": made.secret}
        return resource_answer(control, made.record, 201, **more)

    async def get(self, request: Request) -> Response:
        return resource_answer(control_of(request), self.found(request))

    def found(self, request: Request) -> Record:
        """Return the record of a request's path. Raises NotFound, or HiddenResource."""
        control, id = control_of(request), request.path_params["id"]
        record = control.store.desired.get(self.kind, id)
        if record is None:
            raise UnknownResource(f"there is no {self.kind.name} {id!r}")
        if not self.shown(caller_of(request), [record]):
            raise HiddenResource(f"there is no {self.kind.name} {id!r}")
        return record

    async def update(self, request: Request) -> Response:
        control = control_of(request)
        patch = await object_of(request)
        self.check_patch(request, patch)
        id, actor, if_match = request.path_params["id"], actor_of(request), if_match_of(request)
        record = await asyncio.to_thread(
            lambda: control.changes.update(self.kind, id, patch, actor=actor, if_match=if_match)
        )
        control.changed()
        return resource_answer(control, record)

    async def delete(self, request: Request) -> Response:
        return await self.deleted(request, request.path_params["id"])

    async def deleted(self, request: Request, id: str) -> Response:
        """Delete it, and answer with whether it is gone already."""
        control, actor, if_match = control_of(request), actor_of(request), if_match_of(request)
        await asyncio.to_thread(
            lambda: control.changes.delete(self.kind, id, actor=actor, if_match=if_match)
        )
        control.changed()
        record = control.store.desired.get(self.kind, id)
        gone = Response(status_code=204)
        return gone if record is None else resource_answer(control, record, 202)


def resource_answer(control: Control, record: Record, status: int = 200, **more: Any) -> Response:
    """Answer with a resource as it is read back."""
    body = view(record, control.observer.status(record), **more)
    return json_answer(body, status, {"etag": f'"{record.etag}"'})


KindName = Literal[
    "region", "edge_node", "pool", "deployment", "api_token", "dns_zone", "dns_record", "routing"
]


class PlannedResource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody means to write. `unknown`: fields whose values are not known yet."""

    kind: KindName
    spec: dict[str, Any]
    unknown: tuple[str, ...] = ()


async def validate(request: Request) -> Response:
    """Refuse what could never be written, whatever is there by then; else answer 204.

    A model that no catalog has can be written, and is refused here: nothing of it would run.
    """
    control = control_of(request)
    planned = await asked_of(request, PlannedResource)
    kind = BY_NAME[planned.kind]
    try:
        check_planned(kind, planned.spec, planned.unknown)
    except Invalid as error:
        raise error.within("spec") from None
    model = planned.spec.get("model")
    if kind in (POOL, DEPLOYMENT) and model and (problem := await control.models.problem(model)):
        raise Invalid(problem, field="spec.model")
    return Response(status_code=204)
