"""`GET …/ai/usage`: what the caller's account used, by the journal of this edge's zone."""

from __future__ import annotations

import asyncio
import sqlite3

from starlette.requests import Request
from starlette.responses import Response

from skerry.errors import InvalidInput, PermissionDenied, Unavailable
from skerry_edge.auth import Principal
from skerry_edge.dialects import JSONBytes, encode, envelope
from skerry_edge.routing import edge_of
from skerry_edge.usage_report import Totals, dimensions_of, reading, since_of, totals

DEFAULT_SINCE = "30d"


async def usage(request: Request) -> Response:
    """Sums of the account's requests since `since`, one for each value of the dimensions `by`."""
    edge = edge_of(request)
    tenant = _reader(request).account_id
    journal = edge.stores.journal
    if journal is None:
        raise Unavailable("This edge keeps no usage journal.")
    try:
        by = dimensions_of(request.query_params.get("by", ""))
        since = since_of(request.query_params.get("since", DEFAULT_SINCE), edge.wall_clock())
    except ValueError as error:
        raise InvalidInput(f"Bad input: {error}") from None

    def read() -> list[Totals]:
        journal.flush()
        with reading(journal.path) as database:
            return totals(database, by, since=since, tenant=tenant)

    try:
        return JSONBytes(envelope(encode(await asyncio.to_thread(read))))
    except (sqlite3.Error, OSError) as error:
        raise Unavailable("The usage journal cannot be read now.") from error


def _reader(request: Request) -> Principal:
    """The caller, if its token may read. Raises `PermissionDenied`."""
    principal = request.scope["principal"]
    if not isinstance(principal, Principal):
        raise TypeError("the route is not behind Authenticate")
    if not {"read", "admin"} & principal.scopes:
        raise PermissionDenied("This API token lacks the scope 'read'.")
    return principal
