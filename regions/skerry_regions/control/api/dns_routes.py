"""What DNS servers read of the control plane, and what a zone answers to somebody somewhere."""

from __future__ import annotations

import asyncio
import ipaddress

from starlette.requests import Request
from starlette.responses import Response

from skerry_regions.control.api.requests import control_of, json_answer
from skerry_regions.control.desired.views import DnsQuestion
from skerry_regions.control.errors import Invalid

MAX_NAME = 253


async def contents(request: Request) -> Response:
    """Answer with all that a server of the zone has to know; 304 while nothing has changed."""
    zones, zone = control_of(request).zones, request.path_params["id"]
    found = await asyncio.to_thread(zones.contents, zone)
    headers = {"etag": f'"{found.etag}"'}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(found.document, 200, headers, media_type="application/json")


async def answer(request: Request) -> Response:
    """Answer with what a zone says now to somebody somewhere."""
    control, question = control_of(request), question_of(request)
    return json_answer(await asyncio.to_thread(control.answer_dns, question))


def question_of(request: Request) -> DnsQuestion:
    """Raises Invalid."""
    query = request.query_params
    name, rdtype = query.get("name", ""), query.get("type", "A").upper()
    if not 0 < len(name) <= MAX_NAME:
        raise Invalid("give the name that is asked for", field="name")
    client = query.get("client", "")
    try:
        network = ipaddress.ip_network(client) if client else None
    except ValueError as error:
        raise Invalid(str(error), field="client") from None
    return DnsQuestion(name=name, type=rdtype, client=network)
