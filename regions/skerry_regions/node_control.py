"""A node's control API over HTTP: for its supervisor and its operator, never for clients.

    GET  /healthz   200 when every engine answers, else 503 and why
    GET  /status    the node as it announces itself, and its engines' figures
    GET  /metrics   Prometheus text, with vLLM's names where they exist
    POST /drain     as SIGTERM: take nothing new, finish or hand back, then end

It has no tokens of its own, so it listens on a unix socket of its owner or on loopback only; there,
a foreign `Host` is refused, because a web page may send requests to loopback too.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict

import msgspec
from aiohttp import web

from skerry_core.engine import Statistics
from skerry_regions.address import Address, AddressError
from skerry_regions.canary import Canary
from skerry_regions.registry import Member

MAX_BODY_BYTES = 1024
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ControlAPI:
    """Serves one node's control routes."""

    def __init__(
        self,
        *,
        describe: Callable[[], Member],
        statistics: Callable[[], Mapping[str, Statistics]],
        canary: Canary,
        drain: Callable[[], None],
    ) -> None:
        self._describe = describe
        self._statistics = statistics
        self._canary = canary
        self._drain = drain
        self._runner: web.AppRunner | None = None

    async def listen(self, address: Address) -> Address:
        """Raises OSError, or AddressError for an address that is neither unix nor loopback."""
        if not (address.path or _is_loopback(address.host)):
            raise AddressError(f"{address}: the control API listens on unix: or loopback only")
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_known_host])
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
        return web.json_response(body, status=200 if ailment is None else 503)

    async def _status(self, request: web.Request) -> web.Response:
        engines = {model: asdict(figures) for model, figures in self._statistics().items()}
        body = {"node": msgspec.to_builtins(self._describe()), "engines": engines}
        return web.json_response(body)

    async def _metrics(self, request: web.Request) -> web.Response:
        text = render_metrics(self._statistics())
        return web.Response(text=text, headers={"content-type": "text/plain; version=0.0.4"})

    async def _start_drain(self, request: web.Request) -> web.Response:
        self._drain()
        return web.json_response({"status": "draining"}, status=202)


@web.middleware
async def _known_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse names that only a hostile DNS points here."""
    host = request.host.rpartition(":")[0] if ":" in request.host else request.host
    if not _is_loopback(host.strip("[]")):
        return web.json_response({"status": "unknown host"}, status=421)
    return await handler(request)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_METRICS: tuple[tuple[str, str, str, Callable[[Statistics], float]], ...] = (
    ("vllm:num_requests_running", "gauge", "Sequences that hold KV blocks.", lambda s: s.running),
    ("vllm:num_requests_waiting", "gauge", "Sequences queued.", lambda s: s.waiting),
    (
        "vllm:kv_cache_usage_perc", "gauge", "Share of KV blocks in use, 0 to 1.",
        lambda s: s.blocks_used / s.blocks,
    ),
    (
        "vllm:num_preemptions_total", "counter", "Sequences preempted.",
        lambda s: s.preemptions,
    ),
    (
        "vllm:generation_tokens_total", "counter", "Tokens made.", lambda s: s.output_tokens,
    ),
    (
        "vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.",
        lambda s: s.cache_hit_tokens,
    ),
    ("skerry_engine_steps_total", "counter", "Engine steps.", lambda s: s.steps),
    (
        "skerry_engine_busy_seconds_total", "counter", "Seconds spent in steps.",
        lambda s: s.busy_seconds,
    ),
    (
        "skerry_engine_computed_tokens_total", "counter", "Tokens that ran through the model.",
        lambda s: s.computed_tokens,
    ),
    ("skerry_kv_blocks", "gauge", "KV blocks there are.", lambda s: s.blocks),
    ("skerry_kv_blocks_cached", "gauge", "Idle KV blocks that hold a prefix.",
     lambda s: s.blocks_cached),
)  # fmt: skip


def render_metrics(statistics: Mapping[str, Statistics]) -> str:
    """Prometheus text of some engines, by model."""
    lines = []
    for name, kind, help, value in _METRICS:
        lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
        lines += [
            f'{name}{{model_name="{_escaped(model)}"}} {value(figures)}'
            for model, figures in statistics.items()
        ]
    return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
