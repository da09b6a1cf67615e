"""Answers of Anthropic's Messages: blocks, whole or as a stream of typed events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from skerry.wire import TokenUsage
from skerry_edge.api.anthropic.messages_wire import (
    CacheCreation,
    MessagesAnswer,
    MessagesUsage,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ThinkingTokens,
    ToolUseBlock,
)
from skerry_edge.api.thought_seal import ThoughtSeal
from skerry_edge.envelopes import encode
from skerry_edge.families.deltas import PartialCall
from skerry_edge.generation.generation import Choices, Piece
from skerry_edge.generation.output_items import Change, Item, OutputItems, ReasoningItem, TextItem


class AnswerBlocks:
    """An answer's items as blocks; a thought has its signature, and its text where it `shows`
    them."""

    def __init__(self, seal: ThoughtSeal, *, shows: bool) -> None:
        self._seal = seal
        self._shows = shows

    def whole(self, item: Item) -> TextBlock | ThinkingBlock | ToolUseBlock:
        """Return a block that is as long as it gets."""
        match item:
            case TextItem():
                return TextBlock(item.text)
            case ReasoningItem():
                shown = item.text if self._shows else ""
                return ThinkingBlock(shown, self._seal.seal(item.text))
            case PartialCall():
                return ToolUseBlock(item.id, item.name, _arguments(item))

    def begun(self, item: Item) -> TextBlock | ThinkingBlock | ToolUseBlock:
        """Return the block as it begins, with nothing in it."""
        match item:
            case TextItem():
                return TextBlock("")
            case ReasoningItem():
                return ThinkingBlock()
            case PartialCall():
                return ToolUseBlock(item.id, item.name, {})

    def delta(self, item: Item, change: Change) -> dict[str, str] | None:
        """Return what a change adds to a block; None where that is nothing."""
        if isinstance(item, PartialCall):
            said = {"type": "input_json_delta", "partial_json": change.arguments}
            return said if change.arguments else None
        if isinstance(item, ReasoningItem):
            shown = self._shows and change.text
            return {"type": "thinking_delta", "thinking": change.text} if shown else None
        return {"type": "text_delta", "text": change.text} if change.text else None

    def end(self, items: OutputItems, index: int) -> bytes:
        """Return the events with which a block ends."""
        item, told = items.all[index], b""
        if isinstance(item, ReasoningItem):
            signed = {"type": "signature_delta", "signature": self._seal.seal(item.text)}
            told = _told({"type": "content_block_delta", "index": index, "delta": signed})
        return told + _told({"type": "content_block_stop", "index": index})


def _arguments(call: PartialCall) -> dict[str, Any]:
    try:
        return msgspec.json.decode(call.arguments, type=dict[str, Any])
    except msgspec.DecodeError:  # it ran out of tokens within them: `stop_reason` says so
        return {}


async def collect(choices: Choices, head: MessagesAnswer, blocks: AnswerBlocks) -> MessagesAnswer:
    """Return the whole answer."""
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
        content=[blocks.whole(item) for item in items.all],
        stop_reason=_stop_reason(last),
        stop_sequence=last.matched_stop,
        usage=usage_of(choices.usage(), head.usage.inference_geo),
    )


async def events_of(
    choices: Choices, head: MessagesAnswer, blocks: AnswerBlocks
) -> AsyncGenerator[bytes, None]:
    """Yield Anthropic's events, one write per step; the first has what was cached, and comes when
    that is known."""
    items, has_begun = OutputItems(), False
    async for _, piece in choices.pieces():
        event = b""
        if not has_begun:
            has_begun, usage = True, usage_of(choices.usage(), head.usage.inference_geo)
            begun = msgspec.structs.replace(head, usage=usage)
            event = _told({"type": "message_start", "message": begun})
        event += _changed(items, items.add(piece), blocks)
        if piece.finish_reason is not None:
            end = {"stop_reason": _stop_reason(piece), "stop_sequence": piece.matched_stop}
            usage = usage_of(choices.usage(), head.usage.inference_geo)
            event += _changed(items, items.close(), blocks)
            event += blocks.end(items, len(items.all) - 1)
            event += _told({"type": "message_delta", "delta": end, "usage": usage})
            event += _told({"type": "message_stop"})
        if event:
            yield event


def _changed(items: OutputItems, changes: Sequence[Change], blocks: AnswerBlocks) -> bytes:
    told = b""
    for change in changes:
        index, item = change.index, items.all[change.index]
        if change.begins:
            if index:
                told += blocks.end(items, index - 1)
            begun = blocks.begun(item)
            told += _told({"type": "content_block_start", "index": index, "content_block": begun})
        if (delta := blocks.delta(item, change)) is not None:
            told += _told({"type": "content_block_delta", "index": index, "delta": delta})
    return told


def _told(data: dict[str, Any]) -> bytes:
    return event_of(data["type"], encode(data))


def event_of(name: str, data: bytes) -> bytes:
    """Return one event."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def _stop_reason(last: Piece) -> StopReason:
    if last.matched_stop is not None:
        return "stop_sequence"
    if last.finish_reason == "tool_calls":
        return "tool_use"
    return "max_tokens" if last.finish_reason == "length" else "end_turn"


def usage_of(usage: TokenUsage, geo: str | UnsetType) -> MessagesUsage:
    """Return a request's usage in Anthropic's words, and the zone that it was bound to."""
    details, said = usage.prompt_tokens_details, usage.completion_tokens_details
    told = MessagesUsage(
        input_tokens=usage.prompt_tokens - details.cached_tokens,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=details.cached_tokens,
        output_tokens=usage.completion_tokens,
        inference_geo=geo,
        output_tokens_details=ThinkingTokens(said.reasoning_tokens) if said else UNSET,
    )
    if not isinstance(written := details.cache_write_tokens, UnsetType):
        for_an_hour = (details.cache_write_tokens_details or {}).get("ttl_1h_tokens", 0)
        told.input_tokens -= written
        told.cache_creation_input_tokens = written
        told.cache_creation = CacheCreation(written - for_an_hour, for_an_hour)
        told.cache_lapsed_input_tokens = details.cache_lapsed_tokens
    return told
