"""Anthropic's dialect: `/messages`, whole or as a stream of its typed events.

A request becomes that of a chat completion and is prepared as one; what comes back is written in
Anthropic's words. When the last message is the assistant's, the answer continues it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from skerry.errors import InvalidInput, RequestError
from skerry.wire import TokenUsage
from skerry_edge.api.anthropic.cache_control import SIGN, breakpoints_of
from skerry_edge.api.anthropic.messages_input import (
    chat_request,
    format_name,
    wanted_format,
    without_billing,
)
from skerry_edge.api.anthropic.messages_wire import (
    CacheCreation,
    CountRequest,
    InputMessage,
    MessagesAnswer,
    MessagesRequest,
    MessagesUsage,
    StopReason,
    TextBlock,
    TokenCount,
    ToolUseBlock,
)
from skerry_edge.api.bodies import Body
from skerry_edge.api.edge_request import admitted, arrive, edge_of, model_of, read_json
from skerry_edge.api.fields import renamed
from skerry_edge.api.handler import attended, begin, caller_of, event_stream, with_session
from skerry_edge.api.openai.chat_job import chat_job
from skerry_edge.api.upstream_fields import MESSAGES
from skerry_edge.envelopes import JSONBytes, anthropic_error, encode
from skerry_edge.families.deltas import PartialCall
from skerry_edge.gate.caller import Caller
from skerry_edge.gate.job import Job
from skerry_edge.gate.residency import bound_by_geo
from skerry_edge.generation.edge import Edge
from skerry_edge.generation.generation import Choices, Piece
from skerry_edge.generation.output_items import Change, OutputItems, TextItem
from skerry_edge.text.prompts import output_limit, tokenised
from skerry_regions.zones import GLOBAL

FORMAT = "response_format.json_schema"

_body = Body(MessagesRequest, MESSAGES)
_count_body = Body(CountRequest, MESSAGES)


async def messages(request: Request) -> Response:
    """Handle `POST …/v1/messages`."""
    edge = edge_of(request)
    asked = await read_json(request, _body)
    known = admitted(request)
    if asked.inference_geo is not None:
        known.residency = bound_by_geo(asked.inference_geo, known.residency, edge.residency)
    caller = caller_of(request)
    arrive(request, model_of(edge, asked.model))
    if asked.metadata is not None:
        caller = with_session(caller, asked.metadata.user_id)
    asked.system, line = without_billing(asked.system)
    if line:
        known.trace.add("billing line", 0.0, 0.0, {"line": line})
    is_marked = SIGN in known.content
    job = await _job(edge, asked, caller, is_marked=is_marked)
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
        usage=_usage(choices.usage(), (caller.residency or GLOBAL) if says_where else UNSET),
    )
    if not asked.stream:
        return JSONBytes(encode(await attended(request, caller, _collect(choices, head))))
    return event_stream(
        request,
        caller,
        choices,
        _events(choices, head),
        lambda exc: _event("error", anthropic_error(exc, caller.request_id)),
    )


async def count_tokens(request: Request) -> Response:
    """Handle `POST …/v1/messages/count_tokens`: the length of a prompt, without running it."""
    edge = edge_of(request)
    asked = await read_json(request, _count_body)
    fields = {name: getattr(asked, name) for name in CountRequest.__struct_fields__}
    arrive(request, model_of(edge, asked.model))
    fields["system"], _ = without_billing(asked.system)
    whole = MessagesRequest(**fields, max_tokens=1)
    job = await _job(edge, whole, caller_of(request))
    return JSONBytes(encode(TokenCount(len(job.submit.prompt_ids))))


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
    if not opening:
        return job
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


async def _collect(choices: Choices, head: MessagesAnswer) -> MessagesAnswer:
    items = OutputItems()
    last = Piece([])
    try:
        async for _, piece in choices.pieces():
            items.add(piece)
            last = piece
    finally:
        choices.close()
    items.close()
    return msgspec.structs.replace(
        head,
        content=[_block(item) for item in items.all],
        stop_reason=_stop_reason(last),
        stop_sequence=last.matched_stop,
        usage=_usage(choices.usage(), head.usage.inference_geo),
    )


def _block(item: TextItem | PartialCall) -> TextBlock | ToolUseBlock:
    if isinstance(item, TextItem):
        return TextBlock(item.text)
    try:
        arguments = msgspec.json.decode(item.arguments, type=dict[str, Any])
    except msgspec.DecodeError:  # it ran out of tokens within them: `stop_reason` says so
        arguments = {}
    return ToolUseBlock(item.id, item.name, arguments)


async def _events(choices: Choices, head: MessagesAnswer) -> AsyncGenerator[bytes, None]:
    """Yield Anthropic's events, one write per step."""
    yield _told({"type": "message_start", "message": head})
    items = OutputItems()
    async for _, piece in choices.pieces():
        event = _changed(items, items.add(piece))
        if piece.finish_reason is not None:
            end = {"stop_reason": _stop_reason(piece), "stop_sequence": piece.matched_stop}
            usage = _usage(choices.usage(), head.usage.inference_geo)
            event += _changed(items, items.close())
            event += _told({"type": "content_block_stop", "index": len(items.all) - 1})
            event += _told({"type": "message_delta", "delta": end, "usage": usage})
            event += _told({"type": "message_stop"})
        if event:
            yield event


def _changed(items: OutputItems, changes: Sequence[Change]) -> bytes:
    told = b""
    for change in changes:
        index, item = change.index, items.all[change.index]
        if change.begins:
            if index:
                told += _told({"type": "content_block_stop", "index": index - 1})
            begun = (
                TextBlock("")
                if isinstance(item, TextItem)
                else ToolUseBlock(item.id, item.name, {})
            )
            told += _told({"type": "content_block_start", "index": index, "content_block": begun})
        delta = {"type": "text_delta", "text": change.text}
        if isinstance(item, PartialCall):
            delta = {"type": "input_json_delta", "partial_json": change.arguments}
        if change.text or change.arguments:
            told += _told({"type": "content_block_delta", "index": index, "delta": delta})
    return told


def _told(data: dict[str, Any]) -> bytes:
    return _event(data["type"], encode(data))


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def _stop_reason(last: Piece) -> StopReason:
    if last.matched_stop is not None:
        return "stop_sequence"
    if last.finish_reason == "tool_calls":
        return "tool_use"
    return "max_tokens" if last.finish_reason == "length" else "end_turn"


def _usage(usage: TokenUsage, geo: str | UnsetType) -> MessagesUsage:
    """Return a request's usage in Anthropic's words, and the zone that it was bound to."""
    details = usage.prompt_tokens_details
    if isinstance(details.cache_write_tokens, UnsetType):
        return MessagesUsage(
            input_tokens=usage.prompt_tokens - details.cached_tokens,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=details.cached_tokens,
            output_tokens=usage.completion_tokens,
            inference_geo=geo,
        )
    written, by_ttl = details.cache_write_tokens, details.cache_write_tokens_details or {}
    for_an_hour = by_ttl.get("ttl_1h_tokens", 0)
    return MessagesUsage(
        input_tokens=usage.prompt_tokens - details.cached_tokens - written,
        cache_creation_input_tokens=written,
        cache_read_input_tokens=details.cached_tokens,
        output_tokens=usage.completion_tokens,
        inference_geo=geo,
        cache_creation=CacheCreation(written - for_an_hour, for_an_hour),
        cache_lapsed_input_tokens=details.cache_lapsed_tokens,
    )
