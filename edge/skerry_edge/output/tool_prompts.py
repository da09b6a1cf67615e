"""Conversations with tools, laid out for models that were and were not trained to call any."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from skerry.wire import Message
from skerry_edge.families.family import Family, Ids
from skerry_edge.families.writer import written_calls
from skerry_edge.output.tools import Tool, Toolbox
from skerry_edge.text.prompts import content_text

TEACHING = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a JSON object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""  # as NousResearch's Hermes and Qwen2.5 are prompted
# A small model does not do what instructions say, but what it has seen done.
EXAMPLE = (
    Message("user", "What time is it in Rome?"),
    Message(
        "assistant",
        '<tool_call>\n{"name": "get_time", "arguments": {"city": "Rome"}}\n</tool_call>',
    ),
)


ID_LENGTH: Final = 9  # of Mistral's


def with_tools(
    family: Family, messages: Sequence[Message], box: Toolbox | None
) -> tuple[list[Message], list[dict[str, Any]] | None]:
    """Return messages as the model's template can lay them out, and the tools that it lays out
    itself."""
    tools = box.shown if box is not None else ()
    messages = [_modern(message) for message in messages]
    if not family.is_templated:
        turns = _plain_turns(messages)
        if tools:
            _teach(turns, _taught(TEACHING, tools))
            turns[1:1] = EXAMPLE
        return turns, None
    if family.ids != "any":
        messages = _with_ids(messages, family.ids)
    messages = _in_order(messages)
    if not family.lays_out_calls:
        messages = [_written(family, message) for message in messages]
    if family.messages is not None:
        messages = _one_by_one(messages)
    if tools and not family.describes_tools:
        _teach(messages, _taught(family.teaching or TEACHING, tools))
    return messages, [tool.described() for tool in tools] or None


def _modern(message: Message) -> Message:
    """Return `function_call` and the role `function`, as OpenAI had them before tools, in today's
    form."""
    if message.function_call is not None:
        call = {"type": "function", "function": message.function_call}
        message = msgspec.structs.replace(message, tool_calls=[call], function_call=None)
    if message.role == "function":
        message = msgspec.structs.replace(message, role="tool")
    return message


def _written(family: Family, message: Message) -> Message:
    """Return an assistant's turn whose calls are part of its text, as the family writes them."""
    if not message.tool_calls:
        return message
    calls = [
        (str(call["function"].get("name")), _arguments(call["function"].get("arguments")))
        for call in map(_nested, message.tool_calls)
    ]
    said = content_text(message)
    written = family.spelled(written_calls(family, calls, ids=["0" * ID_LENGTH] * len(calls)))
    lead = family.calls.lead if said else ""
    return msgspec.structs.replace(message, content=said + lead + written, tool_calls=None)


def _with_ids(messages: Sequence[Message], ids: Ids) -> list[Message]:
    """Return messages for templates that want an id of their own kind with each call and result:
    nine letters and digits, or the tool's name and the call's number in the conversation.

    Ids of another kind are hashed, or counted; results without one answer the calls in order.
    """
    turns: list[Message] = []
    known: dict[str, str] = {}  # ids of calls whose results are still to come, as they were given
    number = 0
    for message in messages:
        if message.tool_calls:
            calls = []
            known = {}
            for index, given in enumerate(message.tool_calls):
                call = _nested(given)
                theirs = str(call.get("id") or f"#{index}")
                name = str(call["function"].get("name"))
                call["id"] = f"functions.{name}:{number}" if ids == "counter" else _nine(theirs)
                known[theirs] = call["id"]
                number += 1
                calls.append(call)
            message = msgspec.structs.replace(message, tool_calls=calls)
        elif message.role == "tool":
            theirs = message.tool_call_id or next(iter(known), "#0")
            own = known.pop(theirs, None) or (_nine(theirs) if ids == "nine" else theirs)
            message = msgspec.structs.replace(message, tool_call_id=own)
        turns.append(message)
    return turns


