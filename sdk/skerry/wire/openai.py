"""Request and response structs of OpenAI's dialect; `skerry.wire` has what they share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from skerry.wire import (
    MAX_OUTPUT_TOKENS,
    ApiMessage,
    FinishReason,
    MaxTokens,
    Message,
    SamplingFields,
    TextFields,
    TokenLogprob,
    TokenUsage,
)
from skerry.wire.encoders import EmbeddingUsage

MAX_CHOICES = 128  # of a request: OpenAI's

# --- chat completions ---------------------------------------------------------------------------


class StreamOptions(Struct):
    include_usage: bool | None = None


class CacheOptions(Struct):
    """Which beginnings of a prompt stay cached: those at its breakpoints, and unless `mode` is
    explicit the whole prompt; for `ttl` at least."""

    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: Literal["30m", "12h"] = "30m"


CacheRetention = Literal["in_memory", "in-memory", "24h"]  # how `CacheOptions.ttl` was said before
CacheKey = Annotated[str, Meta(max_length=1024)]  # of requests with a common beginning


class ChatCompletionRequest(TextFields, kw_only=True):
    """Body of `/ai/v1/chat/completions`."""

    model: str
    messages: Annotated[list[Message], Meta(min_length=1, max_length=2000)]
    stream_options: StreamOptions | None = None
    max_completion_tokens: MaxTokens | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_OUTPUT_TOKENS)] | None = None
    prompt_cache_key: CacheKey | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: CacheRetention | None = None


class ChatRunInput(ChatCompletionRequest, kw_only=True):
    """Body of `/ai/run/{model}` for a chat model: the model is named elsewhere, and a lone
    `prompt` is a user's turn."""

    model: str = ""
    messages: Annotated[list[Message], Meta(max_length=2000)] = field(default_factory=list)
    prompt: Annotated[str, Meta(min_length=1)] | None = None


class ChoiceLogprobs(Struct):
    content: list[TokenLogprob]


class AssistantMessage(Struct):
    role: Literal["assistant"]
    content: str | None
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET  # of models that reason, by both of its names
    reasoning: str | UnsetType = UNSET
    function_call: dict[str, Any] | UnsetType = UNSET  # to requests with `functions`
    refusal: str | None = None


class ChatChoice(Struct):
    index: int
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: ChoiceLogprobs | None = None


class ChatCompletion(Struct):
    id: str
    object: Literal["chat.completion"]
    created: int  # Unix seconds
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage


# --- text completions ---------------------------------------------------------------------------

MAX_PROMPT_ITEMS = 1 << 17  # token ids of a prompt; the context window is the real bound

PromptItem = str | int | list[int]  # a text, or a token id of one prompt, or a prompt in token ids


class CompletionRequest(SamplingFields, kw_only=True):
    """Body of `/ai/v1/completions`: one prompt or several, each as text or as token ids."""

    model: str
    prompt: str | Annotated[list[PromptItem], Meta(min_length=1, max_length=MAX_PROMPT_ITEMS)]
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=MAX_OUTPUT_TOKENS)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_OUTPUT_TOKENS)] | None = None


class CompletionLogprobs(Struct):
    """One entry per token in each list; with `echo`, the first token of all has no logprob."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]  # where the token begins in the choice's text, in characters


class CompletionChoice(Struct):
    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: CompletionLogprobs | None


class Completion(Struct):
    """The answer, and each chunk of a streamed one."""

    id: str
    object: Literal["text_completion"]
    created: int  # Unix seconds
    model: str
    choices: list[CompletionChoice]
    usage: TokenUsage | UnsetType | None = UNSET


MAX_EMBEDDING_INPUTS = 2048  # OpenAI's


class EmbeddingRequest(Struct):
    """Body of `/ai/v1/embeddings`. `input` is text, texts, token ids, or lists of them."""

    model: str
    input: str | Annotated[list[PromptItem], Meta(min_length=1, max_length=MAX_PROMPT_ITEMS)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=1 << 16)] | None = None
    truncate_inputs: bool | None = None  # ours: cut off what is too long, in place of an error


class EmbeddingItem(Struct):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str  # base64 of f32, little-endian, where it was requested


class EmbeddingList(Struct):
    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


class OpenAIErrorDetail(Struct):
    message: str
    type: str
    code: str
    param: str | None


class OpenAIError(Struct):
    """Error body of `/ai/v1`: OpenAI's form and the envelope's `errors`, for both readers."""

    error: OpenAIErrorDetail
    errors: list[ApiMessage]
    success: bool = False


class ModelCard(Struct):
    id: str
    object: Literal["model"]
    created: int  # Unix seconds
    owned_by: str
    reasoning: bool = False  # whether it thinks before it answers


class ModelList(Struct):
    object: Literal["list"]
    data: list[ModelCard]
