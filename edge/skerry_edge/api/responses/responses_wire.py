"""OpenAI's Responses, as its clients send and parse them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from skerry.wire import CacheBreakpoint, MaxTokens, ReasoningEffort, Temperature, TokenLogprob, TopP
from skerry.wire.openai import CacheKey, CacheOptions, CacheRetention
from skerry_edge.api.batch.wire import ListPage

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class ContentPart(Struct):
    """A piece of a message; `type` is `input_text`, `output_text`, `text` or `refusal`."""

    type: str
    text: str | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class InputItem(Struct):
    """One item of an input list. Which fields count depends on `type`, by default `message`."""

    type: str = "message"
    id: Annotated[str, Meta(max_length=128)] | None = None
    role: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    content: str | list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ContentPart] | None = None
    summary: list[ContentPart] | None = None
    encrypted_content: str | None = None


class TextFormat(Struct, omit_defaults=True):
    """`text.format`: plain text, or JSON. OpenAI's schema lies beside its name here."""

    type: str
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(Struct):
    format: TextFormat | None = None


Summary = Literal["auto", "concise", "detailed"]


class ReasoningOptions(Struct):
    """How much is thought before the answer, and whether it is sent as a summary too."""

    effort: ReasoningEffort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None  # the older name


class ReasoningEcho(Struct):
    """What of it an answer repeats."""

    effort: ReasoningEffort | None
    summary: Summary | None


class InputTokensRequest(Struct, kw_only=True):
    """Body of `/ai/v1/responses/input_tokens`, and the part of a `ResponsesRequest` that is read by
    the model."""

    model: str
    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=2000)]
    instructions: str | None = None
    previous_response_id: Annotated[str, Meta(max_length=128)] | None = None
    text: TextOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None


class ResponsesRequest(InputTokensRequest, kw_only=True):
    """Body of `/ai/v1/responses`."""

    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None  # not OpenAI's
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: CacheKey | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: CacheRetention | None = None


class CreateEvent(ResponsesRequest, kw_only=True):
    """The event `response.create` of a WebSocket: the body of a request, and what only that has."""

    type: Literal["response.create"]
    input: str | Annotated[list[InputItem], Meta(max_length=2000)] = []
    stream_id: str | None = None
    generate: bool | None = None  # false: only prepare what goes on from it


class OutputText(Struct, tag="output_text", tag_field="type"):
    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[TokenLogprob] = []


class OutputMessage(Struct, tag="message", tag_field="type"):
    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class SummaryText(Struct, tag="summary_text", tag_field="type"):
    text: str


class ReasoningText(Struct, tag="reasoning_text", tag_field="type"):
    text: str


class ReasoningOutput(Struct, tag="reasoning", tag_field="type"):
    """What was thought before the answer."""

    id: str
    summary: list[SummaryText]
    content: list[ReasoningText]
    encrypted_content: str | None
    status: Status


class FunctionCall(Struct, tag="function_call", tag_field="type"):
    id: str
    call_id: str
    name: str
    arguments: str  # JSON
    status: Status


class InputTokensDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int  # computed, and kept for a time
    cache_write_tokens_details: dict[str, int] | UnsetType = UNSET  # by time
    cache_lapsed_tokens: int | UnsetType = UNSET  # of earlier requests, whose time ended for these


class OutputTokensDetails(Struct):
    reasoning_tokens: int


class ResponsesUsage(Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(Struct):
    reason: Literal["max_output_tokens"]


class ResponseObject(Struct, kw_only=True):
    """The answer, and what each stream starts and ends with."""

    id: str
    object: Literal["response"] = "response"
    created_at: int  # Unix seconds
    status: Status
    background: bool = False
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage | ReasoningOutput | FunctionCall]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: ReasoningEcho
    store: bool
    temperature: float
    text: TextOptions
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponsesUsage | None = None


class DeletedResponse(Struct):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputText(Struct, tag="input_text", tag_field="type"):
    text: str


class ListedMessage(Struct, tag="message", tag_field="type"):
    """A message of whatever role, as it is listed."""

    id: str
    role: str
    content: Sequence[InputText | OutputText]
    status: Status


class FunctionCallOutput(Struct, tag="function_call_output", tag_field="type"):
    """What a tool gave, as it is listed."""

    id: str
    call_id: str
    output: str
    status: Status


class InputItemList(ListPage[ListedMessage | ReasoningOutput | FunctionCall | FunctionCallOutput]):
    """What a response was made of, in pages."""


class InputTokens(Struct):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"
