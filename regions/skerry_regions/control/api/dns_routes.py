"""What DNS servers read of the control plane, and what a zone answers to somebody somewhere.

GET /control/v1/dns_zones/{id}/contents    If-None-Match: 304 while nothing has changed
GET /control/v1/dns_answer?name=&type=&client=
"""

from __future__ import annotations

import asyncio
import ipaddress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skerry_regions.control.api.dns_contents import ZoneBook
from skerry_regions.control.api.requests import json_answer
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.views import AnswerDns, DnsQuestion
from skerry_regions.control.errors import Invalid

MAX_NAME = 253


def dns_routes(store: Store, answer: AnswerDns, prefix: str) -> list[Route]:
    book = ZoneBook(store)

    async def contents(request: Request) -> Response:
        zone = request.path_params["id"]
        found = await asyncio.to_thread(lambda: book.contents(zone))
        headers = {"etag": f'"{found.etag}"'}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(found.document, 200, headers, media_type="application/json")

    async def answered(request: Request) -> Response:
        question = question_of(request)
        return json_answer(await asyncio.to_thread(lambda: answer(question)))

    return [
        Route(f"{prefix}/dns_zones/{{id}}/contents", contents, methods=["GET"]),
        Route(f"{prefix}/dns_answer", answered, methods=["GET"]),
    ]


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
