"""API tokens over HTTP: each account's own, made within what the caller's own token is."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from skerry_regions.access import SCOPES_OF, Dollars, Grant, excess, role_of_admin
from skerry_regions.control.api.access import ControlCaller
from skerry_regions.control.api.requests import (
    asked_of,
    caller_of,
    control_of,
    if_match_of,
)
from skerry_regions.control.api.resources import Resources, resource_answer
from skerry_regions.control.desired.desired import Desired, Record
from skerry_regions.control.desired.resources import API_TOKEN, ApiTokenSpec
from skerry_regions.control.desired.validation import converted, spec_of
from skerry_regions.control.errors import Conflict, Forbidden, HiddenResource, Invalid

MAX_TOKENS = 1000  # of an account, but for what operators make
MAX_GRACE_SECONDS = 7 * 86_400

logger = logging.getLogger(__name__)


class Rotation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the secret of before works beside the new one."""

    grace_seconds: Annotated[int, Meta(ge=0, le=MAX_GRACE_SECONDS)] = 0


class TokenCaps(Struct, frozen=True, kw_only=True):
    """What of a token can be changed: US$ that it may spend in a UTC day and month."""

    per_day: Dollars | None = None
    per_month: Dollars | None = None


class ApiTokens(Resources):
    """The handlers of the kind."""

    def shown(self, caller: ControlCaller, records: list[Record]) -> list[Record]:
        """Return those of the caller's account; operators see all."""
        return [each for each in records if caller.operates or _is_own(caller, each)]

    async def prepared(self, request: Request, values: dict[str, Any]) -> dict[str, Any]:
        """Return a token's values as it is made: a child of the caller's own token.

        Raises Invalid, Conflict, or Forbidden for more than the caller is.
        """
        control, caller = control_of(request), caller_of(request)
        spec = spec_of(API_TOKEN, values)
        if not isinstance(spec, ApiTokenSpec):
            raise TypeError(f"{spec!r} is no API token")
        made = made_by(caller, spec, control.account_id, control.store.clock())
        desired = control.store.desired
        own = [each for each in desired.of(API_TOKEN) if _is_own(caller, each)]
        if not caller.operates and len(own) >= MAX_TOKENS:
            raise Conflict(f"the account has {MAX_TOKENS} API tokens already: delete some")
        if caller.login:
            bounds = caller.lasting_grant(control.store.clock())
            await asyncio.to_thread(
                control.changes.stand_for, caller.id, caller.login, caller.account_id, bounds
            )
        prepared: dict[str, Any] = msgspec.to_builtins(made)
        return prepared

    def check_patch(self, request: Request, patch: dict[str, Any]) -> None:
        """Raise Forbidden for caps beyond the caller's own, Invalid, or HiddenResource."""
        control, caller = control_of(request), caller_of(request)
        _check_may_hold(caller, self.found(request), control.store.desired)
        caps = converted(TokenCaps, {name: patch.get(name) for name in TokenCaps.__struct_fields__})
        asked = Grant(scopes=(), per_day=caps.per_day, per_month=caps.per_month)
        if (beyond := excess(asked, caller.lasting_grant(control.store.clock()))) is not None:
            raise Forbidden(beyond.message, field=beyond.field)

    async def delete(self, request: Request) -> Response:
        """Revoke a token, and with it all that were made with it."""
        control, id = control_of(request), request.path_params["id"]
        _check_may_hold(caller_of(request), self.found(request), control.store.desired)
        return await self.deleted(request, id)

    async def rotate(self, request: Request) -> Response:
        """Answer with another secret of the same token."""
        control, caller = control_of(request), caller_of(request)
        asked = await asked_of(request, Rotation, empty=b"{}")
        record, if_match = self.found(request), if_match_of(request)
        _check_may_hold(caller, record, control.store.desired)
        made = await asyncio.to_thread(
            lambda: control.changes.rotate(
                record.id, actor=caller.actor, if_match=if_match, grace_seconds=asked.grace_seconds
            )
        )
        return resource_answer(control, made.record, secret=made.secret)


def made_by(caller: ControlCaller, spec: ApiTokenSpec, platform: str, now: float) -> ApiTokenSpec:
    """Return what a caller makes of a spec. Raises Forbidden for more than they are, or Invalid.

    A token of the platform's own account says nothing of its account, as ever.
    """
    account = spec.account_id or caller.account_id
    role = spec.role
    if "admin" in spec.scopes:
        logger.warning(
            "the scope 'admin' of the API token %r is taken as a role; name one: it is refused "
            "from version 0.3 on",
            spec.name,
        )
        role = role or role_of_admin(account, platform)
    made = msgspec.structs.replace(
        spec,
        account_id=spec.account_id if account == platform else account,
        role=role,
        scopes=spec.scopes or SCOPES_OF[role],
    )
    if account != caller.account_id and not caller.operates:
        raise Forbidden("you make tokens of your own account only", field="account_id")
    if role == "operator" and account != platform:
        raise Invalid("operators are of the platform's own account", field="role")
    if spec.parent not in (None, caller.id):
        raise Invalid("a token's parent is the one that it is made with", field="parent")
    if (beyond := excess(made.grant, caller.lasting_grant(now))) is not None:
        raise Forbidden(beyond.message, field=beyond.field)
    return msgspec.structs.replace(made, parent=caller.id)


def _is_own(caller: ControlCaller, record: Record) -> bool:
    account = record.spec.account_id if isinstance(record.spec, ApiTokenSpec) else None
    return account == caller.account_id or (account is None and caller.is_platforms)


def _check_may_hold(caller: ControlCaller, record: Record, desired: Desired) -> None:
    """Raise Forbidden for a token that may be more than the caller's own: not made with it.

    Another account's raises HiddenResource.
    """
    if not caller.operates and not _is_own(caller, record):
        raise HiddenResource(f"there is no {API_TOKEN.name} {record.id!r}")
    if not caller.is_bounded:
        return
    tokens, above = desired.api_tokens(), {record.id}
    token = tokens.get(record.id)
    while token is not None and token.parent is not None and token.parent not in above:
        above.add(token.parent)
        token = tokens.get(token.parent)
    if caller.id not in above:
        raise Forbidden("it was not made with your own token: an operator can do this")
