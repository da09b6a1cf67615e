"""OpenAI's Responses: an answer or its typed events, and conversations that the edge remembers.

A request becomes that of a chat completion and is prepared as one. A finished answer is stored with
its conversation, unless `store` is false, so that `previous_response_id` can go on from it;
instructions are not part of a conversation. What goes on from one that is bound to a residency zone
is bound to it as well.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from skerry.errors import InvalidInput, NotFound, RequestError, SkerryError, Unavailable
from skerry.wire import ChatCompletionRequest, Message, Usage
from skerry_edge.bodies import decode, read_body
from skerry_edge.dialects import JSONBytes, encode
from skerry_edge.edge import Edge
from skerry_edge.generation import Choices, Job, Piece
from skerry_edge.openai import DEFAULT_TEMPERATURE, chat_job
from skerry_edge.output_items import Change, OutputItems, TextItem
from skerry_edge.prompts import refuse_unsupported
from skerry_edge.responses_store import StoredResponse
from skerry_edge.responses_wire import (
    ContentPart,
    DeletedResponse,
    FunctionCall,
    IncompleteDetails,
    InputItem,
    InputTokensDetails,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    ResponseObject,
    ResponsesRequest,
    ResponsesUsage,
    Status,
    TextFormat,
    TextOptions,
)
from skerry_edge.routing import attended, authorise, begin, call_of, edge_of, event_stream
from skerry_edge.tool_parser import Call

WITH_LOGPROBS = "message.output_text.logprobs"  # of `include`
# What chat completions call a field, and what it is called here.
FIELDS = {
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text.format",
}

_decoder = msgspec.json.Decoder(ResponsesRequest)


async def create(request: Request) -> Response:
    """`POST …/v1/responses`."""
    edge = edge_of(request)
    principal = authorise(request, "run")
    asked = decode(_decoder, await read_body(request, edge.limits.body_bytes))
    call = call_of(request, principal)
    turns, previous = _input(asked), await _previous(edge, call.tenant, asked)
    if previous is not None:
        turns = previous.messages + turns
        call = replace(call, residency=previous.residency or call.residency)
    job = await _job(edge, _chat_request(asked, turns), call.tenant)
    choices = await begin(request, call, job)
    draft = Draft(
        edge=edge,
        tenant=call.tenant,
        conversation=turns,
        residency=call.residency,
        response=_begun(asked, f"resp_{call.request_id}", int(edge.wall_clock())),
        stored=asked.store is not False and edge.responses is not None,
    )
    if not asked.stream:
        return JSONBytes(await attended(request, call, _collect(choices, draft)))
    events = Events()
    return event_stream(
        request,
        call,
        choices,
        _events(choices, draft, events),
        events.error,
    )


async def retrieve(request: Request) -> Response:
    """`GET …/v1/responses/{id}`: a stored answer."""
    principal = authorise(request, "run")
    stored = await _stored(edge_of(request), principal.account_id, request.path_params["id"])
    if stored is None:
        raise NotFound("No such response; it may have expired.")
    return JSONBytes(bytes(stored.response))


async def delete(request: Request) -> Response:
    """`DELETE …/v1/responses/{id}`."""
    principal = authorise(request, "run")
    responses, id = edge_of(request).responses, request.path_params["id"]
    if responses is None or not await responses.delete(principal.account_id, id):
        raise NotFound("No such response; it may have expired.")
    return JSONBytes(encode(DeletedResponse(id)))


# --- what is asked -------------------------------------------------------------------------------


async def _job(edge: Edge, asked: ChatCompletionRequest, tenant: str) -> Job:
    """What chat completions make of it; what they refuse is told by the names used here."""
    try:
        return await chat_job(edge, asked, tenant)
    except RequestError as exc:
        if exc.param not in FIELDS:
            raise
        message = exc.message.replace(exc.param, FIELDS[exc.param])
        raise type(exc)(message, param=FIELDS[exc.param]) from None


async def _stored(edge: Edge, tenant: str, id: str) -> StoredResponse | None:
    return None if edge.responses is None else await edge.responses.get(tenant, id)


def _input(asked: ResponsesRequest) -> list[Message]:
    """The turns that the request brings."""
    refuse_unsupported(
        {
            "background": asked.background,
            "conversation": asked.conversation,
            "prompt": asked.prompt,
        }
    )
    return _turns(asked.input)


async def _previous(edge: Edge, tenant: str, asked: ResponsesRequest) -> StoredResponse | None:
    """The response that is gone on from. Raises `InvalidInput` when it is not there."""
    if (previous := asked.previous_response_id) is None:
        return None
    stored = await _stored(edge, tenant, previous)
    if stored is None:
        kept = "expired" if edge.responses is not None else "this edge stores none"
        raise InvalidInput(
            f"Previous response with id '{previous}' not found ({kept}).",
            param="previous_response_id",
        )
    return stored


def _turns(given: str | Sequence[InputItem]) -> list[Message]:
    """The input's items as messages; calls of tools in a row are one turn of the assistant's."""
    if isinstance(given, str):
        return [Message("user", given)]
    turns: list[Message] = []
    for number, item in enumerate(given):
        place = f"input[{number}]"
        match item.type:
            case "message":
                turns.append(Message(_role(item, place), _text(item.content, f"{place}.content")))
            case "function_call":
                if not turns or not turns[-1].tool_calls:
                    turns.append(Message("assistant", "", tool_calls=[]))
                calls = turns[-1].tool_calls
                if calls is not None:
                    calls.append(_tool_call(item, place))
            case "function_call_output":
                call_id = _given(item.call_id, f"{place}.call_id")
                output = _text(item.output, f"{place}.output")
                turns.append(Message("tool", output, tool_call_id=call_id))
            case "reasoning":
                pass  # what an earlier answer thought is not shown to the model again
            case other:
                raise InvalidInput(
                    f"Bad input: {place}.type: {other[:40]!r} items are not supported",
                    param=f"{place}.type",
                )
    if not turns:
        raise InvalidInput("Bad input: input: there is no message", param="input")
    return turns


def _role(item: InputItem, place: str) -> str:
    role = _given(item.role, f"{place}.role")
    return "system" if role == "developer" else role


def _given(value: str | None, place: str) -> str:
    if value is None:
        raise InvalidInput(f"Bad input: {place}: required", param=place)
    return value


def _text(content: str | Sequence[ContentPart] | None, place: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        raise InvalidInput(f"Bad input: {place}: required", param=place)
    for number, part in enumerate(content):
        if part.text is None and part.refusal is None:
            raise InvalidInput(
                f"Bad input: {place}[{number}]: {part.type[:40]!r} is not a part with text",
                param=f"{place}[{number}].type",
            )
    return "\n".join(part.text or part.refusal or "" for part in content)


def _tool_call(item: InputItem, place: str) -> dict[str, Any]:
    name = _given(item.name, f"{place}.name")
    function = {"name": name, "arguments": _given(item.arguments, f"{place}.arguments")}
    id = _given(item.call_id, f"{place}.call_id")
    return {"id": id, "type": "function", "function": function}


def _chat_request(
    asked: ResponsesRequest, conversation: Sequence[Message]
) -> ChatCompletionRequest:
    instructions = [Message("system", asked.instructions)] if asked.instructions else []
    return ChatCompletionRequest(
        model=asked.model,
        messages=[*instructions, *conversation],
        max_completion_tokens=asked.max_output_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        seed=asked.seed,
        logprobs=WITH_LOGPROBS in (asked.include or ()),
        top_logprobs=asked.top_logprobs,
        response_format=_response_format(asked.text.format if asked.text else None),
        tools=[_nested(tool, f"tools[{i}]") for i, tool in enumerate(asked.tools or ())],
        tool_choice=_tool_choice(asked.tool_choice),
        parallel_tool_calls=asked.parallel_tool_calls,
    )


def _nested(tool: dict[str, Any], place: str) -> dict[str, Any]:
    """A tool as chat completions have it: what it is lies one level deeper."""
    if tool.get("type", "function") != "function":
        raise InvalidInput(
            f"Bad input: {place}.type: only functions are supported", param=f"{place}.type"
        )
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _response_format(given: TextFormat | None) -> dict[str, Any] | None:
    """`text.format` as chat completions have it: the schema one level deeper."""
    if given is None:
        return None
    if given.type != "json_schema":
        return {"type": given.type}
    schema = {"name": given.name, "schema": given.schema, "strict": given.strict}
    return {"type": given.type, "json_schema": schema}


# --- what is answered ----------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Draft:
    """An answer in the making."""

    edge: Edge
    tenant: str
    conversation: list[Message]
    residency: str | None  # zone that the conversation is bound to
    response: ResponseObject
    stored: bool
    items: OutputItems = field(default_factory=OutputItems)

    def item(self, index: int, status: Status) -> OutputMessage | FunctionCall:
        item = self.items.all[index]
        if isinstance(item, Call):
            arguments = "" if status == "in_progress" else item.arguments
            return FunctionCall(f"fc_{item.id}", item.id, item.name, arguments, status)
        content = [] if status == "in_progress" else [_part(item)]
        identity = self.response.id.removeprefix("resp_")
        return OutputMessage(f"msg_{identity}" + (f"-{index}" if index else ""), status, content)

    def output(self, status: Status) -> list[OutputMessage | FunctionCall]:
        """All items; only the last one can be incomplete."""
        last = len(self.items.all) - 1
        return [
            self.item(i, status if i == last else "completed") for i in range(len(self.items.all))
        ]

    async def finish(self, last: Piece, usage: Usage) -> bytes:
        """The whole answer, encoded, and stored if it is to be."""
        status = _status(last)
        ran_out = status == "incomplete"
        response = msgspec.structs.replace(
            self.response,
            status=status,
            incomplete_details=IncompleteDetails("max_output_tokens") if ran_out else None,
            output=self.output(status),
            store=self.stored,
            usage=_usage(usage),
        )
        encoded = encode(response)
        if self.stored and not await self._store(encoded):
            encoded = encode(msgspec.structs.replace(response, store=False))
        return encoded

    async def _store(self, encoded: bytes) -> bool:
        """False when it could not be kept: the answer says so, and is worth more than its copy."""
        if self.edge.responses is None:
            return False
        turns = [*self.conversation, self.items.message()]
        stored = StoredResponse(msgspec.Raw(encoded), turns, self.residency)
        try:
            return await self.edge.responses.put(self.tenant, self.response.id, stored)
        except Unavailable:
            return False


def _begun(asked: ResponsesRequest, id: str, created_at: int) -> ResponseObject:
    return ResponseObject(
        id=id,
        created_at=created_at,
        status="in_progress",
        instructions=asked.instructions,
        max_output_tokens=asked.max_output_tokens,
        metadata=asked.metadata or {},
        model=asked.model,
        output=[],
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        previous_response_id=asked.previous_response_id,
        store=asked.store is not False,
        temperature=DEFAULT_TEMPERATURE if asked.temperature is None else asked.temperature,
        text=asked.text if asked.text and asked.text.format else TextOptions(TextFormat("text")),
        tool_choice=asked.tool_choice or "auto",
        tools=asked.tools or [],
        top_p=1.0 if asked.top_p is None else asked.top_p,
    )


async def _collect(choices: Choices, draft: Draft) -> bytes:
    last = Piece("", [])
    try:
        async for _, piece in choices.pieces():
            draft.items.add(piece)
            last = piece
    finally:
        choices.close()
    draft.items.close()
    return await draft.finish(last, choices.usage())


class Events:
    """Frames events and numbers them."""

    def __init__(self) -> None:
        self._number = 0

    def frame(self, kind: str, **fields: Any) -> bytes:
        data = encode({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def error(self, exc: SkerryError) -> bytes:
        return self.frame("error", code=exc.code, message=exc.message, param=exc.param)


async def _events(choices: Choices, draft: Draft, events: Events) -> AsyncGenerator[bytes, None]:
    """The typed events of each item, one write per step.

    The last one is `response.completed` also for an answer that ran out of tokens, whose `status`
    says so: OpenAI's own clients take no other event for the end of an answer.
    """
    yield events.frame("response.created", response=draft.response) + events.frame(
        "response.in_progress", response=draft.response
    )
    last = Piece("", [])
    async for _, piece in choices.pieces():
        last = piece
        if told := _told(draft, events, draft.items.add(piece)):
            yield told
    end = _told(draft, events, draft.items.close())
    encoded = await draft.finish(last, choices.usage())
    end += _ended(draft, events, len(draft.items.all) - 1, _status(last))
    yield end + events.frame("response.completed", response=msgspec.Raw(encoded))


def _told(draft: Draft, events: Events, changes: Sequence[Change]) -> bytes:
    told = b""
    for change in changes:
        index = change.index
        if change.begins and index:
            told += _ended(draft, events, index - 1, "completed")
        begun = draft.item(index, "in_progress")
        part = {"item_id": begun.id, "output_index": index, "content_index": 0}
        if change.begins:
            told += events.frame("response.output_item.added", output_index=index, item=begun)
        if isinstance(begun, FunctionCall):
            if change.arguments:
                told += events.frame(
                    "response.function_call_arguments.delta",
                    item_id=begun.id,
                    output_index=index,
                    delta=change.arguments,
                )
            continue
        if change.begins:
            told += events.frame("response.content_part.added", **part, part=OutputText(""))
        if change.text or change.logprobs:
            told += events.frame(
                "response.output_text.delta", **part, delta=change.text, logprobs=change.logprobs
            )
    return told


def _ended(draft: Draft, events: Events, index: int, status: Status) -> bytes:
    item = draft.item(index, status)
    place = {"item_id": item.id, "output_index": index}
    if isinstance(item, FunctionCall):
        told = events.frame(
            "response.function_call_arguments.done",
            **place,
            name=item.name,
            arguments=item.arguments,
        )
    else:
        (part,) = item.content
        place["content_index"] = 0
        told = events.frame(
            "response.output_text.done", **place, text=part.text, logprobs=part.logprobs
        )
        told += events.frame("response.content_part.done", **place, part=part)
    return told + events.frame("response.output_item.done", output_index=index, item=item)


def _part(item: TextItem) -> OutputText:
    return OutputText(item.text, logprobs=item.logprobs)


def _status(last: Piece) -> Status:
    return "incomplete" if last.finish_reason == "length" else "completed"


def _usage(usage: Usage) -> ResponsesUsage:
    return ResponsesUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(0),
        total_tokens=usage.total_tokens,
    )
