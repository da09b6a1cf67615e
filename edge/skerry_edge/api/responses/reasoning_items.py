"""Reasoning items of OpenAI's Responses, and their events.

A summary, where one is requested, is the thought itself: open models' thoughts are shown, and none
is made up.
"""

from __future__ import annotations

from collections.abc import Callable

from skerry_edge.api.responses.responses_wire import (
    ReasoningOutput,
    ReasoningText,
    Status,
    SummaryText,
)
from skerry_edge.api.thought_seal import ThoughtSeal

Frame = Callable[..., bytes]  # of `Events`


def reasoning_item(
    id: str, thought: str, status: Status, seal: ThoughtSeal, *, is_summed: bool
) -> ReasoningOutput:
    """Return a thought as an item; one in progress is empty."""
    if status == "in_progress":
        return ReasoningOutput(id, [], [], None, status)
    summary = [SummaryText(thought)] if is_summed else []
    return ReasoningOutput(id, summary, [ReasoningText(thought)], seal.seal(thought), status)


def told_of(
    frame: Frame, id: str, index: int, thought: str, *, begins: bool, is_summed: bool
) -> bytes:
    """Return the events of more of a thought."""
    item = {"item_id": id, "output_index": index}
    content, summary, told = item | {"content_index": 0}, item | {"summary_index": 0}, b""
    if begins:
        told += frame("response.content_part.added", **content, part=ReasoningText(""))
        if is_summed:
            part = SummaryText("")
            told += frame("response.reasoning_summary_part.added", **summary, part=part)
    told += frame("response.reasoning_text.delta", **content, delta=thought)
    if is_summed:
        told += frame("response.reasoning_summary_text.delta", **summary, delta=thought)
    return told


def ended(frame: Frame, item: ReasoningOutput, index: int) -> bytes:
    """Return the events of a thought's end, but for that of its item."""
    whole = {"item_id": item.id, "output_index": index}
    told = b""
    for part in item.content:
        content = whole | {"content_index": 0}
        told += frame("response.reasoning_text.done", **content, text=part.text)
        told += frame("response.content_part.done", **content, part=part)
    for summed in item.summary:
        summary = whole | {"summary_index": 0}
        told += frame("response.reasoning_summary_text.done", **summary, text=summed.text)
        told += frame("response.reasoning_summary_part.done", **summary, part=summed)
    return told
