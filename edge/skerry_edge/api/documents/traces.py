"""`GET …/ai/traces/{request_id}`: what one request did, for whoever runs the account."""

from __future__ import annotations

from starlette.responses import Response

from skerry.errors import NotFound
from skerry_edge.api.edge_request import EdgeRequest
from skerry_edge.envelopes import JSONBytes, encode, envelope


async def show_trace(request: EdgeRequest) -> Response:
    """Return a trace that this edge remembers, of a request of the caller's own account.

    Raises `PermissionDenied` without a role, and `NotFound` for another account's too.
    """
    request_id = request.path_params["request_id"]
    record = request.edge.traces.record(request_id)
    if record is None or record.tenant != request.principal.account_id:
        raise NotFound(f"This edge remembers no request {request_id[:64]}.")
    return JSONBytes(envelope(encode(record)))
