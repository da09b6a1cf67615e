"""Metrics over HTTP: the control plane's own, its nodes', and where Prometheus finds them all."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from skerry_regions.control.api.requests import control_of, json_answer
from skerry_regions.control.errors import Busy, UnknownResource
from skerry_regions.control.reconcile.scraping import groups, page_address
from skerry_regions.process.pages import NoPage, page_of
from skerry_regions.prometheus import CONTENT_TYPE, exposition


async def metrics(request: Request) -> Response:
    """Answer with the control plane's own."""
    families = control_of(request).monitoring.metrics.families()
    return Response(exposition(families), media_type=CONTENT_TYPE)


async def node_metrics(request: Request) -> Response:
    """Answer with a node's page. Raises UnknownResource, or Busy while it does not answer."""
    id = request.path_params["id"]
    for member in control_of(request).monitoring.members():
        if member.id == id and (address := page_address(member)) is not None:
            try:
                return Response(await page_of(address, "/metrics"), media_type=CONTENT_TYPE)
            except NoPage as error:
                raise Busy(f"node {id!r} does not answer: {error}") from None
    raise UnknownResource(f"there is no node {id!r} that can be asked from here")


async def prometheus_sd(request: Request) -> Response:
    """Answer with all that there is to be scraped."""
    return json_answer(groups(control_of(request).monitoring))
