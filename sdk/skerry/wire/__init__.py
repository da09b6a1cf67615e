"""Request and response structs of every task in Workers AI's dialect, and what dialects share.

Requests tolerate what real clients send: unknown fields, and null for "not given". Ranges are part
of the types, so a value out of range is refused with its path. Responses omit nothing a client may
index, and never send `tool_calls: null`, which breaks some of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

# --- shared pieces -----------------------------------------------------------------------------


class CacheBreakpoint(Struct):  # the end of a prompt's beginning that is to stay cached
    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class TextPart(Struct, tag="text", tag_field="type", omit_defaults=True):
    """One piece of a message given as a list of parts."""

    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class Message(Struct):
    """One turn of a conversation, in either dialect."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]  # the chat template decides
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None  # what a tool call was before there were tools
    reasoning_content: str | None = None  # what the assistant thought before it
    reasoning: str | None = None  # the same, by two other names; the first one given counts
    reasoning_details: list[dict[str, Any]] | None = None


class PromptTokensDetails(Struct):
    cached_tokens: int = 0
    cache_write_tokens: int | UnsetType = UNSET  # computed, and kept for a time
    cache_write_tokens_details: dict[str, int] | UnsetType = UNSET  # by it: `ttl_5m_tokens`, …
    cache_lapsed_tokens: int | UnsetType = UNSET  # kept before; their time ended for these


class CompletionTokensDetails(Struct):
    reasoning_tokens: int = 0


class TokenUsage(Struct):
    """Token counts. `cached_tokens` are part of `prompt_tokens`, at most `prompt_tokens - 1`;
    `reasoning_tokens` of `completion_tokens`, sent of models that reason."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class GatewayRetries(Struct, rename="camel"):
    """How often a gateway tries again, for upstream's; this platform has its own ways."""

    max_attempts: int | None = None
    retry_delay_ms: int | None = None
    backoff: str | None = None


class GatewayOptions(Struct, rename="camel"):
    """`options.gateway`: what AI Gateway does with a request, as its `cf-aig-…` headers say too."""

    id: Annotated[str, Meta(max_length=128)] | None = None
    cache_key: str | None = None
    cache_ttl: int | None = None  # seconds
    skip_cache: bool | None = None
    request_timeout_ms: int | None = None  # to the first part of the answer
    metadata: dict[str, str | int | float | bool | None] | None = None
    event_id: str | None = None
    collect_log: bool | None = None
    retries: GatewayRetries | None = None


class RunOptions(Struct, rename="camel"):
    """The `options` object that REST requests carry inside the body."""

    reject_if_busy: bool | None = None  # fail at once instead of waiting for a place
    queue_request: bool | None = None  # of a call through the binding
    strict: bool | None = None  # refuse fields that would be ignored
    gateway: GatewayOptions | None = None
    return_raw_response: bool | None = None  # what a Worker's runtime does with the answer


# --- text generation, Workers AI dialect ----------------------------------------------------------

MAX_OUTPUT_TOKENS = 1 << 20  # the context window is the real bound; this one keeps integers small

Temperature = Annotated[float, Meta(ge=0.0, le=5.0)]
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
MinP = Annotated[float, Meta(ge=0.0, le=1.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
RepetitionPenalty = Annotated[float, Meta(gt=0.0, le=2.0)]
MaxTokens = Annotated[int, Meta(ge=1, le=MAX_OUTPUT_TOKENS)]
StopText = Annotated[str, Meta(min_length=1, max_length=256)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
LogitBias = dict[str, Annotated[float, Meta(ge=-100.0, le=100.0)]]


THINKING = ("reasoning_effort", "enable_thinking", "thinking_token_budget", "chat_template_kwargs")
"""Fields that say how much is thought before the answer."""


class SamplingFields(Struct, kw_only=True):
    """How tokens are drawn, and where an answer ends, by the names of OpenAI and of open models'
    servers."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1000)] | None = None
    min_p: MinP | None = None
    typical_p: TopP | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None
    logit_bias: Annotated[LogitBias, Meta(max_length=300)] | None = None
    ignore_eos: bool | None = None
    lora: str | None = None


class TextFields(SamplingFields, kw_only=True):
    """What requests of both dialects say of a conversation's answer."""

    stream: bool | None = None
    max_tokens: MaxTokens | None = None
    reasoning_effort: ReasoningEffort | None = None
    enable_thinking: bool | None = None
    thinking_token_budget: Annotated[int, Meta(ge=0, le=MAX_OUTPUT_TOKENS)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=64)] | None = None
    response_format: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    tools: list[dict[str, Any]] | None = None
    functions: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    function_call: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    options: RunOptions | None = None


class TextGenerationInput(TextFields, kw_only=True):
    """Body of `/ai/run/{model}` for text generation: exactly one of `prompt` and `messages`."""

    prompt: Annotated[str, Meta(min_length=1)] | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=2000)] | None = None
    raw: bool | None = None
    top_k: Annotated[int, Meta(ge=1, le=1000)] | None = None
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None


class NativeToolCall(Struct):
    """Native form: flat, arguments as an object, no id."""

    name: str
    arguments: Any  # an object


class TextGenerationOutput(Struct):
    """`result` of a plain native text generation."""

    response: Any  # text; in JSON mode the value itself
    tool_calls: list[NativeToolCall]
    usage: TokenUsage
    reasoning_content: str | UnsetType = UNSET  # what was thought before it


class TextGenerationChunk(Struct, omit_defaults=True):
    """One `data:` event of a native stream; the last one before `[DONE]` carries `usage`."""

    response: str
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[NativeToolCall] | UnsetType = UNSET
    p: str | UnsetType = UNSET  # padding of random length, so that event sizes reveal nothing
    usage: TokenUsage | UnsetType = UNSET


# --- envelope ----------------------------------------------------------------------------------


class ApiMessage(Struct):
    """One entry of an envelope's `errors` or `messages`."""

    message: str
    code: int


class ErrorEnvelope(Struct):
    """The failure envelope, keys in upstream's order."""

    errors: list[ApiMessage]
    success: bool
    result: Any
    messages: list[ApiMessage]


class BindingError(Struct):
    """The failure of a call through a Worker's `env.AI`."""

    internalCode: int
    message: str
    name: str
    description: str


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


FinishReason = Literal["stop", "length", "tool_calls", "function_call", "content_filter"]
