"""AI Gateway's own routes: its URLs, and requests whose steps are tried in order.

    POST /ai-gateway/universal/run/{gateway}      [{provider, endpoint, headers, query}, …]
    POST /v1/{account}/{gateway}                  the same, as a gateway's URL has it
    POST /v1/{account}/{gateway}/workers-ai/…     a model, or `v1/…`
    POST /v1/{account}/{gateway}/compat/chat/completions

The providers served are `workers-ai` and `compat`, both by the models of this platform.
"""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from skerry.errors import InvalidInput, NotFound, SkerryError, TaskNotSupported
from skerry_edge.api.bodies import decode
from skerry_edge.api.edge_request import EdgeRequest, Handler
from skerry_edge.api.gateway_options import apply_headers
from skerry_edge.api.openai import chat
from skerry_edge.api.workers_ai import native
from skerry_edge.envelopes import REST, JSONBytes, encode, envelope
from skerry_edge.generation.sse import EventStream
from skerry_edge.ledger.response_cache import GATEWAY_HEADER
from skerry_regions.known_hosts import BINDING_HOST

MAX_STEPS: Final = 16
MAX_GATEWAY: Final = 128  # characters of its id
STEP_HEADER: Final = "cf-aig-step"
PREFIX: Final = "workers-ai/"  # of a model's name where the provider is part of it
CHAT: Final = "chat/completions"
PROVIDERS: Final = ("workers-ai", "compat")
NO_LOG: Final = 7002  # by which a Worker's binding knows that there is no such log


class GatewayStep(Struct):
    """One request of a list."""

    provider: str
    query: msgspec.Raw
    endpoint: str = ""
    headers: dict[str, Any] = {}


_steps = msgspec.json.Decoder(
    Annotated[list[GatewayStep], Meta(min_length=1, max_length=MAX_STEPS)]
)
_fields = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def in_gateway(handler: Handler) -> Handler:
    """Return a handler of requests of the gateway that the path names: its answers are kept apart
    from other gateways'."""

    async def handle(request: EdgeRequest) -> Response:
        request.fields = {**request.fields, GATEWAY_HEADER: _gateway(request)}
        return await handler(request)

    return handle


async def compat(request: EdgeRequest) -> Response:
    """Answer `POST …/compat/chat/completions`: the model's name has its provider before it."""
    return await chat.answer_body(request, await request.read(), PREFIX)


async def universal(request: EdgeRequest) -> Response:
    """Answer by the first step that succeeds, whose place `cf-aig-step` names. Raises the last
    one's error.

    Any error leads to the next step, also one of the step's own making, as upstream documents it
    (AI Gateway, "Fallbacks"); so does a time limit, which counts from the step's start to the first
    part of its answer. A stream that has begun is the answer, whatever becomes of it.
    """
    body = await request.read()
    steps = decode(_steps, body)
    request.ignore(
        [
            f"[].{name}"
            for fields in _fields.decode(body)
            for name in fields.keys() - set(GatewayStep.__struct_fields__)
        ]
    )
    failure: SkerryError | None = None
    fields, headers = request.fields, dict(request.answer_headers)
    for place, step in enumerate(steps):
        request.fields, request.step_started = fields, request.edge.clock()
        request.answer_headers.clear()  # of a step that failed
        request.answer_headers.update(headers)
        apply_headers(request, step.headers)
        try:
            answer = await _answered(request, step, f"[{place}]")
            if isinstance(answer, EventStream):
                await answer.begin(request.receive)
        except SkerryError as error:
            failure = error
            continue
        request.answer_headers[STEP_HEADER] = str(place)
        return answer
    raise failure or InvalidInput("Bad input: there is no step")


async def _answered(request: EdgeRequest, step: GatewayStep, where: str) -> Response:
    query, endpoint = bytes(step.query), step.endpoint.strip("/")
    match step.provider:
        case "workers-ai" if endpoint == f"v1/{CHAT}":
            return await chat.answer_body(request, query)
        case "workers-ai":
            return await native.answer(request, request.edge.requested(endpoint), query, REST)
        case "compat" if endpoint == CHAT:
            return await chat.answer_body(request, query, PREFIX)
        case "compat":
            name = f"{where}.endpoint"
            raise InvalidInput(f"Bad input: {name}: of compat only {CHAT} is served", param=name)
        case other:
            raise TaskNotSupported(_unknown(other), param=f"{where}.provider")


async def url(request: EdgeRequest) -> Response:
    """Answer `GET /ai-gateway/gateways/{gateway}/url/{provider}`: where requests of it are sent."""
    provider = request.path_params["provider"]
    if provider not in (*PROVIDERS, "universal"):
        raise NotFound(_unknown(provider))
    account, gateway = request.principal.account_id, quote(_gateway(request), safe="")
    host = request.headers.get("host") or request.url.netloc
    if host == BINDING_HOST:  # which leads nowhere: the runtime sends elsewhere what is for it
        own, port = request.scope["server"]
        host = f"[{own}]:{port}" if ":" in own else f"{own}:{port}"
    path = "" if provider == "universal" else f"/{provider}"
    found = {"url": f"{request.url.scheme}://{host}/v1/{account}/{gateway}{path}"}
    return JSONBytes(envelope(encode(found)))


async def log(request: EdgeRequest) -> Response:
    """Answer `…/logs/{id}`: a gateway of this platform keeps none; requests have traces."""
    errors = [{"code": NO_LOG, "message": "No such log: gateways here keep none; see traces."}]
    body = {"result": None, "success": False, "errors": errors, "messages": []}
    return JSONBytes(encode(body), 404)


async def markdown(request: EdgeRequest) -> Response:
    """Refuse `toMarkdown` by its name."""
    raise TaskNotSupported("toMarkdown is not supported: no model here reads files.")


async def markdown_formats(request: EdgeRequest) -> Response:
    """Answer which files `toMarkdown` takes: none."""
    return JSONBytes(envelope(b"[]"))


async def autorag(request: EdgeRequest) -> Response:
    """Refuse `autorag` by its name."""
    raise TaskNotSupported("autorag is not supported: nothing is indexed here.")


def _gateway(request: EdgeRequest) -> str:
    name: str = request.path_params["gateway"]
    if len(name) > MAX_GATEWAY:
        raise InvalidInput(f"Bad input: a gateway's id has at most {MAX_GATEWAY} characters")
    return name


def _unknown(provider: str) -> str:
    return f"The provider {provider[:40]!r} is not served; {' and '.join(PROVIDERS)} are."
