"""The OpenAI dialect: chat completions, strictly as OpenAI's clients parse them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from skerry.errors import InvalidInput
from skerry.wire import FinishReason, Message, RunOptions, TokenLogprob
from skerry.wire.openai import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionRequest,
    ChatRunInput,
    ChoiceLogprobs,
)
from skerry_edge.api.bodies import Body
from skerry_edge.api.edge_request import (
    admitted,
    arrive,
    decoded,
    edge_of,
    model_of,
    read_body,
)
from skerry_edge.api.handler import attended, begin, caller_of, event_stream, with_session
from skerry_edge.api.openai.chat_job import chat_job
from skerry_edge.api.openai.prompt_cache import SIGN, breakpoints_of
from skerry_edge.api.upstream_fields import CHAT
from skerry_edge.envelopes import OPENAI, Dialect, JSONBytes, encode
from skerry_edge.families.deltas import CallDelta, Calls
from skerry_edge.generation.edge import Edge
from skerry_edge.generation.generation import Choices, Piece
from skerry_edge.generation.sse import DONE
from skerry_edge.text.breakpoints import Breakpoints
from skerry_regions.models.catalog import ModelSpec

_body = Body(ChatCompletionRequest, CHAT)
_run_body = Body(ChatRunInput, CHAT, corrects=True)


async def chat_completions(request: Request) -> Response:
    """Handle `POST …/v1/chat/completions`."""
    return await answer_body(request, await read_body(request))


async def answer_body(request: Request, body: bytes, prefix: str = "") -> Response:
    """Answer an encoded request; a `prefix` of its model's name is left out."""
    edge = edge_of(request)
    asked = await decoded(request, _body, body)
    asked.model = asked.model.removeprefix(prefix)
    arrive(request, model_of(edge, asked.model))
    return await _answer(request, edge, asked, OPENAI)


async def run(
    request: Request,
    edge: Edge,
    spec: ModelSpec,
    body: bytes,
    dialect: Dialect,
    options: RunOptions | None = None,
) -> Response:
    """Answer `/ai/run` of a model whose answers are chat completions: enveloped, or a stream with
    the Workers AI tail. `options` are in place of those in the body."""
    asked = await decoded(
        request, _run_body, body, is_strict=options is not None and bool(options.strict)
    )
    asked.options = options or asked.options
    if (asked.prompt is None) == (not asked.messages):
        raise InvalidInput("Bad input: exactly one of 'prompt' and 'messages' is required")
    asked.model = spec.id
    if asked.prompt is not None:
        asked.messages = [Message("user", asked.prompt)]
    return await _answer(request, edge, asked, dialect)


