"""Anthropic's Messages, as its clients send and parse them.

Blocks that no text model here can read (images, documents, search results) are refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from skerry.wire import MAX_OUTPUT_TOKENS, MaxTokens, StopText, TopP

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class CacheControl(Struct):
    """The prompt stays cached up to the end of what has this."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


CacheMark = CacheControl | None | UnsetType


class TextBlock(Struct, tag="text", tag_field="type"):
    text: str
    cache_control: CacheMark = UNSET


class ThinkingBlock(Struct, tag="thinking", tag_field="type"):
    """What was thought before the answer; without a text where that is left out."""

    thinking: str = ""
    signature: str = ""


class RedactedThinkingBlock(Struct, tag="redacted_thinking", tag_field="type"):
    """A thought that is not shown: `data` is as a signature."""

    data: str = ""


Display = Literal["summarized", "omitted"]


class ThinkingEnabled(Struct, tag="enabled", tag_field="type"):
    budget_tokens: Annotated[int, Meta(ge=1024, le=MAX_OUTPUT_TOKENS)]
    display: Display | None = None


class ThinkingAdaptive(Struct, tag="adaptive", tag_field="type"):
    """The model thinks as long as it likes, or as `output_config.effort` says."""

    display: Display | None = None


class ThinkingDisabled(Struct, tag="disabled", tag_field="type"):
    pass


class ThinkingBetweenTools(Struct, tag="between_tools", tag_field="type"):
    pass


ThinkingConfig = ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | ThinkingBetweenTools


class ToolUseBlock(Struct, tag="tool_use", tag_field="type"):
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheMark = UNSET


class ResultText(Struct, tag="text", tag_field="type"):
    text: str


class ToolResultBlock(Struct, tag="tool_result", tag_field="type"):
    tool_use_id: str
    content: str | list[ResultText] | None = None
    is_error: bool | None = None
    cache_control: CacheMark = UNSET


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class InputMessage(Struct):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(max_length=2000)]


class OutputSchema(Struct):
    """The JSON Schema that the whole answer follows."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct):
    format: OutputSchema | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class CountRequest(Struct, kw_only=True):
    """Body of `/ai/v1/messages/count_tokens`, and the part of a `MessagesRequest` that is read by
    the model."""

    model: str
    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=2000)]
    system: str | list[TextBlock] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    thinking: ThinkingConfig | None = None
    output_format: OutputSchema | None = None  # as it was called before
    cache_control: CacheControl | None = None  # of the whole prompt


class MessagesMetadata(Struct):
    user_id: Annotated[str, Meta(max_length=1024)] | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """Body of `/ai/v1/messages`."""

    max_tokens: MaxTokens
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Meta(ge=0, le=MAX_OUTPUT_TOKENS)] | None = None
    stop_sequences: Annotated[list[StopText], Meta(max_length=16)] | None = None
    metadata: MessagesMetadata | None = None
    inference_geo: str | None = None  # a zone that it must not leave


class CacheCreation(Struct):
    """Tokens that were computed and stay cached, by time."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class ThinkingTokens(Struct):
    thinking_tokens: int


class MessagesUsage(Struct):
    """Unlike in the other dialects, `input_tokens` leaves out what was cached before, and what is
    now."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    inference_geo: str | UnsetType = UNSET  # of requests that say or are bound
    cache_creation: CacheCreation | UnsetType = UNSET  # of requests with `cache_control`
    cache_lapsed_input_tokens: int | UnsetType = UNSET
    """Tokens kept for earlier requests whose time ended for these: the account's share is full."""
    output_tokens_details: ThinkingTokens | UnsetType = UNSET  # of models that think


class MessagesAnswer(Struct):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage


class TokenCount(Struct):
    input_tokens: int
