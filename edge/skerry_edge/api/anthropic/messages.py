"""Anthropic's dialect: `/messages`, whole or as a stream of its typed events.

A request becomes that of a chat completion and is prepared as one; what comes back is written in
Anthropic's words. When the last message is the assistant's, the answer continues it.
"""

from __future__ import annotations

import dataclasses

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from skerry.errors import InvalidInput, RequestError
from skerry_edge.api.anthropic.cache_control import SIGN, breakpoints_of
from skerry_edge.api.anthropic.messages_answer import (
    AnswerBlocks,
    collect,
    event_of,
    events_of,
    usage_of,
)
from skerry_edge.api.anthropic.messages_input import (
    chat_request,
    format_name,
    wanted_format,
    without_billing,
)
from skerry_edge.api.anthropic.messages_wire import (
    CountRequest,
    InputMessage,
    MessagesAnswer,
    MessagesRequest,
    TextBlock,
    TokenCount,
)
from skerry_edge.api.anthropic.thinking_blocks import check_thinking, ignored_names, open_blocks
from skerry_edge.api.bodies import Body
from skerry_edge.api.edge_request import EdgeRequest, arrive, read_json
from skerry_edge.api.fields import renamed
from skerry_edge.api.handler import attended, begin, caller_of, event_stream, with_session
from skerry_edge.api.openai.chat_job import chat_job
from skerry_edge.api.thought_seal import ThoughtSeal
from skerry_edge.api.upstream_fields import MESSAGES
from skerry_edge.envelopes import JSONBytes, anthropic_error, encode
from skerry_edge.gate.caller import Caller
from skerry_edge.gate.job import Job
from skerry_edge.gate.residency import bound_by_geo
from skerry_edge.generation.edge import Edge
from skerry_edge.text.prompts import output_limit, tokenised
from skerry_regions.zones import GLOBAL

FORMAT = "response_format.json_schema"

_body = Body(MessagesRequest, MESSAGES)
_count_body = Body(CountRequest, MESSAGES)


async def messages(request: EdgeRequest) -> Response:
    """Handle `POST …/v1/messages`."""
    edge, asked = request.edge, await read_json(request, _body)
    if asked.inference_geo is not None:
        request.residency = bound_by_geo(asked.inference_geo, request.residency, edge.residency)
    caller = caller_of(request)
    await arrive(request, edge.requested(asked.model))
    if asked.metadata is not None:
        caller = with_session(caller, asked.metadata.user_id)
    asked.system, line = without_billing(asked.system)
    if line:
        request.trace.add("billing line", 0.0, 0.0, {"line": line})
    is_marked = SIGN in request.content
    seal, reasons = _opened(edge, asked, caller)
    if reasons:
        check_thinking(asked)
    job = await _job(edge, asked, caller, is_marked=is_marked)
    blocks = AnswerBlocks(seal, shows=getattr(asked.thinking, "display", None) != "omitted")
    choices = await begin(request, job)
    says_where = caller.residency is not None or asked.inference_geo is not None
    head = MessagesAnswer(
        id=f"msg_{caller.request_id}",
        type="message",
        role="assistant",
        model=asked.model,
        content=[],
        stop_reason=None,
        stop_sequence=None,
        usage=usage_of(choices.usage(), (caller.residency or GLOBAL) if says_where else UNSET),
    )
    if not asked.stream:
        whole = collect(choices, head, blocks)
        return JSONBytes(encode(await attended(request, caller, whole)))
    return event_stream(
        request,
        caller,
        choices,
        events_of(choices, head, blocks),
        lambda exc: event_of("error", anthropic_error(exc, caller.request_id)),
    )


async def count_tokens(request: EdgeRequest) -> Response:
    """Handle `POST …/v1/messages/count_tokens`: the length of a prompt, without running it."""
    edge, asked = request.edge, await read_json(request, _count_body)
    fields = {name: getattr(asked, name) for name in CountRequest.__struct_fields__}
    await arrive(request, edge.requested(asked.model))
    fields["system"], _ = without_billing(asked.system)
    whole = MessagesRequest(**fields, max_tokens=1)
    caller = caller_of(request)
    _opened(edge, whole, caller)
    job = await _job(edge, whole, caller)
    request.ignore(job.ignored)
    return JSONBytes(encode(TokenCount(len(job.submit.prompt_ids))))


def _opened(edge: Edge, asked: MessagesRequest, caller: Caller) -> tuple[ThoughtSeal, bool]:
    """Open the thoughts of earlier turns, in their place, and return what signs this one's, and
    whether the model reasons. Raises as `Edge.served` and `open_blocks` do."""
    spec, text = edge.served(asked.model)
    seal = ThoughtSeal(edge.secret, caller.tenant, spec.id)
    reasons = text.family.reasoning is not None
    open_blocks(asked.messages, seal if reasons else None)
    return seal, reasons


async def _job(
    edge: Edge, asked: MessagesRequest, caller: Caller, *, is_marked: bool = False
) -> Job:
    history, opening, last = list(asked.messages), "", None
    if history[-1].role == "assistant":
        last = history.pop()
        opening = _opening(last)
    breakpoints = breakpoints_of(asked, history, last) if is_marked else ()
    try:
        job = await chat_job(edge, chat_request(asked, history), caller, breakpoints)
    except RequestError as error:
        raise renamed(error, {FORMAT: format_name(asked)}) from None
    job = dataclasses.replace(job, ignored=ignored_names(asked, job.ignored))
    if not opening:
        return job
    if job.reader is not None and job.reader.is_open:
        raise InvalidInput(
            f"Bad input: messages: {job.model.id} thinks before it answers, so the last message "
            "must not be the assistant's",
            param="messages",
        )
    if wanted_format(asked) is not None:
        raise InvalidInput(
            f"Bad input: {format_name(asked)}: the answer follows it from its beginning on, so "
            "the last message must not be the assistant's",
            param=format_name(asked),
        )
    more = await tokenised(
        edge.desk, caller.tenant, job.text, len(opening), job.model, edge.limits,
        lambda: job.text.encode(opening),
    )  # fmt: skip
    prompt_ids = job.submit.prompt_ids + more
    output_limit(asked.max_tokens, len(prompt_ids), job.model, edge.limits)
    submit = msgspec.structs.replace(job.submit, prompt_ids=prompt_ids)
    return dataclasses.replace(job, submit=submit)


def _opening(message: InputMessage) -> str:
    """Return the beginning of the answer, which the caller wrote."""
    if isinstance(message.content, str):
        return message.content
    if not all(isinstance(block, TextBlock) for block in message.content):
        raise InvalidInput(
            "Bad input: messages: after the assistant's tool_use a tool_result must follow",
            param="messages",
        )
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))
