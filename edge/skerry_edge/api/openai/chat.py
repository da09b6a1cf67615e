"""The OpenAI dialect: chat completions, strictly as OpenAI's clients parse them."""

from __future__ import annotations

from starlette.responses import Response

from skerry.errors import InvalidInput
from skerry.wire import Message, RunOptions
from skerry.wire.openai import (
    ChatCompletionRequest,
    ChatRunInput,
)
from skerry_edge.api.bodies import Body
from skerry_edge.api.edge_request import EdgeRequest, arrive, decoded
from skerry_edge.api.handler import attended, begin, caller_of, event_stream, with_session
from skerry_edge.api.openai.chat_answers import ChatAnswer, collect, events_of
from skerry_edge.api.openai.chat_job import chat_job
from skerry_edge.api.openai.prompt_cache import SIGN, breakpoints_of
from skerry_edge.api.upstream_fields import CHAT
from skerry_edge.envelopes import OPENAI, Dialect, JSONBytes, encode
from skerry_edge.text.breakpoints import Breakpoints
from skerry_regions.models.catalog import ModelSpec

_body = Body(ChatCompletionRequest, CHAT)
_run_body = Body(ChatRunInput, CHAT, corrects=True)


async def chat_completions(request: EdgeRequest) -> Response:
    """Handle `POST …/v1/chat/completions`."""
    return await answer_body(request, await request.read())


async def answer_body(request: EdgeRequest, body: bytes, prefix: str = "") -> Response:
    """Answer an encoded request; a `prefix` of its model's name is left out."""
    asked = await decoded(request, _body, body)
    asked.model = asked.model.removeprefix(prefix)
    await arrive(request, request.edge.requested(asked.model))
    return await _answer(request, asked, OPENAI)


async def run(
    request: EdgeRequest,
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
    return await _answer(request, asked, dialect)


async def _answer(request: EdgeRequest, asked: ChatCompletionRequest, dialect: Dialect) -> Response:
    caller = caller_of(request, asked.options)
    is_legacy = bool(asked.functions) and not asked.tools
    if is_legacy:  # an answer of that time has room for one call
        asked.parallel_tool_calls = False
    if asked.max_tokens is not None and asked.max_completion_tokens is not None:
        request.ignore(["max_tokens"])  # the older name
    breakpoints: Breakpoints = ()
    if SIGN in request.content:
        caller, breakpoints = with_session(caller, asked.prompt_cache_key), breakpoints_of(asked)
    job = await chat_job(request.edge, asked, caller, breakpoints)
    choices = await begin(request, job)
    answer = ChatAnswer(
        id=f"chatcmpl-{caller.request_id}",
        created=int(request.edge.wall_clock()),
        model=asked.model,
        with_logprobs=job.submit.sampling.logprobs is not None,
        is_legacy=is_legacy,
    )
    if not asked.stream:
        completion = encode(
            await attended(request, caller, collect(choices, answer, job.num_choices))
        )
        return JSONBytes(dialect.wrap(completion))
    options = asked.stream_options
    with_usage = dialect.tail or bool(options and options.include_usage)
    return event_stream(
        request,
        caller,
        choices,
        events_of(choices, job.num_choices, answer, include_usage=with_usage, tail=dialect.tail),
        lambda exc: dialect.error_event(exc, caller.request_id),
    )
