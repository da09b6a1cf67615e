"""A node's control API over HTTP: for its supervisor and its operator, never for clients.

    GET  /healthz   200 when every engine answers, else 503 and why
    GET  /status    the node as it announces itself, its edges, and its engines' figures
    GET  /metrics   Prometheus text, with vLLM's names where they exist
    POST /drain     as SIGTERM: take nothing new, finish or hand back, then end

It has no tokens of its own, so it listens on a unix socket of its owner or on loopback only; there,
a foreign `Host` is refused, because a web page may send requests to loopback too, and so is
whatever a browser sends for a page (`Origin`, `Sec-Fetch-Site`): a form needs no consent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec
import orjson
from aiohttp import web

from skerry_core.engine.figures import Statistics
from skerry_regions.address import Address, AddressError, is_loopback
from skerry_regions.known_hosts import comes_from_page, is_known_host
from skerry_regions.node.canary import Canary
from skerry_regions.prometheus import CONTENT_TYPE, Metric, exposition
from skerry_regions.registry import Member

MAX_BODY_BYTES = 1024
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ControlAPI:
    """Serves one node's control routes."""

    def __init__(
        self,
        *,
        describe: Callable[[], Member],
        edges: Callable[[], list[str]],
        statistics: Callable[[], Mapping[str, Statistics]],
        metrics: Callable[[], Iterable[Metric]],
        canary: Canary,
        drain: Callable[[], None],
    ) -> None:
        self._describe = describe
        self._edges = edges
        self._statistics = statistics
        self._metrics_of = metrics
        self._canary = canary
        self._drain = drain
        self._runner: web.AppRunner | None = None

    async def listen(self, address: Address) -> Address:
        """Raises OSError, or AddressError for an address that is neither unix nor loopback."""
        if not (address.path or is_loopback(address.host)):
            raise AddressError(f"{address}: the control API listens on unix: or loopback only")
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_known_host, _no_page])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/status", self._status)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/drain", self._start_drain)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        assert self._runner.server is not None
        self._server, bound = await address.listen(self._runner.server)
        return bound

    async def close(self) -> None:
        if self._runner is not None:
            self._server.close()
            await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        ailment = await self._canary.ailment()
        body = {"status": "ok"} if ailment is None else {"status": "ill", "reason": ailment}
        return _json(body, status=200 if ailment is None else 503)

    async def _status(self, request: web.Request) -> web.Response:
        node = msgspec.to_builtins(self._describe())
        engines = dict(self._statistics())
        return _json({"node": node, "edges": self._edges(), "engines": engines})

    async def _metrics(self, request: web.Request) -> web.Response:
        body = exposition(self._metrics_of())
        return web.Response(body=body, headers={"content-type": CONTENT_TYPE})

    async def _start_drain(self, request: web.Request) -> web.Response:
        self._drain()
        return _json({"status": "draining"}, status=202)


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(body), status=status, content_type="application/json", charset="utf-8"
    )


@web.middleware
async def _known_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse names that only a hostile DNS points here."""
    if not is_known_host(request.host):
        return _json({"status": "unknown host"}, status=421)
    return await handler(request)


@web.middleware
async def _no_page(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse changes that a web page requests."""
    if request.method == "POST" and comes_from_page(request.headers):
        return _json({"status": "not for web pages"}, status=403)
    return await handler(request)
