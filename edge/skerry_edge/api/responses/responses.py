"""OpenAI's Responses: an answer or its typed events, and conversations that the edge remembers.

A request becomes that of a chat completion and is prepared as one. A finished answer is stored with
its conversation, unless `store` is false, so that `previous_response_id` can go on from it;
instructions are not part of a conversation. What goes on from one that is bound to a residency zone
is bound to it as well.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
from starlette.responses import Response

from skerry.errors import InvalidInput, NotFound, RequestError, ResponseNotFound
from skerry.wire.openai import ChatCompletionRequest
from skerry_edge.api.batch.files import list_query
from skerry_edge.api.bodies import Body
from skerry_edge.api.edge_request import EdgeRequest, arrive, read_json
from skerry_edge.api.fields import renamed
from skerry_edge.api.handler import attended, begin, caller_of, event_stream, with_session
from skerry_edge.api.openai.chat_job import chat_job
from skerry_edge.api.openai.prompt_cache import SIGN
from skerry_edge.api.other_zones import is_sent_on, may_be_shown, of_any_zone
from skerry_edge.api.responses.recent import SocketCall
from skerry_edge.api.responses.responses_answer import (
    Draft,
    Events,
    begun,
    collect,
    events_of,
    warmed,
)
from skerry_edge.api.responses.responses_input import (
    breakpoints_of,
    chat_request,
    left_out,
    open_thoughts,
    turns_of,
)
from skerry_edge.api.responses.responses_items import conversation_ids, input_ids, listed
from skerry_edge.api.responses.responses_wire import (
    CreateEvent,
    DeletedResponse,
    InputTokens,
    InputTokensRequest,
    ResponsesRequest,
)
from skerry_edge.api.thought_seal import ThoughtSeal
from skerry_edge.api.upstream_fields import RESPONSES
from skerry_edge.envelopes import JSONBytes, encode
from skerry_edge.gate.caller import Caller
from skerry_edge.gate.job import Job
from skerry_edge.generation.edge import Edge
from skerry_edge.ledger.responses_store import StoredResponse
from skerry_edge.text.breakpoints import Breakpoints
from skerry_regions.zones import elsewhere, id_in

# What chat completions call a field, and what it is called here.
FIELDS = {
    "reasoning_effort": "reasoning.effort",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}

_body = Body(ResponsesRequest, RESPONSES)
_event_body = Body(CreateEvent, RESPONSES)
_count_body = Body(InputTokensRequest, RESPONSES)


async def create(request: EdgeRequest) -> Response:
    """Handle `POST …/v1/responses`, and `response.create` of a WebSocket."""
    edge, inside = request.edge, request.inside
    call = inside if isinstance(inside, SocketCall) else None
    if call is None:
        asked, warms = await read_json(request, _body), False
    else:
        event = await read_json(request, _event_body)
        asked, warms = event, event.generate is False
    caller = caller_of(request)
    request.ignore(left_out(asked))
    await arrive(request, edge.requested(asked.model))
    seal = _opened(edge, asked, caller)
    goes_on = asked.previous_response_id is not None or (warms and asked.instructions)
    turns = [] if asked.input == [] and goes_on else turns_of(asked.input)
    ids = input_ids(asked.input, caller.request_id)
    if (previous := await _previous(edge, caller.tenant, asked, call)) is not None:
        turns, ids = previous.messages + turns, conversation_ids(previous) + ids
        zone = previous.residency or caller.residency
        cache_key = edge.cache_keys[caller.tenant, zone]
        caller = replace(caller, residency=zone, cache_key=cache_key)
    breakpoints: Breakpoints = ()
    if SIGN in request.content:
        caller = with_session(caller, asked.prompt_cache_key)
        breakpoints = breakpoints_of(asked, previous.messages if previous else ())
    job = await _job(edge, chat_request(asked, turns), caller, breakpoints)
    choices = await begin(request, _warming(job) if warms else job)
    draft = Draft(
        edge=edge,
        tenant=caller.tenant,
        conversation=turns,
        ids=ids,
        residency=caller.residency,
        response=begun(
            asked,
            job.submit.sampling,
            id_in(edge.residency, "resp_", caller.request_id),
            int(edge.wall_clock()),
        ),
        stored=asked.store is not False and edge.responses is not None,
        seal=seal,
        call=call,
    )
    if not asked.stream and call is None:
        return JSONBytes(await attended(request, caller, collect(choices, draft)))
    events = Events()
    return event_stream(
        request,
        caller,
        choices,
        (warmed if warms else events_of)(choices, draft, events),
        events.error,
    )


async def count_tokens(request: EdgeRequest) -> Response:
    """Handle `POST …/v1/responses/input_tokens`: the length of a prompt, without running it."""
    edge, asked = request.edge, await read_json(request, _count_body)
    fields = {name: getattr(asked, name) for name in InputTokensRequest.__struct_fields__}
    caller = caller_of(request)
    await arrive(request, edge.requested(asked.model))
    _opened(edge, asked, caller)
    turns, previous = turns_of(asked.input), await _previous(edge, caller.tenant, asked)
    if previous is not None:
        turns = previous.messages + turns
    whole = ResponsesRequest(**fields, max_output_tokens=1)
    job = await _job(edge, chat_request(whole, turns), caller)
    request.ignore(job.ignored)
    return JSONBytes(encode(InputTokens(len(job.submit.prompt_ids))))


@of_any_zone
async def retrieve(request: EdgeRequest) -> Response:
    """Handle `GET …/v1/responses/{id}`: a stored answer."""
    return JSONBytes(bytes((await _asked_for(request)).response))


@of_any_zone
async def input_items(request: EdgeRequest) -> Response:
    """Handle `GET …/v1/responses/{id}/input_items`: what it was made of, the newest first unless
    `order=asc`; `after` and `limit` page through it."""
    query, params = list_query(request), request.query_params
    order = params.get("order") or "desc"
    if order not in ("asc", "desc"):
        raise InvalidInput("Bad input: order: asc or desc", param="order")
    if any(name in params for name in ("include", "include[]")):  # nothing of it is kept of items
        request.ignore(["include"])
    stored = await _asked_for(request)
    newest_first = order == "desc"
    return JSONBytes(
        await asyncio.to_thread(lambda: encode(listed(stored, query, newest_first=newest_first)))
    )


@of_any_zone
async def delete(request: EdgeRequest) -> Response:
    """Handle `DELETE …/v1/responses/{id}`."""
    responses, id = request.edge.responses, request.path_params["id"]
    if is_sent_on(request):
        await _asked_for(request)
    if responses is None or not await responses.delete(request.principal.account_id, id):
        raise _no_response(request)
    return JSONBytes(encode(DeletedResponse(id)))


def _opened(edge: Edge, asked: InputTokensRequest, caller: Caller) -> ThoughtSeal:
    """Open the thoughts of the input, in their place, and return what seals this answer's. Raises
    as `Edge.served` and `open_thoughts` do."""
    spec, text = edge.served(asked.model)
    seal = ThoughtSeal(edge.secret, caller.tenant, spec.id)
    open_thoughts(asked, None if text.family.reasoning is None else seal)
    return seal


async def _job(
    edge: Edge,
    asked: ChatCompletionRequest,
    caller: Caller,
    breakpoints: Breakpoints = (),
) -> Job:
    """Return what chat completions make of it; what they refuse is reported by the names used
    here."""
    try:
        job = await chat_job(edge, asked, caller, breakpoints)
    except RequestError as error:
        raise renamed(error, FIELDS) from None
    return replace(job, ignored=tuple(FIELDS.get(name, name) for name in job.ignored))


def _warming(job: Job) -> Job:
    """Return a job of the same prompt, whose output is the least that there is."""
    least = msgspec.structs.replace(job.submit.sampling, max_tokens=1, min_tokens=0)
    submit = msgspec.structs.replace(job.submit, sampling=least, grammar=None, reasoning=None)
    return replace(job, submit=submit, reader=None)


async def _asked_for(request: EdgeRequest) -> StoredResponse:
    """Return the response that the path names. Raises `NotFound`."""
    tenant, id = request.principal.account_id, request.path_params["id"]
    stored = await _stored(request.edge, tenant, id)
    if stored is None or not may_be_shown(request, stored.residency):
        raise _no_response(request)
    return stored


def _no_response(request: EdgeRequest) -> NotFound:
    other = elsewhere(request.path_params["id"], request.edge.residency)
    return NotFound(f"No such response; it may have expired.{other}")


async def _stored(edge: Edge, tenant: str, id: str) -> StoredResponse | None:
    return None if edge.responses is None else await edge.responses.get(tenant, id)


async def _previous(
    edge: Edge, tenant: str, asked: InputTokensRequest, call: SocketCall | None = None
) -> StoredResponse | None:
    """Return the response that is gone on from, of the connection's own or of those stored. Raises
    `ResponseNotFound` when it is not there."""
    if (previous := asked.previous_response_id) is None:
        return None
    if call is not None and (recent := call.recent.get(previous)) is not None:
        return recent
    stored = await _stored(edge, tenant, previous)
    if stored is None:
        kept = "expired" if edge.responses is not None else "this edge stores none"
        raise ResponseNotFound(
            f"Previous response with id '{previous}' not found ({kept})."
            + elsewhere(previous, edge.residency),
            param="previous_response_id",
        )
    return stored
