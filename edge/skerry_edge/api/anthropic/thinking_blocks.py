"""Thinking as Anthropic has it: what a request may say of it, and blocks of earlier turns.

A block's `signature` is the thought, sealed: blocks come back unchanged or are refused, and one
without its text is as good as one with it. What another model thought is not shown to this one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from skerry.errors import InvalidInput, TaskNotSupported
from skerry_edge.api.anthropic.messages_wire import (
    InputMessage,
    MessagesRequest,
    RedactedThinkingBlock,
    ThinkingAdaptive,
    ThinkingBetweenTools,
    ThinkingBlock,
    ThinkingEnabled,
    ToolUseBlock,
)
from skerry_edge.api.thought_seal import ThoughtSeal


def open_blocks(messages: Sequence[InputMessage], seal: ThoughtSeal | None) -> None:
    """Put what was thought into the blocks of earlier turns, and nothing where it is not for this
    model; without a seal it has no thoughts. Raises `InvalidInput` for a block that is not as it
    was returned."""
    for number, message in enumerate(messages):
        if isinstance(message.content, str):
            continue
        for place, block in enumerate(message.content):
            if isinstance(block, ThinkingBlock | RedactedThinkingBlock):
                where = f"messages.{number}.content.{place}"
                thought = "" if seal is None else _opened(block, where, seal)
                message.content[place] = ThinkingBlock(thought)


def _opened(block: ThinkingBlock | RedactedThinkingBlock, place: str, seal: ThoughtSeal) -> str:
    shown = ""
    if isinstance(block, ThinkingBlock):
        sealed, kind, shown = block.signature, "`signature` in `thinking` block", block.thinking
    else:
        sealed, kind = block.data, "`data` in `redacted_thinking` block"
    opened = seal.open(sealed)
    if opened is None:
        raise InvalidInput(f"{place}: Invalid {kind}", param=place)
    thought, is_own = opened
    if shown not in ("", thought):
        raise InvalidInput(
            f"{place}: `thinking` or `redacted_thinking` blocks cannot be modified. They must "
            "remain as they were in the original response.",
            param=place,
        )
    return thought if is_own else ""


def ignored_names(asked: MessagesRequest, ignored: Collection[str]) -> tuple[str, ...]:
    """Return Anthropic's names of fields that change nothing, as far as a request has them."""
    names = []
    effort = asked.output_config.effort if asked.output_config else None
    is_off = not isinstance(asked.thinking, ThinkingEnabled | ThinkingAdaptive)
    if effort is not None and (is_off or "reasoning_effort" in ignored):
        names.append("output_config.effort")
    if asked.thinking is not None and not {"enable_thinking", "thinking_token_budget"}.isdisjoint(
        ignored
    ):
        names.append("thinking")
    return tuple(names)


def check_thinking(asked: MessagesRequest) -> None:
    """Raise `InvalidInput` for what does not go with a thought before the answer, and
    `TaskNotSupported` for a kind of it."""
    wanted = asked.thinking
    if isinstance(wanted, ThinkingBetweenTools):
        raise TaskNotSupported(
            "thinking.type: 'between_tools' is not supported: enabled, adaptive or disabled",
            param="thinking.type",
        )
    if not isinstance(wanted, ThinkingEnabled):
        return
    if wanted.budget_tokens >= asked.max_tokens:
        _refuse("thinking.budget_tokens", "`max_tokens` must be greater than this")
    if (asked.tool_choice or {}).get("type") in ("any", "tool"):
        _refuse("tool_choice", "thinking may not be enabled when tool_choice forces tool use")
    if asked.temperature not in (None, 1.0):
        _refuse("temperature", "may only be set to 1 when thinking is enabled")
    if asked.top_k is not None:
        _refuse("top_k", "may not be set when thinking is enabled")
    if asked.messages[-1].role == "assistant":
        _refuse("messages", "when thinking is enabled the last one must not be the assistant's")
    _check_last_turn(asked)


def _check_last_turn(asked: MessagesRequest) -> None:
    """Raise `InvalidInput` where a turn that called tools came without its thought."""
    turns = [n for n, each in enumerate(asked.messages) if each.role == "assistant"]
    content = asked.messages[turns[-1]].content if turns else ""
    if isinstance(content, str) or not any(isinstance(each, ToolUseBlock) for each in content):
        return
    if not isinstance(content[0], ThinkingBlock | RedactedThinkingBlock):
        kind = content[0].__struct_config__.tag
        place = f"messages.{turns[-1]}.content.0.type"
        raise InvalidInput(
            f"{place}: Expected `thinking` or `redacted_thinking`, but found `{kind}`. When "
            "`thinking` is enabled, a final `assistant` message must start with a thinking block.",
            param=place,
        )


def _refuse(name: str, problem: str) -> None:
    raise InvalidInput(f"Bad input: {name}: {problem}", param=name)
