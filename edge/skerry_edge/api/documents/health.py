"""Health and metrics of the edge, for monitoring."""

from __future__ import annotations

from msgspec.structs import replace
from starlette.responses import Response

from skerry.errors import ModelNotFound
from skerry_edge.api.documents.openapi_bodies import ModelLeftOut, Readiness
from skerry_edge.api.edge_request import EdgeRequest
from skerry_edge.envelopes import JSONBytes, encode
from skerry_edge.generation.edge import Edge
from skerry_edge.telemetry import metrics


async def health(request: EdgeRequest) -> Response:
    """Answer `GET /healthz`: the process answers, and so do the engines in it."""
    ailment = request.edge.ailment()
    body = {"status": "ok"} if ailment is None else {"status": "ill", "reason": ailment}
    return JSONBytes(encode(body), 200 if ailment is None else 503)


async def ready(request: EdgeRequest) -> Response:
    """Answer `GET /readyz`: some model can be called, or, with `?model=`, that one; and which ones
    the start had to leave out."""
    edge, named = request.edge, request.query_params.get("model")
    models = sorted(edge.region.models())
    if named is not None:
        models = [each for each in models if named in _names(edge, each)]
    body = Readiness(
        status="ready" if models else f"no node serves {'a model' if named is None else named}",
        models=models,
        left_out=[ModelLeftOut(model, reason) for model, reason in sorted(edge.left_out.items())],
    )
    return JSONBytes(encode(body), 200 if models else 503)


def _names(edge: Edge, model: str) -> tuple[str, ...]:
    """Return the id of a model and its aliases."""
    try:
        return (model, *edge.catalog.resolve(model).aliases)
    except ModelNotFound:  # of a node whose catalog has more
        return (model,)


async def show_regions(request: EdgeRequest) -> Response:
    """Answer `GET /regions`: what DNS servers choose regions by."""
    edge = request.edge
    report = edge.report()
    if request.query_params.get("clients") == "1":
        report = replace(report, client_rtt_seconds=edge.client_rtts.report())
    return JSONBytes(encode(report))


async def show_metrics(request: EdgeRequest) -> Response:
    """Answer `GET /metrics` with Prometheus text: sums over all tenants, for the operator."""
    return Response(request.edge.metrics.render(), media_type=metrics.CONTENT_TYPE)
