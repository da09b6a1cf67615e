"""The items of a stored conversation, as OpenAI lists what a response was made of.

A conversation is stored as the messages that the model is shown, with an id for each item of them:
a message is one item, or a text and the calls beside it. What the model is not shown (reasoning,
instructions) is not listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from skerry.errors import InvalidInput
from skerry.wire import Message
from skerry_edge.api.batch.files import ListQuery
from skerry_edge.api.responses.responses_wire import (
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    InputItemList,
    InputText,
    ListedMessage,
    OutputText,
)
from skerry_edge.ledger.responses_store import StoredResponse
from skerry_edge.text.prompts import content_text

Item = ListedMessage | FunctionCall | FunctionCallOutput

PREFIXES = {"function_call": "fc", "function_call_output": "fco"}  # of ids; of the others: msg


def input_ids(given: str | Sequence[InputItem], identity: str) -> list[str]:
    """Return the id of each item that a request brings and the model is shown: the caller's, or one
    that is made of the response's identity."""
    items = [InputItem()] if isinstance(given, str) else given
    return [
        item.id or f"{PREFIXES.get(item.type, 'msg')}_{identity}-in-{number}"
        for number, item in enumerate(items)
        if item.type != "reasoning"
    ]


def conversation_ids(stored: StoredResponse) -> list[str]:
    """Return the id of each item of a conversation; of one that was stored without, its place."""
    number = sum(1 for message in stored.messages for _ in _parts(message))
    return stored.ids if len(stored.ids) == number else [f"item_{i}" for i in range(number)]


def output_ids(message: Message, text_id: str) -> list[str]:
    """Return the ids of an answer's items, as the answer itself had them."""
    return [text_id if part is None else f"fc_{part.get('id')}" for part in _parts(message)]


def listed(stored: StoredResponse, query: ListQuery, *, newest_first: bool) -> InputItemList:
    """Return a page of what a response was made of: all items but those of the answer.

    Raises `InvalidInput` for an `after` that is none of them.
    """
    given, ids = stored.messages[:-1], conversation_ids(stored)
    parts = [(message, part) for message in given for part in _parts(message)]
    numbers = list(reversed(range(len(parts))) if newest_first else range(len(parts)))
    if query.after is not None:
        places = [place for place, number in enumerate(numbers) if ids[number] == query.after]
        if not places:
            raise InvalidInput("Bad input: after: no such item of this response", param="after")
        numbers = numbers[places[0] + 1 :]
    data = [_item(ids[number], *parts[number]) for number in numbers[: query.limit]]
    return InputItemList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=len(numbers) > query.limit,
    )


def _parts(message: Message) -> Iterator[dict[str, Any] | None]:
    """Yield what is an item of a message: None for its text, and its calls."""
    if message.content or not message.tool_calls:
        yield None
    yield from message.tool_calls or ()


def _item(id: str, message: Message, call: dict[str, Any] | None) -> Item:
    if call is not None:
        function = call["function"]
        return FunctionCall(id, call["id"], function["name"], function["arguments"], "completed")
    text = content_text(message)
    if message.role == "tool":
        return FunctionCallOutput(id, message.tool_call_id or "", text, "completed")
    part = OutputText(text) if message.role == "assistant" else InputText(text)
    return ListedMessage(id, message.role, [part], "completed")