async def _answer(
    request: Request, edge: Edge, asked: ChatCompletionRequest, dialect: Dialect
) -> Response:
    caller = caller_of(request, asked.options)
    is_legacy = bool(asked.functions) and not asked.tools
    if is_legacy:  # an answer of that time has room for one call
        asked.parallel_tool_calls = False
    if asked.max_tokens is not None and asked.max_completion_tokens is not None:
        admitted(request).ignore(["max_tokens"])  # the older name
    breakpoints: Breakpoints = ()
    if SIGN in admitted(request).content:
        caller, breakpoints = with_session(caller, asked.prompt_cache_key), breakpoints_of(asked)
    job = await chat_job(edge, asked, caller, breakpoints)
    choices = await begin(request, job)
    answer = Answer(
        id=f"chatcmpl-{caller.request_id}",
        created=int(edge.wall_clock()),
        model=asked.model,
        with_logprobs=job.submit.sampling.logprobs is not None,
        is_legacy=is_legacy,
    )
    if not asked.stream:
        completion = encode(
            await attended(request, caller, _collect(choices, answer, job.num_choices))
        )
        return JSONBytes(dialect.wrap(completion))
    options = asked.stream_options
    with_usage = dialect.tail or bool(options and options.include_usage)
    return event_stream(
        request,
        caller,
        choices,
        _events(choices, job.num_choices, answer, include_usage=with_usage, tail=dialect.tail),
        lambda exc: dialect.error_event(exc, caller.request_id),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is the same in every chunk of one answer."""

    id: str
    created: int  # Unix seconds
    model: str  # as the caller named it
    with_logprobs: bool
    is_legacy: bool  # calls are sent as `function_call`, to a request with `functions`

    def reason(self, reason: FinishReason) -> FinishReason:
        return "function_call" if self.is_legacy and reason == "tool_calls" else reason


async def _collect(choices: Choices, answer: Answer, num_choices: int) -> ChatCompletion:
    texts: list[list[str]] = [[] for _ in range(num_choices)]
    calls: list[Calls] = [Calls() for _ in range(num_choices)]
    logprobs: list[list[TokenLogprob]] = [[] for _ in range(num_choices)]
    reasons: list[FinishReason] = ["length"] * num_choices
    try:
        async for index, piece in choices.pieces():
            texts[index].append(piece.text)
            calls[index].add(piece.calls)
            logprobs[index].extend(piece.logprobs)
            reasons[index] = piece.finish_reason or reasons[index]
    finally:
        choices.close()
    return ChatCompletion(
        id=answer.id,
        object="chat.completion",
        created=answer.created,
        model=answer.model,
        choices=[
            ChatChoice(
                index,
                _message("".join(texts[index]), calls[index], answer),
                answer.reason(reasons[index]),
                ChoiceLogprobs(logprobs[index]) if answer.with_logprobs else None,
            )
            for index in range(num_choices)
        ],
        usage=choices.usage(),
    )


def _message(text: str, calls: Calls, answer: Answer) -> AssistantMessage:
    if not calls.all:
        return AssistantMessage("assistant", text)
    if answer.is_legacy:
        call = calls.all[0]
        function = {"name": call.name, "arguments": call.arguments}
        return AssistantMessage("assistant", text or None, function_call=function)
    nested = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls.all
    ]
    return AssistantMessage("assistant", text or None, nested)


async def _events(
    choices: Choices, num_choices: int, answer: Answer, *, include_usage: bool, tail: bool
) -> AsyncGenerator[bytes, None]:
    """Yield events of an OpenAI stream, one write per step; `tail` adds Workers AI's own last
    event.

    What is the same in every chunk is encoded once. With usage requested, every chunk but the last
    has `"usage": null`, and the last has no choices.
    """
    head = (
        b'data: {"id":' + encode(answer.id) + b',"object":"chat.completion.chunk","created":'
        + encode(answer.created) + b',"model":' + encode(answer.model) + b',"choices":['
    )  # fmt: skip
    rest = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
    greeted: set[int] = set()
    num_running, event = num_choices, b""
    async for index, piece in choices.pieces():
        if index not in greeted:
            greeted.add(index)
            event += head + _choice(index, b'{"role":"assistant","content":""}') + rest
        if piece.text or piece.logprobs:
            delta = b'{"content":' + encode(piece.text) + b"}"
            event += head + _choice(index, delta, _logprobs(piece, answer)) + rest
        for call in piece.calls:
            event += head + _choice(index, encode(_call_delta(call, answer))) + rest
        if piece.finish_reason is not None:
            reason = answer.reason(piece.finish_reason)
            event += head + _choice(index, b"{}", reason=reason) + rest
            num_running -= 1
        if num_running:
            yield event
            event = b""
    usage = encode(choices.usage())
    last = head + b'],"usage":' + usage + b"}\n\n" if include_usage else b""
    if tail:
        last += b'data: {"response":"","usage":' + usage + b"}\n\n"
    yield event + last + DONE


def _call_delta(call: CallDelta, answer: Answer) -> dict[str, Any]:
    function = {"arguments": call.arguments}
    if call.name is not None:
        function = {"name": call.name, **function}
    if answer.is_legacy:
        return {"function_call": function}
    named = {} if call.id is None else {"id": call.id, "type": "function"}
    return {"tool_calls": [{"index": call.index, **named, "function": function}]}


def _choice(
    index: int, delta: bytes, logprobs: bytes = b"null", reason: FinishReason | None = None
) -> bytes:
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}' % (
        index,
        delta,
        logprobs,
        encode(reason),
    )


def _logprobs(piece: Piece, answer: Answer) -> bytes:
    return encode(ChoiceLogprobs(piece.logprobs)) if answer.with_logprobs else b"null"
