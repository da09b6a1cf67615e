"""Accounts over HTTP: what the tokens of each may spend together."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from skerry_regions.control.api.api_tokens import TokenCaps
from skerry_regions.control.api.requests import (
    actor_of,
    control_of,
    json_answer,
    object_of,
    page_answer,
)
from skerry_regions.control.desired.validation import converted
from skerry_regions.control.errors import Invalid, UnknownResource

ACCOUNT_ID = re.compile(r"[0-9a-f]{32}")


async def list_accounts(request: Request) -> Response:
    control = control_of(request)
    tokens = control.store.desired.api_tokens().values()
    ids = {control.account_id, *(each.account_id or control.account_id for each in tokens)}
    return page_answer(request, await asyncio.to_thread(control.accounts.caps, ids))


async def set_caps(request: Request) -> Response:
    """Change what an account may spend, and note who did."""
    control, actor, id = control_of(request), actor_of(request), request.path_params["id"]
    if not ACCOUNT_ID.fullmatch(id):
        raise UnknownResource("an account is 32 lower-case hex digits")
    patch = await object_of(request)
    if unknown := [name for name in patch if name not in TokenCaps.__struct_fields__]:
        raise Invalid("of an account, per_day and per_month are changed here", field=unknown[0])
    caps: TokenCaps = converted(TokenCaps, patch)

    def change() -> Any:
        before, after = control.accounts.change(id, {name: getattr(caps, name) for name in patch})
        changes = {name: [getattr(before, name), getattr(after, name)] for name in patch}
        with control.store.writing() as writing:
            writing.audit(actor, "update", "account", id, writing.desired.revision, changes)
        return after

    return json_answer(await asyncio.to_thread(change))
