"""What all kinds of resources of the control plane have in common.

A kind says its name, collection and schema. What can be configured, attributes and blocks, is what
the API calls the fields of the resource, by the same names; what is only read is found in the API's
answers by name.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

from skerry_terraform.kit.diagnostics import Path, ProviderError
from skerry_terraform.kit.planning import Object
from skerry_terraform.kit.provider import CallContext, Resource
from skerry_terraform.kit.schema import Attr, Block, matching
from skerry_terraform.kit.values import (
    BOOL,
    UNKNOWN,
    Type,
    Value,
    from_raw,
    has_unknown,
    same,
    without_unknown,
)
from skerry_terraform.kit.waiting import TimedOut, WaitInterrupted, check_duration, duration, wait
from skerry_terraform.provider.client import ControlPlane, Unreachable
from skerry_terraform.provider.readiness import NotReady, ReadinessPoll
from skerry_terraform.provider.refusals import RequestRefused, explained

LABEL = matching("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a DNS label: a-z, 0-9 and -, at most 63")
"""What regions, pools, edge nodes and deployments may be called."""

Ctx = CallContext[ControlPlane]

DEFAULT_TIMEOUT = "10m"
WAIT_FOR_READY = "wait_for_ready"
TIMEOUTS = "timeouts"


def common(**attributes: Attr) -> dict[str, Attr]:
    """Return the attributes of a kind, with those that every kind has."""
    return {
        "id": Attr(computed=True, keep=True, doc="By which it is imported."),
        **attributes,
        "created_at": Attr(computed=True, keep=True, doc="RFC 3339, UTC."),
    }


def waits(what: str) -> Attr:
    """Return the attribute of kinds that become ready some time after they were written."""
    return Attr(BOOL, default=True, doc=f"Apply ends when {what}.")


def timeouts(*actions: str) -> dict[str, Block]:
    """Return the block of kinds that wait."""
    durations = {
        action: Attr(optional=True, check=check_duration, doc=f"Such as 90s or 10m: {action}.")
        for action in actions
    }
    doc = f"How long apply waits; {DEFAULT_TIMEOUT} if not given."
    return {TIMEOUTS: Block(attributes=durations, nesting="single", doc=doc)}


def read_back(found: Object, name: str, absent: Value = None) -> Value:
    """Return what an answer of the API says of an attribute; `status` is its phase alone."""
    status = found.get("status", {})
    if name == "status":
        return status.get("phase")
    for place in (found, found["meta"], status):
        if name in place:
            return place[name]
    return absent


class ControlResource(Resource[ControlPlane]):
    """A kind of resource of the control plane."""

    collection: ClassVar[str]  # in the API's paths
    local: ClassVar[frozenset[str]] = frozenset({WAIT_FOR_READY, TIMEOUTS})
    """What can be configured and the API does not know: it is in the state only."""
    is_checked: ClassVar[bool] = True  # by the control plane when it is planned

    def id_of(self, values: Object) -> Value:
        """Return the id that a resource of these values gets; UNKNOWN when it cannot be known."""
        return values["name"]

    # --- between Terraform's objects and the API's -----------------------------------------------

    def fields(self) -> dict[str, Type]:
        """Return what the API takes."""
        members: dict[str, Attr | Block] = {**self.schema.attributes, **self.schema.blocks}
        return {
            name: member.value_type
            for name, member in members.items()
            if name not in self.local and (isinstance(member, Block) or member.is_configurable)
        }

    def body(self, values: Object) -> Object:
        """Return what is sent to create it."""
        return {name: values[name] for name in self.fields() if values[name] is not None}

    def patch(self, prior: Object, planned: Object) -> Object:
        """Return what is sent to change it; null takes a field back to its default."""
        return {
            name: planned[name]
            for name, type_ in self.fields().items()
            if not same(type_, prior.get(name), planned[name])
        }

    def state(self, found: Object, kept: Object) -> Object:
        """Return that of the API's answer, and what was planned or known before."""
        known = without_unknown(kept)
        read = {
            name: known.get(name) if name in self.local else read_back(found, name, known.get(name))
            for name in self.schema.type.attributes
        }
        for name, attr in self.schema.attributes.items():
            if name in self.local and read[name] is None and attr.has_default:
                read[name] = attr.default  # of what was imported
        state: Object = from_raw(self.schema.type, read)
        return state

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self.name, self.schema.type.attributes)

    # --- what Terraform requests -----------------------------------------------------------------

    def plan(self, ctx: Ctx, replace: list[Path]) -> None:
        if ctx.planned["id"] is UNKNOWN:
            ctx.planned["id"] = self.id_of(ctx.planned)
        if self.is_checked and ctx.planned != ctx.prior:
            self._check(ctx)

    def create(self, ctx: Ctx) -> Object:
        found = self._create(ctx)
        key = ctx.client.key_of(self.collection, found["id"])
        try:
            return self._settle(ctx, found, "create")
        finally:  # not when we are killed: then the next run is to find it
            if ctx.stop.is_set():  # Terraform may be gone, and never see it
                ctx.private["key"] = key
            else:
                ctx.client.acknowledge(key)

    def read(self, ctx: Ctx) -> Object | None:
        """Read it. One that is being deleted counts as gone: it will be, whatever is planned."""
        found = self._get(ctx, ctx.prior["id"])
        if found is None or found["meta"]["deleting"]:
            return None
        ctx.private["etag"] = found["meta"]["etag"]
        ctx.client.acknowledge(ctx.private.pop("key", None))  # Terraform has it
        return self.state(found, ctx.prior)

    def update(self, ctx: Ctx) -> Object:
        patch = self.patch(ctx.prior, ctx.planned)
        id = ctx.prior["id"]
        with self._explained():
            found = ctx.client.update(self.collection, id, patch, ctx.private.get("etag"))
        return self._settle(ctx, found, "update")

    def delete(self, ctx: Ctx) -> None:
        id = ctx.prior["id"]
        with self._explained():
            is_gone = ctx.client.delete(self.collection, id)
        if not is_gone:
            self._until_gone(ctx, id, "delete")

    def import_(self, ctx: Ctx, id: str) -> Object:
        found = self._get(ctx, id)
        if found is None or found["meta"]["deleting"]:
            raise ProviderError(
                f"There is no {self.name} {id!r} to import", f"The control plane: {ctx.client.url}"
            )
        return self.state(found, {})

    # --- steps -----------------------------------------------------------------------------------

    def _check(self, ctx: Ctx) -> None:
        """Have the control plane check what is planned; one that is not there yet cannot."""
        values = self.body(ctx.planned)
        unknown = [name for name, value in values.items() if has_unknown(value)]
        known = {name: value for name, value in values.items() if name not in unknown}
        try:
            with self._explained():
                ctx.client.validate(self.name, known, unknown)
        except Unreachable:
            ctx.diagnostics.warning(
                "The plan was not checked by the control plane",
                f"{ctx.client.url} cannot be reached. Airports and models that it does not know "
                "are refused by apply.",
            )

    def _get(self, ctx: Ctx, id: str) -> Object | None:
        with self._explained():
            return ctx.client.get(self.collection, id)

    def _create(self, ctx: Ctx) -> Object:
        body = self.body(ctx.planned)
        with self._explained():
            try:
                return ctx.client.create(self.collection, body)
            except RequestRefused as refused:
                self._make_way(ctx, refused)
            return ctx.client.create(self.collection, body)

    def _make_way(self, ctx: Ctx, refused: RequestRefused) -> None:
        """Wait for one of the same name that is being deleted. Raises what else was refused."""
        id = ctx.planned["id"]
        found = self._get(ctx, id) if refused.status == 409 and id is not UNKNOWN else None
        if found is None:
            raise refused
        if not found["meta"]["deleting"]:
            raise self._exists(id) from None
        self._until_gone(ctx, id, "create")

    def _exists(self, id: str) -> ProviderError:
        return ProviderError(
            f"The {self.name} {id!r} exists already",
            "If Terraform shall have it from now on, add:\n\n"
            f'  import {{\n    to = skerry_{self.name}.NAME\n    id = "{id}"\n  }}\n\n'
            "If Terraform has it, and would replace it by create_before_destroy, its name is taken "
            "until it goes: keep it with `terraform untaint`, or give the new one another name.",
            ("name",),
        )

    def _settle(self, ctx: Ctx, found: Object, action: str) -> Object:
        """Note what exists, then wait until it is ready; the final state."""
        state = self._noted(ctx, found)
        if not ctx.planned.get(WAIT_FOR_READY):
            return state
        readiness = ReadinessPoll(ctx.client, self.collection, found)
        try:
            found = wait(readiness.poll, self._seconds(ctx.planned, action), ctx.stop)
        except RequestRefused as refused:
            return self._unclear(ctx, readiness, f"It cannot be looked at: {refused.message}")
        except WaitInterrupted:
            return self._unclear(ctx, readiness, "Terraform was interrupted.")
        except (TimedOut, NotReady) as error:
            if readiness.is_away:
                return self._unclear(ctx, readiness, "The control plane cannot be reached.")
            self._noted(ctx, readiness.found)
            raise ProviderError(
                f"The {self.name} {found['id']!r} did not become ready",
                f"{error or 'It took too long'}: {readiness.told}",
            ) from None
        return self._noted(ctx, found)

    def _unclear(self, ctx: Ctx, readiness: ReadinessPoll, why: str) -> Object:
        """Warn: it exists, and may well become ready: an error would have Terraform replace it."""
        ctx.diagnostics.warning(
            f"The {self.name} {readiness.found['id']!r} may not be ready yet",
            f"{why} The control plane goes on by itself. Seen last: {readiness.told}",
        )
        return self._noted(ctx, readiness.found)

    def _noted(self, ctx: Ctx, found: Object) -> Object:
        state = self.state(found, ctx.planned)
        ctx.private["etag"] = found["meta"]["etag"]
        ctx.save(state)
        return state

    def _until_gone(self, ctx: Ctx, id: str, action: str) -> None:
        def poll() -> bool | None:
            return True if self._get(ctx, id) is None else None

        values = ctx.planned or ctx.prior
        try:
            wait(poll, self._seconds(values, action), ctx.stop)
        except (WaitInterrupted, TimedOut):
            raise ProviderError(
                f"The {self.name} {id!r} still drains",
                "It was asked to go, and goes when its last stream has ended.",
            ) from None

    @staticmethod
    def _seconds(values: Object, action: str) -> float:
        given = (values.get(TIMEOUTS) or {}).get(action)
        return duration(given or DEFAULT_TIMEOUT)
