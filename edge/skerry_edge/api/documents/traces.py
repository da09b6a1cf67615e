"""`GET …/ai/traces/{request_id}`: what one request did, for whoever runs the account."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from skerry.errors import NotFound
from skerry_edge.api.edge_request import edge_of, principal_of
from skerry_edge.envelopes import JSONBytes, encode, envelope


async def show_trace(request: Request) -> Response:
    """Return a trace that this edge remembers, of a request of the caller's own account.

    Raises `PermissionDenied` without a role, and `NotFound` for another account's too.
    """
    edge = edge_of(request)
    principal = principal_of(request)
    request_id = request.path_params["request_id"]
    record = edge.traces.record(request_id)
    if record is None or record.tenant != principal.account_id:
        raise NotFound(f"This edge remembers no request {request_id[:64]}.")
    return JSONBytes(envelope(encode(record)))
