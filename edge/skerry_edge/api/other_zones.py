"""What is kept in another zone than the edge's: an edge there answers, if the request may leave.

An id names its zone; one that names none is of the zone `global`, or of before there were zones, so
that it is looked for here first. The edge that has the client sends on nothing that is bound to its
zone, and the other one shows nothing that is bound to its own; both then have no such thing. What
was sent on is never sent on again.
"""

from __future__ import annotations

import functools

from starlette.responses import Response, StreamingResponse

from skerry.errors import NotFound
from skerry_edge.api.edge_request import EdgeRequest, Handler
from skerry_edge.envelopes import MODEL_HEADER
from skerry_edge.http.edge_calls import ZONE_KEY
from skerry_regions.wire.edge_calls import MAX_BODY, MAX_TARGET, MAX_VALUE, EdgeCall
from skerry_regions.zones import GLOBAL, allows, zone_of_id

SENT_ON = (
    "authorization", "cf-aig-authorization", "x-api-key", "content-type", "traceparent",
    MODEL_HEADER,
)  # fmt: skip


def of_any_zone(handler: Handler) -> Handler:
    """Return a handler that has an edge of another zone answer for what the path's `id` names."""

    @functools.wraps(handler)
    async def answered(request: EdgeRequest) -> Response:
        id = request.path_params["id"]
        if zone_of_id(id) is not None:
            return await from_elsewhere(request, id) or await handler(request)
        try:
            return await handler(request)
        except NotFound:
            if (answer := await from_elsewhere(request, id)) is None:
                raise
            return answer

    return answered


async def from_elsewhere(request: EdgeRequest, id: str) -> Response | None:
    """Return what an edge of the id's zone answers; None where that is this one, none is known, or
    the request must not leave. Of the body what was read is sent on. Raises as `ZoneCalls.call`."""
    zone, edge, scope = zone_of_id(id) or GLOBAL, request.edge, request.scope
    if zone == edge.residency or request.residency is not None or is_sent_on(request):
        return None
    query, body = scope["query_string"], request.content
    target = scope["raw_path"] + (b"?" + query if query else b"")
    headers = [
        (name.encode(), value.encode("latin-1"))
        for name in SENT_ON
        if (value := request.fields.get(name)) is not None
    ]
    longest = max((len(value) for _, value in headers), default=0)
    if len(target) > MAX_TARGET or len(body) > MAX_BODY or longest > MAX_VALUE:
        return None
    if edge.zone_calls is None or not edge.zone_calls.knows(zone):
        return None
    call = EdgeCall(
        stream=1,
        zone=edge.residency,
        method="GET" if scope["method"] == "HEAD" else scope["method"],
        target=target,
        headers=headers,
        body=body,
    )
    answer = await edge.zone_calls.call(zone, request.principal.account_id, call)
    response = StreamingResponse(answer.body(), answer.status)
    response.raw_headers = list(answer.headers)
    return response


def may_be_shown(request: EdgeRequest, bound: str | None) -> bool:
    """Return whether what is bound to a zone, or to none, may go to where the client's edge is."""
    return not is_sent_on(request) or allows(bound, request.scope[ZONE_KEY])


def is_sent_on(request: EdgeRequest) -> bool:
    """Return whether an edge of another zone has the client."""
    return ZONE_KEY in request.scope
