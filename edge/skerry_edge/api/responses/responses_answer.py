"""An answer of OpenAI's Responses in the making: its items, its typed events, and storing it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from skerry.errors import SkerryError, Unavailable
from skerry.wire import Message, TokenUsage
from skerry_edge.api.responses.reasoning_items import ended, reasoning_item, told_of
from skerry_edge.api.responses.recent import SocketCall
from skerry_edge.api.responses.responses_items import output_ids
from skerry_edge.api.responses.responses_wire import (
    FunctionCall,
    IncompleteDetails,
    InputTokensDetails,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    ReasoningEcho,
    ReasoningOptions,
    ReasoningOutput,
    ResponseObject,
    ResponsesRequest,
    ResponsesUsage,
    Status,
    TextFormat,
    TextOptions,
)
from skerry_edge.api.thought_seal import ThoughtSeal
from skerry_edge.envelopes import encode
from skerry_edge.families.deltas import PartialCall
from skerry_edge.generation.edge import Edge
from skerry_edge.generation.generation import Choices, Piece
from skerry_edge.generation.output_items import Change, OutputItems, ReasoningItem, TextItem
from skerry_edge.ledger.responses_store import StoredResponse
from skerry_regions.wire.protocol import Sampling


@dataclass(slots=True, kw_only=True)
class Draft:
    """An answer in the making."""

    edge: Edge
    tenant: str
    conversation: list[Message]
    ids: list[str]  # of the conversation's items
    residency: str | None  # zone that the conversation is bound to
    response: ResponseObject
    stored: bool
    seal: ThoughtSeal
    call: SocketCall | None = None  # that it answers
    items: OutputItems = field(default_factory=OutputItems)

    @property
    def is_summed(self) -> bool:
        """Return whether thoughts are sent as summaries too."""
        return self.response.reasoning.summary is not None

    def item(self, index: int, status: Status) -> OutputMessage | ReasoningOutput | FunctionCall:
        item = self.items.all[index]
        identity = self.response.id.removeprefix("resp_") + (f"-{index}" if index else "")
        if isinstance(item, PartialCall):
            arguments = "" if status == "in_progress" else item.arguments
            return FunctionCall(f"fc_{item.id}", item.id, item.name, arguments, status)
        if isinstance(item, ReasoningItem):
            id, is_summed = f"rs_{identity}", self.is_summed
            return reasoning_item(id, item.text, status, self.seal, is_summed=is_summed)
        content = [] if status == "in_progress" else [_part(item)]
        return OutputMessage(f"msg_{identity}", status, content)

    def output(self, status: Status) -> list[OutputMessage | ReasoningOutput | FunctionCall]:
        """Return all items; only the last one can be incomplete."""
        last = len(self.items.all) - 1
        return [
            self.item(i, status if i == last else "completed") for i in range(len(self.items.all))
        ]

    async def finish(self, last: Piece, usage: TokenUsage) -> bytes:
        """Return the whole answer, encoded, and stored if it is to be."""
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
        if self.stored or self.call is not None:
            answer = self.items.message()
            ids = self.ids + output_ids(answer, self.output("completed"))
            kept = self._keep(encoded, [*self.conversation, answer], ids)
            if self.stored and not await self._store(kept):
                encoded = encode(msgspec.structs.replace(response, store=False))
        return encoded

    def warmed(self, usage: TokenUsage) -> bytes:
        """Return the answer without output that the connection can go on from; it is not stored."""
        response = msgspec.structs.replace(
            self.response, status="completed", store=False, usage=_usage(usage)
        )
        encoded = encode(response)
        self._keep(encoded, self.conversation, self.ids)
        return encoded

    def _keep(self, encoded: bytes, turns: list[Message], ids: list[str]) -> StoredResponse:
        """Return it as it is kept, in the memory of its connection if it has come over one."""
        kept = StoredResponse(msgspec.Raw(encoded), turns, self.residency, ids)
        if self.call is not None:
            self.call.recent.keep(self.call.lane, self.response.id, kept)
        return kept

    async def _store(self, kept: StoredResponse) -> bool:
        """Store it; False when it could not be kept: the answer says so, and is worth more than its
        copy."""
        if self.edge.responses is None:
            return False
        try:
            return await self.edge.responses.put(self.tenant, self.response.id, kept)
        except Unavailable:
            return False


def begun(asked: ResponsesRequest, sampling: Sampling, id: str, created_at: int) -> ResponseObject:
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
        reasoning=_reasoning(asked.reasoning),
        store=asked.store is not False,
        temperature=sampling.temperature,
        text=asked.text if asked.text and asked.text.format else TextOptions(TextFormat("text")),
        tool_choice=asked.tool_choice or "auto",
        tools=asked.tools or [],
        top_p=sampling.top_p,
    )


def _reasoning(asked: ReasoningOptions | None) -> ReasoningEcho:
    """Return what a request says of reasoning, as the answer repeats it."""
    if asked is None:
        return ReasoningEcho(None, None)
    return ReasoningEcho(asked.effort, asked.summary or asked.generate_summary)


async def collect(choices: Choices, draft: Draft) -> bytes:
    last = Piece([])
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


async def events_of(choices: Choices, draft: Draft, events: Events) -> AsyncGenerator[bytes, None]:
    """Yield the typed events of each item, one write per step.

    The last one is `response.completed` also for an answer that ran out of tokens, whose `status`
    says so: OpenAI's own clients take no other event for the end of an answer.
    """
    yield _begun(draft, events)
    last = Piece([])
    async for _, piece in choices.pieces():
        last = piece
        if told := _told(draft, events, draft.items.add(piece)):
            yield told
    end = _told(draft, events, draft.items.close())
    encoded = await draft.finish(last, choices.usage())
    end += _ended(draft, events, len(draft.items.all) - 1, _status(last))
    yield end + events.frame("response.completed", response=msgspec.Raw(encoded))


async def warmed(choices: Choices, draft: Draft, events: Events) -> AsyncGenerator[bytes, None]:
    """Yield the events of an answer without output, once its prompt was computed."""
    yield _begun(draft, events)
    async for _ in choices.pieces():
        pass  # the one token that an engine makes at least
    encoded = draft.warmed(choices.usage())
    yield events.frame("response.completed", response=msgspec.Raw(encoded))


def _begun(draft: Draft, events: Events) -> bytes:
    created = events.frame("response.created", response=draft.response)
    return created + events.frame("response.in_progress", response=draft.response)


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
        if isinstance(begun, ReasoningOutput):
            told += told_of(
                events.frame, begun.id, index, change.text,
                begins=change.begins, is_summed=draft.is_summed,
            )  # fmt: skip
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
    if isinstance(item, ReasoningOutput):
        told = ended(events.frame, item, index)
    elif isinstance(item, FunctionCall):
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


def _usage(usage: TokenUsage) -> ResponsesUsage:
    details, said = usage.prompt_tokens_details, usage.completion_tokens_details
    return ResponsesUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(
            details.cached_tokens,
            details.cache_write_tokens or 0,
            details.cache_write_tokens_details,
            details.cache_lapsed_tokens,
        ),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(said.reasoning_tokens if said else 0),
        total_tokens=usage.total_tokens,
    )