def _nested(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with its function as an object of its own."""
    nested = call.get("function")
    function = (
        nested
        if isinstance(nested, dict)
        else {key: call.get(key) for key in ("name", "arguments")}
    )
    return {"id": call.get("id"), "type": "function", "function": function}


def _nine(id_: str) -> str:
    if len(id_) == ID_LENGTH and id_.isascii() and id_.isalnum():
        return id_
    digest = hashlib.blake2b(id_.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:ID_LENGTH]


def _in_order(messages: Sequence[Message]) -> list[Message]:
    """Return messages with results in the order of their calls: most templates write no ids."""
    turns: list[Message] = []
    places: dict[object, int] = {}
    start = 0  # of the results in a row
    for message in messages:
        if message.role != "tool":
            start = len(turns) + 1
            places = {
                call["id"]: place
                for place, call in enumerate(message.tool_calls or ())
                if call.get("id")
            }
        turns.append(message)
        if message.role == "tool" and all(each.tool_call_id in places for each in turns[start:]):
            turns[start:] = sorted(turns[start:], key=lambda each: places[each.tool_call_id])
    return turns


def _one_by_one(messages: Sequence[Message]) -> list[Message]:
    """Return messages with one call in each, its result behind it: a turn has no more there."""
    turns: list[Message] = []
    waiting: list[Message] = []  # turns of further calls, each for the result of the one before
    for message in messages:
        if waiting and message.role != "tool":
            turns += waiting
            waiting = []
        calls = message.tool_calls or []
        others = calls[1:]
        turns.append(msgspec.structs.replace(message, tool_calls=calls[:1]) if others else message)
        if message.role == "tool" and waiting:
            turns.append(waiting.pop(0))
        elif others:
            waiting = [
                msgspec.structs.replace(message, content=None, tool_calls=[call]) for call in others
            ]
    return turns + waiting


def _arguments(given: object) -> dict[str, Any]:
    """Return a call's arguments as an object, of either form."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            given = {"arguments": given}
    return given if isinstance(given, dict) else {}


def _taught(teaching: str, tools: Sequence[Tool]) -> str:
    lines = [json.dumps(tool.described(), ensure_ascii=False) for tool in tools]
    return teaching.format(tools="\n".join(lines))


def _teach(turns: list[Message], teaching: str) -> None:
    """Describe the tools in the system message."""
    if turns and turns[0].role == "system":
        before = content_text(turns[0])
        turns[0] = msgspec.structs.replace(turns[0], content=f"{before}\n\n{teaching}".strip())
    else:
        turns.insert(0, Message("system", teaching))


def _plain_turns(messages: Sequence[Message]) -> list[Message]:
    """Render calls and results as text: results in a row are one turn of the user's."""
    turns: list[Message] = []
    in_results = False
    for message in messages:
        is_result = message.role == "tool"
        if not is_result:
            turns.append(_with_calls(message))
        elif in_results:
            joined = f"{content_text(turns[-1])}\n{_result(message)}"
            turns[-1] = Message("user", joined)
        else:
            turns.append(Message("user", _result(message)))
        in_results = is_result
    return turns


def _result(message: Message) -> str:
    return f"<tool_response>\n{content_text(message)}\n</tool_response>"


def _with_calls(message: Message) -> Message:
    """Return an assistant's turn whose calls are part of its text."""
    if not message.tool_calls:
        return message
    parts = [content_text(message)] if message.content else []
    parts += [f"<tool_call>\n{_call(call)}\n</tool_call>" for call in message.tool_calls]
    return Message(message.role, "\n".join(parts))


def _call(call: dict[str, Any]) -> str:
    """Return a call as the model wrote it, from either style: nested with text, or flat with an
    object."""
    nested = call.get("function")
    function = nested if isinstance(nested, dict) else call
    name = json.dumps(function.get("name"), ensure_ascii=False)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {arguments}}}'
