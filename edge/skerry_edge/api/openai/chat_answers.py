"""Answers of chat completions: a `chat.completion`, or the chunks of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from skerry.wire import FinishReason, TokenLogprob
from skerry.wire.openai import AssistantMessage, ChatChoice, ChatCompletion, ChoiceLogprobs
from skerry_edge.envelopes import encode
from skerry_edge.families.deltas import CallDelta, Calls
from skerry_edge.generation.generation import Choices, Piece
from skerry_edge.generation.sse import DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """What is the same in every chunk of one answer."""

    id: str
    created: int  # Unix seconds
    model: str  # as the caller named it
    with_logprobs: bool
    is_legacy: bool  # calls are sent as `function_call`, to a request with `functions`

    def reason(self, reason: FinishReason) -> FinishReason:
        return "function_call" if self.is_legacy and reason == "tool_calls" else reason


async def collect(choices: Choices, answer: ChatAnswer, num_choices: int) -> ChatCompletion:
    texts: list[list[str]] = [[] for _ in range(num_choices)]
    thoughts: list[list[str]] = [[] for _ in range(num_choices)]
    calls: list[Calls] = [Calls() for _ in range(num_choices)]
    logprobs: list[list[TokenLogprob]] = [[] for _ in range(num_choices)]
    reasons: list[FinishReason] = ["length"] * num_choices
    try:
        async for index, piece in choices.pieces():
            texts[index].append(piece.text)
            thoughts[index].append(piece.reasoning)
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
                _message("".join(texts[index]), "".join(thoughts[index]), calls[index], answer),
                answer.reason(reasons[index]),
                ChoiceLogprobs(logprobs[index]) if answer.with_logprobs else None,
            )
            for index in range(num_choices)
        ],
        usage=choices.usage(),
    )


def _message(text: str, thought: str, calls: Calls, answer: ChatAnswer) -> AssistantMessage:
    message = AssistantMessage("assistant", text)
    if thought:
        message.reasoning_content = message.reasoning = thought
    if not calls.all:
        return message
    message.content = text or None
    whole = [call.as_openai() for call in calls.all]
    if answer.is_legacy:
        message.function_call = whole[0]["function"]
    else:
        message.tool_calls = whole
    return message


async def events_of(
    choices: Choices, num_choices: int, answer: ChatAnswer, *, include_usage: bool, tail: bool
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
        if thought := piece.reasoning:
            more = encode(thought)
            delta = b'{"reasoning_content":' + more + b',"reasoning":' + more + b"}"
            told = b"null" if piece.text else _logprobs(piece, answer)
            event += head + _choice(index, delta, told) + rest
        if piece.text or (piece.logprobs and not thought):
            delta = b'{"content":' + encode(piece.text) + b"}"
            event += head + _choice(index, delta, _logprobs(piece, answer)) + rest
        for call in piece.calls:
            if call.id is None and not call.arguments:
                continue
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


def _call_delta(call: CallDelta, answer: ChatAnswer) -> dict[str, Any]:
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


def _logprobs(piece: Piece, answer: ChatAnswer) -> bytes:
    return encode(ChoiceLogprobs(piece.logprobs)) if answer.with_logprobs else b"null"
