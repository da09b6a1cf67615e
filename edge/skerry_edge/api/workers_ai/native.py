"""The Workers AI dialect: `/ai/run`, and its text generation exactly as upstream shapes it."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from skerry.errors import InvalidInput, JSONModeUnmet, LoraNotSupported
from skerry.wire import (
    ApiMessage,
    Message,
    NativeToolCall,
    RunOptions,
    TextGenerationChunk,
    TextGenerationInput,
    TextGenerationOutput,
)
from skerry_edge.api.batch import queued
from skerry_edge.api.bodies import Body
from skerry_edge.api.edge_request import EdgeRequest, arrive, decoded, read_json
from skerry_edge.api.handler import attended, begin, caller_of, event_stream, job_of
from skerry_edge.api.openai import chat as openai
from skerry_edge.api.openai import embeddings
from skerry_edge.api.upstream_fields import NATIVE_TEXT
from skerry_edge.api.workers_ai import classification
from skerry_edge.envelopes import REST, Dialect, JSONBytes, encode, envelope
from skerry_edge.families.deltas import Calls
from skerry_edge.gate.caller import Caller
from skerry_edge.gate.job import Job
from skerry_edge.generation.edge import Edge
from skerry_edge.generation.generation import Choices
from skerry_edge.generation.sse import DONE
from skerry_edge.output.plan import OutputPlan
from skerry_edge.output.tool_prompts import with_tools
from skerry_edge.text.model import TextModel
from skerry_edge.text.prompts import (
    NATIVE_TEMPERATURE,
    chat_prompt,
    content_text,
    is_plain,
    output_limit,
    sampling,
    says_thinking,
    text_prompt,
)
from skerry_edge.text.thinking import Thinking, thinking
from skerry_regions.models.catalog import ModelSpec

# Events of one token would reveal its length to who watches the encrypted stream.
PADDING = b"abcdefghijklmnopqrstuvwxyz0123456789"


class UniversalRequest(msgspec.Struct):
    """Body of `POST /ai/run`: the model is named beside its input."""

    model: str
    input: msgspec.Raw


_input_body = Body(TextGenerationInput, NATIVE_TEXT, corrects=True)
_universal_body = Body(UniversalRequest)


async def run(request: EdgeRequest) -> Response:
    """Handle `POST …/ai/run/{model}`: the body is the model's input."""
    spec = request.edge.requested(request.path_params["model"])
    return await answer(request, spec, await request.read(), REST)


async def run_named(request: EdgeRequest) -> Response:
    """Handle `POST …/ai/run`: the body is `{"model": …, "input": {…}}`."""
    universal = await read_json(request, _universal_body)
    spec = request.edge.requested(universal.model)
    return await answer(request, spec, bytes(universal.input), REST)


async def answer(
    request: EdgeRequest,
    spec: ModelSpec,
    body: bytes,
    dialect: Dialect,
    options: RunOptions | None = None,
) -> Response:
    """Run a model on an encoded input; the catalog says in which form it answers.

    `options` are in place of those in the input.
    """
    edge = request.edge
    may_queue = options is not None or b"queueRequest" in request.scope["query_string"]
    if may_queue and queued.is_asked(request, options):
        return await queued.answer(request, spec, body, dialect)
    await arrive(request, spec)
    if spec.id in edge.encoders:
        run_encoder = embeddings.run if spec.embedding is not None else classification.run
        return await run_encoder(request, spec, edge.encoders[spec.id], body, dialect)
    text = edge.texts[spec.id]
    if spec.answer == "chat":
        return await openai.run(request, spec, body, dialect, options)
    asked = await decoded(
        request, _input_body, body, is_strict=options is not None and bool(options.strict)
    )
    options = options or asked.options
    caller = caller_of(request, options)
    plan = None
    is_strict = options is not None and bool(options.strict)
    wanted = None
    if says_thinking(asked):
        wanted = thinking(asked, text, is_strict=is_strict, is_raw=bool(asked.raw))
    if not is_plain(asked, asked.messages or ()):
        desk = edge.desk.of(caller.tenant)
        plan = await edge.planner.plan(desk, text, asked, is_strict=is_strict)
    job = await _job(edge, spec, text, asked, plan, wanted, caller)
    choices = await begin(request, job)
    if not asked.stream:
        is_json = plan is not None and plan.wanted is not None and plan.wanted.is_json
        result = encode(await attended(request, caller, _collect(choices, is_json=is_json)))
        return JSONBytes(dialect.wrap(result))
    return event_stream(
        request,
        caller,
        choices,
        _events(choices),
        lambda exc: dialect.error_event(exc, caller.request_id),
    )


