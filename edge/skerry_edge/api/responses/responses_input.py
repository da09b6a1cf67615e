"""What a request of OpenAI's Responses means, as that of a chat completion."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from skerry.errors import InvalidInput
from skerry.wire import Message
from skerry.wire.openai import ChatCompletionRequest
from skerry_edge.api.openai.prompt_cache import Marked, chosen
from skerry_edge.api.responses.responses_wire import (
    ContentPart,
    InputItem,
    InputTokensRequest,
    ResponsesRequest,
    TextFormat,
)
from skerry_edge.api.thought_seal import ThoughtSeal
from skerry_edge.text.breakpoints import MOST, Breakpoint

WITH_LOGPROBS = "message.output_text.logprobs"  # of `include`
WITH_SEALED = "reasoning.encrypted_content"  # of `include`: sealed thoughts are always there


def open_thoughts(asked: InputTokensRequest, seal: ThoughtSeal | None) -> None:
    """Put what was thought into the reasoning items of the input, and nothing where it is not for
    this model; without a seal it has no thoughts. Raises `InvalidInput` for a sealed one that is
    not as it was returned."""
    if isinstance(asked.input, str):
        return
    for number, item in enumerate(asked.input):
        if item.type != "reasoning":
            continue
        if seal is None:
            item.content, item.summary = "", None
        elif item.encrypted_content:
            if (opened := seal.open(item.encrypted_content)) is None:
                place = f"input[{number}].encrypted_content"
                raise InvalidInput(f"Bad input: {place}: could not be verified", param=place)
            thought, is_own = opened
            item.content = thought if is_own else ""


def turns_of(given: str | Sequence[InputItem]) -> list[Message]:
    """Return the input's items as messages; calls of tools in a row are one turn of the
    assistant's, and a thought is part of the turn that follows."""
    if isinstance(given, str):
        return [Message("user", given)]
    turns: list[Message] = []
    thought: str | None = None
    for number, item in enumerate(given):
        place = f"input[{number}]"
        match item.type:
            case "message":
                turn = Message(_role(item, place), _text(item.content, f"{place}.content"))
                if turn.role == "assistant":
                    turn.reasoning_content = thought
                thought = None
                turns.append(turn)
            case "function_call":
                if not turns or not turns[-1].tool_calls or thought is not None:
                    called = Message("assistant", "", tool_calls=[], reasoning_content=thought)
                    turns.append(called)
                    thought = None
                calls = turns[-1].tool_calls
                if calls is not None:
                    calls.append(_tool_call(item, place))
            case "function_call_output":
                call_id = _given(item.call_id, f"{place}.call_id")
                output = _text(item.output, f"{place}.output")
                turns.append(Message("tool", output, tool_call_id=call_id))
            case "reasoning":
                thought = thought_of(item, number) or None
            case other:
                raise InvalidInput(
                    f"Bad input: {place}.type: {other[:40]!r} items are not supported",
                    param=f"{place}.type",
                )
    if not turns:
        raise InvalidInput("Bad input: input: there is no message", param="input")
    return turns


def thought_of(item: InputItem, number: int) -> str:
    """Return what a reasoning item, the input's `number`th, shows of a thought."""
    said = item.summary if item.content is None else item.content
    return _text(said or "", f"input[{number}].content")


def breakpoints_of(asked: ResponsesRequest, before: Sequence[Message]) -> list[Breakpoint]:
    """Return what of the request's prompt stays cached; `before` are the turns before its input."""
    items = [] if isinstance(asked.input, str) else asked.input
    marks = [
        (number, end, part.prompt_cache_breakpoint)
        for number, item in enumerate(items)
        for parts in (item.content, item.output)
        if isinstance(parts, list)
        for end, part in enumerate(parts, 1)
        if part.prompt_cache_breakpoint is not None
    ]
    if asked.instructions:
        before = [Message("system", asked.instructions), *before]
    marked: list[Marked] = []
    for number, end, mark in marks[-MOST:]:
        begun = replace(
            items[number], content=_begun(items[number].content, end),
            output=_begun(items[number].output, end),
        )  # fmt: skip
        is_whole = number + 1 == len(items) and begun == items[number]
        cut = partial(_turns_after, before, [*items[:number], begun])
        marked.append((mark, None if is_whole else cut))
    return chosen(asked.prompt_cache_options, asked.prompt_cache_retention, marked)


def _turns_after(before: Sequence[Message], items: Sequence[InputItem]) -> list[Message]:
    return [*before, *turns_of(items)]


def _begun(parts: str | list[ContentPart] | None, end: int) -> str | list[ContentPart] | None:
    return parts[:end] if isinstance(parts, list) else parts


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


def chat_request(asked: ResponsesRequest, conversation: Sequence[Message]) -> ChatCompletionRequest:
    instructions = [Message("system", asked.instructions)] if asked.instructions else []
    with_logprobs = WITH_LOGPROBS in (asked.include or ())
    return ChatCompletionRequest(
        model=asked.model,
        messages=[*instructions, *conversation],
        max_completion_tokens=asked.max_output_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        seed=asked.seed,
        logprobs=with_logprobs,
        top_logprobs=asked.top_logprobs if with_logprobs else None,
        response_format=_response_format(asked.text.format if asked.text else None),
        tools=[_function(tool, f"tools[{i}]") for i, tool in enumerate(asked.tools or ())],
        tool_choice=_tool_choice(asked.tool_choice),
        parallel_tool_calls=asked.parallel_tool_calls,
        reasoning_effort=asked.reasoning.effort if asked.reasoning else None,
    )


def left_out(asked: ResponsesRequest) -> list[str]:
    """Return the fields whose values change nothing here."""
    included = asked.include or []
    known = (WITH_LOGPROBS, WITH_SEALED)
    unused = ["include"] if any(each not in known for each in included) else []
    return unused + (
        ["top_logprobs"] if asked.top_logprobs and WITH_LOGPROBS not in included else []
    )


def _function(tool: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a tool, flat as it came: its schema keeps its path in errors."""
    if tool.get("type", "function") != "function":
        raise InvalidInput(
            f"Bad input: {place}.type: only functions are supported", param=f"{place}.type"
        )
    names = ("name", "description", "parameters", "strict")
    return {name: tool[name] for name in names if tool.get(name) is not None}


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _response_format(given: TextFormat | None) -> dict[str, Any] | None:
    """Return `text.format` as chat completions have it: the schema one level deeper."""
    if given is None:
        return None
    if given.type != "json_schema":
        return {"type": given.type} | ({} if given.schema is None else {"schema": given.schema})
    schema = {"name": given.name, "schema": given.schema, "strict": given.strict}
    return {"type": given.type, "json_schema": schema}
