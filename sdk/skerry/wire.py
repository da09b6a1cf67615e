"""Request and response structs of every task: the words that all layers speak.

Requests tolerate what real clients send: unknown fields, and null for "not given". Ranges are part
of the types, so a value out of range is refused with its path. Responses omit nothing a client may
index, and never send `tool_calls: null`, which breaks some of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

# --- shared pieces -----------------------------------------------------------------------------

Role = str  # upstream leaves it free; the chat template decides


class TextPart(Struct, tag="text", tag_field="type"):
    """One piece of a message given as a list of parts."""

    text: str


class Message(Struct):
    """One turn of a conversation, in either dialect."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None  # what a tool call was before there were tools


class PromptTokensDetails(Struct):
    cached_tokens: int = 0


class Usage(Struct):
    """Token counts. `cached_tokens` are part of `prompt_tokens`, at most `prompt_tokens - 1`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class RunOptions(Struct, rename="camel"):
    """The `options` object that REST requests carry inside the body."""

    reject_if_busy: bool | None = None  # fail at once instead of waiting for a place
    queue_request: bool | None = None  # of a call through the binding


# --- text generation, Workers AI dialect ----------------------------------------------------------

MAX_OUTPUT_TOKENS = 1 << 20  # the context window is the real bound; this one keeps integers small

Temperature = Annotated[float, Meta(ge=0.0, le=5.0)]
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
MinP = Annotated[float, Meta(ge=0.0, le=1.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
RepetitionPenalty = Annotated[float, Meta(gt=0.0, le=2.0)]
MaxTokens = Annotated[int, Meta(ge=1, le=MAX_OUTPUT_TOKENS)]
StopText = Annotated[str, Meta(min_length=1, max_length=256)]
LogitBias = dict[str, Annotated[float, Meta(ge=-100.0, le=100.0)]]


class TextGenerationInput(Struct):
    """Body of `/ai/run/{model}` for text generation: exactly one of `prompt` and `messages`."""

    prompt: Annotated[str, Meta(min_length=1)] | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=2000)] | None = None
    raw: bool | None = None
    stream: bool | None = None
    max_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Meta(ge=1, le=1000)] | None = None
    min_p: MinP | None = None
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None
    logit_bias: Annotated[LogitBias, Meta(max_length=300)] | None = None
    lora: str | None = None
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


class ToolCall(Struct):
    """Native form: flat, arguments as an object, no id."""

    name: str
    arguments: Any  # an object


class TextGenerationOutput(Struct):
    """`result` of a plain native text generation."""

    response: Any  # text; in JSON mode the value itself
    tool_calls: list[ToolCall]
    usage: Usage


class TextGenerationChunk(Struct, omit_defaults=True):
    """One `data:` event of a native stream; the last one before `[DONE]` carries `usage`."""

    response: str
    tool_calls: list[ToolCall] | UnsetType = UNSET
    p: str | UnsetType = UNSET  # padding of random length, so that event sizes tell nothing
    usage: Usage | UnsetType = UNSET


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


# --- chat completions, OpenAI dialect ----------------------------------------------------------


class StreamOptions(Struct):
    include_usage: bool | None = None


class ChatCompletionRequest(Struct):
    """Body of `/ai/v1/chat/completions`."""

    model: str
    messages: Annotated[list[Message], Meta(min_length=1, max_length=2000)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=5.0)] | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1000)] | None = None
    min_p: MinP | None = None
    n: Annotated[int, Meta(ge=1, le=8)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: Annotated[LogitBias, Meta(max_length=300)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_OUTPUT_TOKENS)] | None = None
    ignore_eos: bool | None = None
    lora: str | None = None
    response_format: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    user: str | None = None
    options: RunOptions | None = None


class ChatRunInput(ChatCompletionRequest, kw_only=True):
    """Body of `/ai/run/{model}` for a chat model: the model is named elsewhere, and a lone
    `prompt` is a user's turn."""

    model: str = ""
    messages: Annotated[list[Message], Meta(max_length=2000)] = []
    prompt: Annotated[str, Meta(min_length=1)] | None = None


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(Struct):
    content: list[TokenLogprob]


FinishReason = Literal["stop", "length", "tool_calls", "function_call", "content_filter"]


class AssistantMessage(Struct):
    role: Literal["assistant"]
    content: str | None
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET
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
    usage: Usage


