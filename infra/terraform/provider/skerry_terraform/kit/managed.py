"""The life of managed resources: plan, apply, read, import, upgrade.

Whatever happens during an apply, the state that is answered is of what exists: nothing that was
created is forgotten.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from skerry_terraform.kit.boundary import decoded, encoded, private_bytes, private_of
from skerry_terraform.kit.diagnostics import Diagnostics, Path, ProviderError, path_message
from skerry_terraform.kit.filling import Response, responds, told
from skerry_terraform.kit.messages import Message, message
from skerry_terraform.kit.planning import Attributes, Blocks, Object, plan_change
from skerry_terraform.kit.provider import CallContext, Resource
from skerry_terraform.kit.schema import Nesting, Schema
from skerry_terraform.kit.values import (
    Value,
    ValueMismatch,
    decode_json,
    from_raw,
    has_unknown,
    without_unknown,
)


class ManagedCalls:
    """`context` makes a call's context; it raises ProviderError."""

    def __init__(
        self, resources: Mapping[str, Resource[Any]], context: Callable[..., CallContext[Any]]
    ) -> None:
        self._resources = resources
        self._context = context

    @responds("PlanResourceChangeResponse")
    def plan(self, request: Message, response: Response) -> None:
        resource = self._resources[request.type_name]
        type_ = resource.schema.type
        response.fields["planned_state"] = request.proposed_new_state
        if decoded(type_, request.proposed_new_state) is None:
            return  # it is to be destroyed
        prior, config = decoded(type_, request.prior_state), decoded(type_, request.config)
        plan = plan_change(resource.schema, config, prior)
        ctx = self._context(
            prior=prior or {},
            config=config,
            planned=plan.planned,
            private=private_of(request.prior_private),
            diagnostics=response.diagnostics,
        )
        replace: list[Path] = [*plan.replace]
        resource.plan(ctx, replace)
        response.fields |= {
            "planned_state": encoded(type_, ctx.planned),
            "requires_replace": [path_message(path) for path in replace],
            "planned_private": private_bytes(ctx.private),
        }

    @responds("ApplyResourceChangeResponse")
    def apply(self, request: Message, response: Response) -> None:
        resource = self._resources[request.type_name]
        schema = resource.schema
        response.fields["new_state"] = request.prior_state
        prior, planned = (
            decoded(schema.type, value) for value in (request.prior_state, request.planned_state)
        )
        ctx = self._context(
            prior=prior or {},
            planned=planned or {},
            config=decoded(schema.type, request.config) or {},
            private=private_of(request.planned_private),
            diagnostics=response.diagnostics,
            saved=prior,
        )
        new: Object | None = None
        with told(response.diagnostics):
            if planned is None:
                resource.delete(ctx)
                ctx.saved = None
            else:
                new = resource.create(ctx) if prior is None else resource.update(ctx)
        response.fields |= {
            "new_state": _recorded(schema, new, ctx.saved, response.diagnostics),
            "private": private_bytes(ctx.private),
        }

    @responds("ReadResourceResponse")
    def read(self, request: Message, response: Response) -> None:
        resource = self._resources[request.type_name]
        response.fields |= {"new_state": request.current_state, "private": request.private}
        ctx = self._context(
            prior=decoded(resource.schema.type, request.current_state),
            private=private_of(request.private),
            diagnostics=response.diagnostics,
        )
        response.fields |= {
            "new_state": _stored_message(resource.schema, resource.read(ctx)),
            "private": private_bytes(ctx.private),
        }

    @responds("ImportResourceStateResponse")
    def import_(self, request: Message, response: Response) -> None:
        resource, ctx = (
            self._resources[request.type_name],
            self._context(diagnostics=response.diagnostics),
        )
        state = resource.import_(ctx, request.id)
        response.fields["imported_resources"] = [
            message(
                "ImportedResource",
                type_name=request.type_name,
                state=_stored_message(resource.schema, state),
                private=private_bytes(ctx.private),
            )
        ]

    @responds("UpgradeResourceStateResponse")
    def upgrade(self, request: Message, response: Response) -> None:
        resource = self._resources[request.type_name]
        schema, state = resource.schema, decode_json(request.raw_state.json)
        if request.version > schema.version:
            raise ProviderError(
                "The state was written by a newer provider",
                f"It has version {request.version} of {request.type_name}, and this provider "
                f"knows version {schema.version}. Use the newer provider.",
            )
        if request.version < schema.version:
            state = resource.upgrade(request.version, state)
        response.fields["upgraded_state"] = encoded(schema.type, from_raw(schema.type, state))


def _recorded(
    schema: Schema, new: Object | None, saved: Object | None, diagnostics: Diagnostics
) -> Message:
    """Return what goes into the state: `new`, or `saved` when the call failed or what it gave is
    wrong."""
    if new is not None:
        with told(diagnostics):
            if has_unknown(new):
                raise ValueMismatch("a value is still unknown after apply")
            return _stored_message(schema, new)
    return _stored_message(schema, without_unknown(saved))


def _stored_message(schema: Schema, state: Object | None) -> Message:
    stored = None if state is None else _stored(schema.attributes, schema.blocks, state)
    return encoded(schema.type, stored)


def _stored(attributes: Attributes, blocks: Blocks, state: Object) -> Object:
    """Return it without what is only written."""
    stored = {**state}
    for name, attr in attributes.items():
        if attr.write_only:
            stored[name] = None
        elif attr.nested is not None:
            inner = functools.partial(_stored, attr.nested, {})
            stored[name] = _over_objects(attr.nesting, state.get(name), inner)
    for name, block in blocks.items():
        inner = functools.partial(_stored, block.attributes, block.blocks)
        stored[name] = _over_objects(block.nesting, state.get(name), inner)
    return stored


def _over_objects(nesting: Nesting, value: Value, convert: Callable[[Object], Object]) -> Value:
    """Convert each nested object."""
    match value:
        case None:
            return None
        case list():
            return [each and convert(each) for each in value]
        case dict() if nesting == "map":
            return {key: each and convert(each) for key, each in value.items()}
        case _:
            return convert(value)