async def _job(
    edge: Edge,
    spec: ModelSpec,
    text: TextModel,
    asked: TextGenerationInput,
    plan: OutputPlan | None,
    wanted: Thinking | None,
    caller: Caller,
) -> Job:
    """Check everything a caller can get wrong, and tokenise."""
    if asked.lora is not None:
        raise LoraNotSupported(f"The model {spec.id} does not support LoRA.", param="lora")
    flags = None if wanted is None else wanted.flags
    prompt_ids = await _prompt_ids(edge, spec, text, asked, plan, flags, caller.tenant)
    limit = output_limit(asked.max_tokens, len(prompt_ids), spec, edge.limits)
    style = sampling(
        asked,
        text,
        spec.sampling,
        temperature=NATIVE_TEMPERATURE,
        max_tokens=limit,
    )
    return job_of(
        caller, spec, text, prompt_ids, style, asked,
        plan=plan, thinking=wanted, is_raw=bool(asked.raw),
    )  # fmt: skip


async def _prompt_ids(
    edge: Edge,
    spec: ModelSpec,
    text: TextModel,
    asked: TextGenerationInput,
    plan: OutputPlan | None,
    flags: Mapping[str, Any] | None,
    tenant: str,
) -> list[int]:
    """Return the prompt's ids: `prompt` is a user's turn and `messages` a conversation, unless
    `raw` wants bare text."""
    if (asked.prompt is None) == (asked.messages is None):
        got = "neither" if asked.prompt is None else "both"
        raise InvalidInput(
            f"Bad input: exactly one of 'prompt' and 'messages' is required, got {got}"
        )
    turns = asked.messages
    if turns is None and (flags or (plan is not None and plan.has_calls)):
        turns = [Message("user", asked.prompt)]
    if turns is not None and not asked.raw:
        tools = None
        if plan is not None:
            turns, tools = with_tools(plan.family, turns, plan.box)
        return await chat_prompt(text, spec, turns, edge.limits, edge.desk, tenant, tools, flags)
    prompt = asked.prompt or "\n".join(map(content_text, asked.messages or ()))
    return await text_prompt(
        text, spec, prompt, edge.limits, edge.desk, tenant, raw=bool(asked.raw)
    )


async def _collect(choices: Choices, *, is_json: bool) -> TextGenerationOutput:
    try:
        calls = Calls()
        response = thought = ""
        async for _, piece in choices.pieces():
            response += piece.text
            thought += piece.reasoning
            calls.add(piece.calls)
        value = _json_value(response) if is_json and not calls.all else response
        return TextGenerationOutput(
            value, _tool_calls(calls), choices.usage(), reasoning_content=thought or UNSET
        )
    finally:
        choices.close()


def _json_value(text: str) -> msgspec.Raw:
    """Return JSON as it was written, numbers and all. Raises `JSONModeUnmet` if it is not whole."""
    try:
        return msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError:
        raise JSONModeUnmet(
            "JSON Mode couldn't be met: the output ended before its JSON was whole; "
            "raise max_tokens, or see to the stop strings."
        ) from None


async def _events(choices: Choices) -> AsyncGenerator[bytes, None]:
    """Yield events of a native stream; the last one carries the usage, `[DONE]` in the same
    write."""
    calls: Calls | None = None
    async for _, piece in choices.pieces():
        event = _chunk_event("", piece.reasoning) if piece.reasoning else b""
        if piece.text:
            event += _chunk_event(piece.text)
        if piece.calls:
            calls = calls or Calls()
            calls.add(piece.calls)
        if piece.finish_reason is not None:
            # All in one: LangChain looks for calls in the first event that has the field, even
            # empty, and for text in the events before it.
            if calls is not None and (whole := _tool_calls(calls)):
                event += _calls_event(whole)
            last = TextGenerationChunk("", usage=choices.usage())
            event += b"data: " + encode(last) + b"\n\n" + DONE
        yield event


def _tool_calls(calls: Calls) -> list[NativeToolCall]:
    """Return calls with whole arguments: they are objects here, so they cannot come in pieces."""
    whole = []
    for call in calls.all:
        try:
            whole.append(
                NativeToolCall(call.name, msgspec.json.decode(call.arguments, type=msgspec.Raw))
            )
        except msgspec.DecodeError:  # `max_tokens` cut it
            break
    return whole


def _calls_event(calls: list[NativeToolCall]) -> bytes:
    return b"data: " + encode(TextGenerationChunk("", tool_calls=calls)) + b"\n\n"


def _chunk_event(text: str, thought: str = "") -> bytes:
    padding = PADDING[: int(random.random() * len(PADDING))]
    more = b',"reasoning_content":' + encode(thought) if thought else b""
    return b'data: {"response":' + encode(text) + more + b',"p":"' + padding + b'"}\n\n'


async def verify_token(request: EdgeRequest) -> Response:
    """Handle `GET /user/tokens/verify`: the token got here, so it is live."""
    result = encode({"id": request.principal.token_id, "status": "active"})
    messages = [ApiMessage("This API Token is valid and active", 10000)]
    return JSONBytes(envelope(result, messages))
