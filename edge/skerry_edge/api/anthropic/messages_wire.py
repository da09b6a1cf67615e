"""Anthropic's Messages, as its clients send and parse them.

Blocks that no text model here can read (images, documents, search results) are refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from skerry.wire import MAX_OUTPUT_TOKENS, MaxTokens, StopText, TextPart, TopP

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(Struct, tag="text", tag_field="type"):
    text: str


class ThinkingBlock(Struct, tag="thinking", tag_field="type"):
    """What an earlier answer thought; not shown to the model again."""

    thinking: str = ""


class RedactedThinkingBlock(Struct, tag="redacted_thinking", tag_field="type"):
    data: str = ""


class ToolUseBlock(Struct, tag="tool_use", tag_field="type"):
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(Struct, tag="tool_result", tag_field="type"):
    tool_use_id: str
    content: str | list[TextPart] | None = None
    is_error: bool | None = None


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class InputMessage(Struct):
    role: Literal["user", "assistant"]
    content: str | Annotated[list[Block], Meta(max_length=2000)]


class OutputSchema(Struct):
    """The JSON Schema that the whole answer follows."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct):
    format: OutputSchema | None = None


class CountRequest(Struct, kw_only=True):
    """Body of `/ai/v1/messages/count_tokens`, and the part of a `MessagesRequest` that is read by
    the model."""

    model: str
    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=2000)]
    system: str | list[TextPart] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    output_format: OutputSchema | None = None  # as it was called before


class MessagesRequest(CountRequest, kw_only=True):
    """Body of `/ai/v1/messages`."""

    max_tokens: MaxTokens
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Meta(ge=0, le=MAX_OUTPUT_TOKENS)] | None = None
    stop_sequences: Annotated[list[StopText], Meta(max_length=16)] | None = None


class MessagesUsage(Struct):
    """Unlike in the other dialects, `input_tokens` leaves the cached ones out."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessagesAnswer(Struct):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ToolUseBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage


class TokenCount(Struct):
    input_tokens: int
