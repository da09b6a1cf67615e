"""What a request of Anthropic's Messages means, as that of a chat completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from skerry.errors import InvalidInput
from skerry.wire import Message, TextPart
from skerry.wire.openai import ChatCompletionRequest
from skerry_edge.api.anthropic.messages_wire import (
    CountRequest,
    InputMessage,
    MessagesRequest,
    OutputSchema,
    TextBlock,
    ThinkingAdaptive,
    ThinkingBlock,
    ThinkingEnabled,
    ToolResultBlock,
    ToolUseBlock,
)
from skerry_edge.envelopes import encode

FAILED: Final = "Error: "  # before the result of a tool that failed
BILLING: Final = "x-anthropic-billing-header:"  # a line of Claude Code's, other with each request
MAX_BILLING: Final = 256  # characters of it that are noted


def chat_request(asked: MessagesRequest, history: Sequence[InputMessage]) -> ChatCompletionRequest:
    """Return the chat completion that answers a conversation."""
    wanted = asked.thinking
    return ChatCompletionRequest(
        model=asked.model,
        messages=turns_of(asked.system, history),
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        stop=asked.stop_sequences,
        response_format=_response_format(asked),
        tools=[_function(tool, f"tools[{i}]") for i, tool in enumerate(asked.tools or ())],
        tool_choice=_tool_choice(asked.tool_choice),
        parallel_tool_calls=not (asked.tool_choice or {}).get("disable_parallel_tool_use", False),
        enable_thinking=isinstance(wanted, ThinkingEnabled | ThinkingAdaptive),
        thinking_token_budget=wanted.budget_tokens if isinstance(wanted, ThinkingEnabled) else None,
        reasoning_effort=asked.output_config.effort if asked.output_config else None,
    )


def turns_of(
    system: str | Sequence[TextBlock] | None, history: Sequence[InputMessage]
) -> list[Message]:
    """Return a conversation in OpenAI's form."""
    if not isinstance(system, str):
        system = "\n".join(block.text for block in system or ())
    turns = [Message("system", system)] if system else []
    for message in history:
        turns += _turns(message)
    return turns


def without_billing(
    system: str | list[TextBlock] | None,
) -> tuple[str | list[TextBlock] | None, str]:
    """Return a system prompt without the billing line that it may begin with, and that line. It is
    no part of the prompt: all that follows it would have to be computed with each request."""
    if isinstance(system, str) and system.startswith(BILLING):
        line, _, rest = system.partition("\n")
        return rest, line[:MAX_BILLING]
    if isinstance(system, list) and system and system[0].text.startswith(BILLING):
        return system[1:], system[0].text[:MAX_BILLING]
    return system, ""


def wanted_format(asked: CountRequest) -> OutputSchema | None:
    """Return the format of the whole answer, by either name. Raises `InvalidInput` for both."""
    new = asked.output_config.format if asked.output_config else None
    if new is not None and asked.output_format is not None:
        raise InvalidInput(
            "Bad input: output_format: cannot be combined with output_config.format",
            param="output_format",
        )
    return new or asked.output_format


def _response_format(asked: MessagesRequest) -> dict[str, Any] | None:
    if (wanted := wanted_format(asked)) is None:
        return None
    return {"type": "json_schema", "json_schema": {"schema": wanted.schema, "strict": True}}


def format_name(asked: CountRequest) -> str:
    """Return what the caller called the format."""
    return "output_config.format" if asked.output_format is None else "output_format"


def _function(tool: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a tool, whose schema keeps its name in errors. Anthropic's own, which it runs itself,
    are refused."""
    if tool.get("type") not in (None, "custom"):
        raise InvalidInput(
            f"Bad input: {place}.type: only tools of the caller's own are supported",
            param=f"{place}.type",
        )
    names = ("name", "description", "input_schema", "strict")
    return {name: tool[name] for name in names if tool.get(name) is not None}


def _tool_choice(choice: dict[str, Any] | None) -> str | dict[str, Any] | None:
    if not isinstance((choice or {}).get("disable_parallel_tool_use"), bool | None):
        raise InvalidInput(
            "Bad input: tool_choice.disable_parallel_tool_use: expected true or false",
            param="tool_choice.disable_parallel_tool_use",
        )
    match choice:
        case None:
            return None
        case {"type": "tool", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "auto" | "any" | "none" as kind}:
            return "required" if kind == "any" else str(kind)
        case _:
            raise InvalidInput(
                "Bad input: tool_choice: expected the type auto, any, none, or tool with a name",
                param="tool_choice",
            )


def _turns(message: InputMessage) -> list[Message]:
    """Return a message in OpenAI's form: results of tools are turns of their own, before the
    text."""
    if isinstance(message.content, str):
        return [Message(message.role, message.content)]
    results = [
        Message("tool", _result(block), tool_call_id=block.tool_use_id)
        for block in message.content
        if isinstance(block, ToolResultBlock)
    ]
    text = "\n".join(block.text for block in message.content if isinstance(block, TextBlock))
    calls = [_tool_call(block) for block in message.content if isinstance(block, ToolUseBlock)]
    thoughts = [block.thinking for block in message.content if isinstance(block, ThinkingBlock)]
    thought = "\n".join(filter(None, thoughts)) or None
    if text or calls or not results:
        turn = Message(message.role, text, tool_calls=calls or None, reasoning_content=thought)
        results.append(turn)
    return results


def _result(block: ToolResultBlock) -> str | list[TextPart] | None:
    """Return what a tool gave back; no template has another place for that it failed."""
    content = block.content
    if isinstance(content, list):
        parts = [TextPart(part.text) for part in content]
        return [TextPart(FAILED), *parts] if block.is_error else parts
    return FAILED + (content or "") if block.is_error else content


def _tool_call(block: ToolUseBlock) -> dict[str, Any]:
    arguments = encode(block.input).decode()
    function = {"name": block.name, "arguments": arguments}
    return {"id": block.id, "type": "function", "function": function}