class Delta(Struct, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET
    function_call: dict[str, Any] | UnsetType = UNSET


class ChunkChoice(Struct):
    index: int
    delta: Delta
    finish_reason: FinishReason | None = None
    logprobs: ChoiceLogprobs | None = None


class ChatCompletionChunk(Struct):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int  # Unix seconds
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET


# --- text completions, OpenAI dialect ---------------------------------------------------------

MAX_PROMPT_ITEMS = 1 << 17  # token ids of a prompt; the context window is the real bound

PromptItem = str | int | list[int]  # a text, or a token id of one prompt, or a prompt in token ids


class CompletionRequest(Struct):
    """Body of `/ai/v1/completions`: one prompt or several, each as text or as token ids."""

    model: str
    prompt: str | Annotated[list[PromptItem], Meta(min_length=1, max_length=MAX_PROMPT_ITEMS)]
    suffix: str | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=MAX_OUTPUT_TOKENS)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1000)] | None = None
    min_p: MinP | None = None
    n: Annotated[int, Meta(ge=1, le=8)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=8)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: Annotated[LogitBias, Meta(max_length=300)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_OUTPUT_TOKENS)] | None = None
    ignore_eos: bool | None = None
    lora: str | None = None
    user: str | None = None


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
    usage: Usage | UnsetType | None = UNSET


# --- embeddings ----------------------------------------------------------------------------------

MAX_EMBEDDED_TEXTS = 100  # upstream's, of the Workers AI dialect
MAX_EMBEDDING_INPUTS = 2048  # OpenAI's
PoolingName = Literal["mean", "cls", "max"]
EmbeddedText = Annotated[str, Meta(min_length=1)]


class EmbeddingsInput(Struct):
    """Body of `/ai/run/{model}` for text embeddings."""

    text: (
        EmbeddedText
        | Annotated[list[EmbeddedText], Meta(min_length=1, max_length=MAX_EMBEDDED_TEXTS)]
    )
    pooling: PoolingName | None = None
    truncate_inputs: bool | None = None  # cut off what is too long, in place of an error
    options: RunOptions | None = None


class EmbeddingUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsOutput(Struct):
    """`result` of native text embeddings: one row of `data` for each text, in their order."""

    shape: list[int]  # texts, dimensions
    data: list[list[float]]
    pooling: PoolingName
    usage: EmbeddingUsage


class EmbeddingRequest(Struct):
    """Body of `/ai/v1/embeddings`. `input` is text, texts, token ids, or lists of them."""

    model: str
    input: str | Annotated[list[PromptItem], Meta(min_length=1, max_length=MAX_PROMPT_ITEMS)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=1 << 16)] | None = None
    truncate_inputs: bool | None = None  # ours: cut off what is too long, in place of an error
    user: str | None = None


class EmbeddingItem(Struct):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str  # base64 of f32, little-endian, where it was asked for


class EmbeddingList(Struct):
    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


# --- classification and ranking ------------------------------------------------------------------

MAX_CONTEXTS = 1000


class ClassificationInput(Struct):
    """Body of `/ai/run/{model}` for text classification."""

    text: EmbeddedText
    truncate_inputs: bool | None = None  # cut off what is too long, in place of an error
    options: RunOptions | None = None


class LabelScore(Struct):
    """One class of a text; `result` is a list of all, in the model's order."""

    label: str
    score: float  # 0 to 1


class RankingContext(Struct):
    text: EmbeddedText


class RankingInput(Struct):
    """Body of `/ai/run/{model}` for ranking: texts, to be sorted by how they answer `query`."""

    query: EmbeddedText
    contexts: Annotated[list[RankingContext], Meta(min_length=1, max_length=MAX_CONTEXTS)]
    top_k: Annotated[int, Meta(ge=1)] | None = None  # the best of them; all where it is absent
    truncate_inputs: bool | None = None  # cut off contexts that are too long
    options: RunOptions | None = None


class RankedContext(Struct):
    """One context; `id` is its index in the request."""

    id: int
    score: float  # 0 to 1


class RankingOutput(Struct):
    """`result` of a ranking, the best context first."""

    response: list[RankedContext]
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


class ModelList(Struct):
    object: Literal["list"]
    data: list[ModelCard]
