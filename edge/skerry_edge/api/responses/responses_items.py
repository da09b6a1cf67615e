"""The items of a stored conversation, as OpenAI lists what a response was made of.

A conversation is stored as the messages that the model is shown, with an id for each item of them:
a message is one item, or a thought, a text and the calls beside it. What the model is not shown
(thoughts of others, instructions) is not listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from skerry.errors import InvalidInput
from skerry.wire import Message
from skerry_edge.api.batch.files import ListQuery
from skerry_edge.api.responses.responses_input import thought_of
from skerry_edge.api.responses.responses_wire import (
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    InputItemList,
    InputText,
    ListedMessage,
    OutputMessage,
    OutputText,
    ReasoningOutput,
    ReasoningText,
)
from skerry_edge.ledger.responses_store import StoredResponse
from skerry_edge.text.prompts import content_text

Item = ListedMessage | ReasoningOutput | FunctionCall | FunctionCallOutput
Part = Literal["thought", "text"] | dict[str, Any]
"""Of a message, that is an item: its thought, its text, or one of its calls."""

# Of ids; of the others: msg.
PREFIXES = {"function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def input_ids(given: str | Sequence[InputItem], identity: str) -> list[str]:
    """Return the id of each item that a request brings and the model is shown: the caller's, or one
    that is made of the response's identity."""
    items = [InputItem()] if isinstance(given, str) else given
    ids: list[str] = []
    thought: str | None = None  # that waits for its turn
    for number, item in enumerate(items):
        id = item.id or f"{PREFIXES.get(item.type, 'msg')}_{identity}-in-{number}"
        if item.type == "reasoning":
            thought = id if thought_of(item, number) else None
            continue
        if item.type != "function_call_output":
            if thought is not None and (item.type == "function_call" or item.role == "assistant"):
                ids.append(thought)
            thought = None
        ids.append(id)
    return ids


def conversation_ids(stored: StoredResponse) -> list[str]:
    """Return the id of each item of a conversation; of one that was stored without, its place."""
    number = sum(1 for message in stored.messages for _ in _parts(message))
    return stored.ids if len(stored.ids) == number else [f"item_{i}" for i in range(number)]


def output_ids(message: Message, output: Sequence[object]) -> list[str]:
    """Return the ids of an answer's items, as the answer itself, its `output`, had them; of several
    thoughts or texts, which are one item of its turn, the first one's."""
    ids = {type(item): item.id for item in reversed(output)
           if isinstance(item, OutputMessage | ReasoningOutput)}  # fmt: skip
    return [
        ids[ReasoningOutput] if part == "thought" else ids[OutputMessage] if part == "text"
        else f"fc_{part['id']}"
        for part in _parts(message)
    ]  # fmt: skip


def listed(stored: StoredResponse, query: ListQuery, *, newest_first: bool) -> InputItemList:
    """Return a page of what a response was made of: all items but those of the answer.

    Raises `InvalidInput` for an `after` that is none of them.
    """
    given, ids = stored.messages[:-1], conversation_ids(stored)
    parts: list[tuple[Message, Part]] = [
        (message, part) for message in given for part in _parts(message)
    ]
    numbers = list(reversed(range(len(parts))) if newest_first else range(len(parts)))
    if query.after is not None:
        places = [place for place, number in enumerate(numbers) if ids[number] == query.after]
        if not places:
            raise InvalidInput("Bad input: after: no such item of this response", param="after")
        numbers = numbers[places[0] + 1 :]
    data = [_item(ids[number], *parts[number]) for number in numbers[: query.limit]]
    return InputItemList.of(data, has_more=len(numbers) > query.limit)


def _parts(message: Message) -> Iterator[Part]:
    """Yield what is an item of a message."""
    if message.reasoning_content:
        yield "thought"
    if message.content or not (message.tool_calls or message.reasoning_content):
        yield "text"
    yield from message.tool_calls or ()


def _item(id: str, message: Message, part: Part) -> Item:
    if isinstance(part, dict):
        function = part["function"]
        return FunctionCall(id, part["id"], function["name"], function["arguments"], "completed")
    if part == "thought":
        thought = [ReasoningText(message.reasoning_content or "")]
        return ReasoningOutput(id, [], thought, None, "completed")
    text = content_text(message)
    if message.role == "tool":
        return FunctionCallOutput(id, message.tool_call_id or "", text, "completed")
    said = OutputText(text) if message.role == "assistant" else InputText(text)
    return ListedMessage(id, message.role, [said], "completed")
