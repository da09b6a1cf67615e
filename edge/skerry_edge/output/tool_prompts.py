"""Conversations with tools, laid out for models that were and were not trained to call any."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from skerry.wire import Message
from skerry_edge.output.tools import Family, Tool, Toolbox
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


def with_tools(
    family: Family, messages: Sequence[Message], box: Toolbox | None
) -> tuple[list[Message], list[dict[str, Any]] | None]:
    """Return messages as the model's template can lay them out, and the tools that it lays out
    itself."""
    tools = box.shown if box is not None else ()
    messages = [_modern(message) for message in messages]
    if family.is_templated:
        if family.id_length is not None:
            messages = _with_ids(messages, family.id_length)
        return messages, [tool.described() for tool in tools] or None
    turns = _plain_turns(messages)
    if tools:
        _teach(turns, tools)
    return turns, None


def _modern(message: Message) -> Message:
    """Return `function_call` and the role `function`, as OpenAI had them before tools, in today's
    form."""
    if message.function_call is not None:
        call = {"type": "function", "function": message.function_call}
        message = msgspec.structs.replace(message, tool_calls=[call], function_call=None)
    if message.role == "function":
        message = msgspec.structs.replace(message, role="tool")
    return message


def _with_ids(messages: Sequence[Message], length: int) -> list[Message]:
    """Return messages for templates that want an id of so many letters and digits with each call
    and each result.

    Ids of another form are hashed to theirs; results without one answer the calls in their order.
    """
    turns: list[Message] = []
    open_ids: list[str] = []  # of calls whose results are still to come
    for message in messages:
        if message.tool_calls:
            calls = [_nested(call, index, length) for index, call in enumerate(message.tool_calls)]
            open_ids = [call["id"] for call in calls]
            message = msgspec.structs.replace(message, tool_calls=calls)
        elif message.role == "tool":
            given = message.tool_call_id
            id_ = _short(given, length) if given else next(iter(open_ids), "0" * length)
            open_ids = [each for each in open_ids if each != id_]
            message = msgspec.structs.replace(message, tool_call_id=id_)
        turns.append(message)
    return turns


def _nested(call: dict[str, Any], index: int, length: int) -> dict[str, Any]:
    """Return a call with its function as an object of its own, and an id of the right length."""
    nested = call.get("function")
    function = (
        nested
        if isinstance(nested, dict)
        else {key: call.get(key) for key in ("name", "arguments")}
    )
    id_ = call.get("id")
    short = _short(id_, length) if isinstance(id_, str) and id_ else str(index).rjust(length, "0")
    return {"id": short, "type": "function", "function": function}


def _short(id_: str, length: int) -> str:
    if len(id_) == length and id_.isascii() and id_.isalnum():
        return id_
    return hashlib.blake2b(id_.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def _teach(turns: list[Message], tools: Sequence[Tool]) -> None:
    """Describe the tools in the system message, and show a call before the first turn."""
    lines = [json.dumps(tool.described(), ensure_ascii=False) for tool in tools]
    teaching = TEACHING.format(tools="\n".join(lines))
    if turns and turns[0].role == "system":
        before = content_text(turns[0])
        turns[0] = msgspec.structs.replace(turns[0], content=f"{before}\n\n{teaching}".strip())
    else:
        turns.insert(0, Message("system", teaching))
    turns[1:1] = EXAMPLE


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
