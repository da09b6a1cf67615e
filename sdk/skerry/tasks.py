"""What each task takes and what it gives, as types.

Inputs are plain dicts, which type checkers hold against the `…Inputs` here. A bare `{"text": "…"}`
counts as a text to embed; `ClassificationInputs(text="…")` says that it is to be classified.
Results are dicts too, and keep the keys that the platform sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, Required, TypedDict

from skerry._results import Result

Pooling = Literal["mean", "cls", "max", "last"]


class TextGenerationInputs(TypedDict, total=False):
    """A `prompt` or `messages`, and how the text is made, by native models or by chat models.
    `stream` is an argument of `run`."""

    prompt: str
    messages: Sequence[Mapping[str, Any]]
    raw: bool
    max_tokens: int
    max_completion_tokens: int
    min_tokens: int
    ignore_eos: bool
    n: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    typical_p: float
    seed: int
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    stop: str | Sequence[str]
    logit_bias: Mapping[str, float]
    logprobs: bool
    top_logprobs: int
    lora: str
    response_format: Mapping[str, Any]
    guided_json: Mapping[str, Any] | str
    guided_regex: str
    guided_choice: Sequence[str]
    guided_grammar: str
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    functions: Sequence[Mapping[str, Any]]
    function_call: str | Mapping[str, Any]
    stream_options: Mapping[str, Any]
    prompt_cache_key: str
    prompt_cache_options: Mapping[str, str]
    prompt_cache_retention: str
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
    enable_thinking: bool
    thinking_token_budget: int
    chat_template_kwargs: Mapping[str, Any]
    options: Mapping[str, Any]


class StreamedInputs(TextGenerationInputs):
    """The same with `stream` among them: the result is a stream."""

    stream: Required[Literal[True]]


class EmbeddingInputs(TypedDict, total=False):
    """Texts to turn into one vector each."""

    text: Required[str | Sequence[str]]
    pooling: Pooling
    truncate_inputs: bool
    options: Mapping[str, Any]


class QueryInputs(TypedDict):
    """Queries to turn into one vector each behind the model's prompt, and perhaps the documents
    that they search. `instruction` says what the queries are for."""

    queries: str | Sequence[str]
    documents: NotRequired[str | Sequence[str]]
    instruction: NotRequired[str]
    pooling: NotRequired[Pooling]
    truncate_inputs: NotRequired[bool]
    options: NotRequired[Mapping[str, Any]]


class DocumentInputs(TypedDict):
    """Documents to turn into one vector each behind the model's prompt."""

    documents: str | Sequence[str]
    pooling: NotRequired[Pooling]
    truncate_inputs: NotRequired[bool]
    options: NotRequired[Mapping[str, Any]]


class Context(TypedDict):
    """A text that may answer a query."""

    text: str


class RankingInputs(TypedDict):
    """Texts to sort by how well they answer `query`; `top_k` keeps the best."""

    query: str
    contexts: Sequence[Context]
    instruction: NotRequired[str]
    top_k: NotRequired[int]
    pooling: NotRequired[Pooling]
    truncate_inputs: NotRequired[bool]
    options: NotRequired[Mapping[str, Any]]


class ContextInputs(TypedDict):
    """Texts alone, of which a model that embeds gives the vectors."""

    contexts: Sequence[Context]
    pooling: NotRequired[Pooling]
    truncate_inputs: NotRequired[bool]
    options: NotRequired[Mapping[str, Any]]


class ClassificationInputs(TypedDict):
    """A text to put into one of the model's classes."""

    text: str
    truncate_inputs: NotRequired[bool]
    options: NotRequired[Mapping[str, Any]]


KnownInputs = (
    TextGenerationInputs
    | RankingInputs
    | EmbeddingInputs
    | QueryInputs
    | DocumentInputs
    | ContextInputs
    | ClassificationInputs
)


class Usage(Result):
    """What a call cost, in tokens."""

    __slots__ = ()

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ToolCall(Result):
    """A function that the model requests; `arguments` are an object."""

    __slots__ = ()

    name: str
    arguments: dict[str, Any]


class TextGeneration(Result):
    """Text, with the same attributes for native models and chat models."""

    __slots__ = ()

    @property
    def response(self) -> Any:
        """Return the text; from a native model in JSON mode, the value itself."""
        if "response" in self:
            return self["response"]
        return self._message()["content"]

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Return the calls that the model requests, their arguments parsed; those that are
        whole."""
        if "choices" not in self:
            return [ToolCall(call) for call in self.get("tool_calls") or ()]
        whole: list[ToolCall] = []
        for call in self._message().get("tool_calls") or ():
            try:
                arguments = json.loads(call["function"]["arguments"])
            except ValueError:  # `max_tokens` cut it
                break
            whole.append(ToolCall(name=call["function"]["name"], arguments=arguments))
        return whole

    @property
    def usage(self) -> Usage:
        return Usage(self["usage"])

    def _message(self) -> Result:
        message: Result = self["choices"][0]["message"]
        return message


class Embeddings(Result):
    """One vector per text, in their order; `numpy()` makes an array of them."""

    __slots__ = ()

    shape: list[int]  # texts, dimensions
    data: list[list[float]]
    pooling: Pooling


class Ranked(Result):
    """One context's place; `id` is its index among the contexts that were sent."""

    __slots__ = ()

    id: int
    score: float  # 0 to 1


class Ranking(Result):
    """Contexts, the best first."""

    __slots__ = ()

    @property
    def response(self) -> list[Ranked]:
        return [Ranked(each) for each in self["response"]]


class Label(Result):
    """One class of a text; the scores of all classes add up to 1."""

    __slots__ = ()

    label: str
    score: float


class Model(Result):
    """A model as the catalog lists it."""

    __slots__ = ()

    name: str
    description: str
    task: Result
    properties: list[Result]


class ModelSchema(Result):
    """JSON Schemas of what a model takes and gives."""

    __slots__ = ()

    input: dict[str, Any]
    output: dict[str, Any]


def typed(content: Any) -> Any:
    """Return a reply's content as the result of its task, recognised by its shape; else as it
    is."""
    match content:
        case {"shape": list(), "data": list()}:
            return Embeddings(content)
        case {"response": [{"id": int(), "score": float() | int()}, *_]} if (
            "tool_calls" not in content
        ):
            return Ranking(content)
        case {"object": "chat.completion"} | {"response": _}:
            return TextGeneration(content)
        case [{"label": str(), "score": float() | int()}, *_]:
            return [Label(each) for each in content]
        case _:
            return content
