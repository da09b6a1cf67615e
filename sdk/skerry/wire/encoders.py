"""Request and response structs of the tasks of encoders, in Workers AI's dialect: embeddings,
classification, ranking."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from skerry.wire import RunOptions

# --- embeddings ----------------------------------------------------------------------------------

MAX_EMBEDDED_TEXTS = 100  # upstream's, of the Workers AI dialect
PoolingName = Literal["mean", "cls", "max", "last"]
EmbeddedText = Annotated[str, Meta(min_length=1)]
EmbeddedTexts = (
    EmbeddedText | Annotated[list[EmbeddedText], Meta(min_length=1, max_length=MAX_EMBEDDED_TEXTS)]
)


class RankingContext(Struct):
    text: EmbeddedText


class EmbeddingsInput(Struct):
    """Body of `/ai/run/{model}` for text embeddings: `text`; `queries` and `documents`, each with
    the model's prompt before it; or `contexts`, perhaps with the `query` that they are compared
    with."""

    text: EmbeddedTexts | None = None
    queries: EmbeddedTexts | None = None
    documents: EmbeddedTexts | None = None
    instruction: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None  # of queries
    query: EmbeddedText | None = None
    contexts: (
        Annotated[list[RankingContext], Meta(min_length=1, max_length=MAX_EMBEDDED_TEXTS)] | None
    ) = None
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
    score: float  # 0 to 1; of a model that embeds the cosine of its angle to the query


class RankingOutput(Struct):
    """`result` of a ranking, the best context first."""

    response: list[RankedContext]
    usage: EmbeddingUsage


class ContextVectorsOutput(Struct):
    """`result` of contexts without a query: a row for each, in their order."""

    response: list[list[float]]
    shape: list[int]  # contexts, dimensions
    pooling: PoolingName
    usage: EmbeddingUsage
