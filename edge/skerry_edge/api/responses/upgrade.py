"""`GET …/v1/responses`: who may switch to a WebSocket, and how many at once."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from skerry.errors import PermissionDenied
from skerry_edge.api import cors
from skerry_edge.api.edge_request import EdgeRequest
from skerry_edge.http.handshake import UPGRADE, accepted


async def connect(request: EdgeRequest) -> Response:
    """Switch to a WebSocket. Raises what refuses it, which is answered over HTTP."""
    request.answer_headers.update(UPGRADE)
    request.answer_headers.update(accepted(request.fields))
    origin, origins = request.fields.get("origin"), request.edge.cors_origins
    if origin is not None and cors.ANY not in origins and origin not in origins:
        raise PermissionDenied("Pages of this origin may not call here.")
    return _Switch(request)


class _Switch(Response):
    """The answer that switches, and lasts as long as the connection."""

    def __init__(self, request: EdgeRequest) -> None:
        self.background = None
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from skerry_edge.api.responses.socket import ResponsesSocket  # wsproto, with the first one

        edge, tenant = self._request.edge, self._request.principal.account_id
        limits, own = edge.limits, edge.admission.quotas.account(tenant).websockets
        most = limits.tenant_sockets if own is None else edge.admission.part(own)
        edge.sockets.enter(tenant, most=most, most_of_all=limits.max_sockets)
        edge.metrics.sockets.change(1)
        socket = ResponsesSocket(self._request, receive, send)
        try:
            await socket.run()
        finally:
            edge.sockets.leave(tenant)
            edge.metrics.sockets.change(-1)
            edge.metrics.socket_ends.add(1, str(int(socket.websocket.code)))
