"""Texts to vectors, in both dialects: `/ai/run/{model}` and OpenAI's `/v1/embeddings`.

A text that is longer than the model takes is an error, unless `truncate_inputs` is set: a vector of
half a text is a wrong answer that is not noticed.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
from starlette.responses import Response

from skerry.errors import InvalidInput
from skerry.wire.encoders import (
    ContextVectorsOutput,
    EmbeddingsInput,
    EmbeddingsOutput,
    RankedContext,
    RankingOutput,
)
from skerry.wire.openai import MAX_EMBEDDING_INPUTS, EmbeddingItem, EmbeddingList, EmbeddingRequest
from skerry_edge.api.bodies import Body
from skerry_edge.api.edge_request import EdgeRequest, arrive, decoded, read_json
from skerry_edge.api.handler import caller_of, vectors
from skerry_edge.api.openai.completions import prompts_given
from skerry_edge.api.upstream_fields import EMBEDDINGS, NATIVE_TEXTS
from skerry_edge.envelopes import Dialect, JSONBytes, encode
from skerry_edge.generation.edge import Edge
from skerry_edge.generation.encoding import Form, Texts, floats, tokenised, within_lengths
from skerry_edge.text.encoder import EncoderText
from skerry_regions.models.catalog import Embedding, ModelSpec, Pooling

MAX_VALUES = 1 << 20  # numbers in one answer: what it may take of memory

_input_body = Body(EmbeddingsInput, NATIVE_TEXTS, corrects=True)
_request_body = Body(EmbeddingRequest, EMBEDDINGS)


async def run(
    request: EdgeRequest, spec: ModelSpec, text: EncoderText, body: bytes, dialect: Dialect
) -> Response:
    """Answer `/ai/run/{model}` of a model that embeds: `data` has a row for each text.

    With `contexts` in place of `text` it answers as Workers AI's bge-m3: with their vectors, or,
    where there is a query, with how near they are to it.
    """
    asked = await decoded(request, _input_body, body)
    caller = caller_of(request, asked.options)
    texts, names = _asked_texts(asked, spec)
    pooling = asked.pooling or _embedding(spec).pooling
    _check_count(texts, spec, names[-1].partition("[")[0])
    tokens = await tokenised(
        request.edge, spec, text, texts, names,
        tenant=caller.tenant, truncate=bool(asked.truncate_inputs),
    )  # fmt: skip
    embedded = await vectors(request, caller, spec, tokens, _form(spec, pooling))
    usage, shape = tokens.usage(), [len(embedded), _embedding(spec).dimensions]
    result: EmbeddingsOutput | ContextVectorsOutput | RankingOutput
    if asked.query is not None:
        result = RankingOutput(_nearest(*embedded), usage)
    else:
        rows = [floats(vector).tolist() for vector in embedded]
        if asked.contexts is None:
            result = EmbeddingsOutput(shape=shape, data=rows, pooling=pooling, usage=usage)
        else:
            result = ContextVectorsOutput(rows, shape, pooling, usage)
    return JSONBytes(dialect.wrap(encode(result)))


def _asked_texts(asked: EmbeddingsInput, spec: ModelSpec) -> tuple[list[str], list[str]]:
    """Return what is to be embedded, with the model's prompts, queries first, and where each was in
    the request."""
    prompts = _embedding(spec)
    forms = {
        "text": asked.text is not None,
        "contexts": asked.contexts is not None,
        "queries and documents": asked.queries is not None or asked.documents is not None,
    }
    sent = [name for name, is_there in forms.items() if is_there]
    if len(sent) > 1:
        raise InvalidInput(f"Bad input: {' and '.join(sent)} exclude each other", param=sent[0])
    if asked.query is not None and asked.contexts is None:
        raise InvalidInput("Bad input: missing required field contexts", param="contexts")
    if not sent:
        raise InvalidInput("Bad input: missing required field text", param="text")
    has_queries = asked.query is not None or asked.queries is not None
    if asked.instruction is not None and not (prompts.takes_instruction and has_queries):
        reason = "belongs to queries" if prompts.takes_instruction else f"{spec.id} takes none"
        raise InvalidInput(f"Bad input: instruction: {reason}", param="instruction")
    query = prompts.query_prefix(asked.instruction)
    given: list[tuple[str, str, str | list[str]]]
    if asked.text is not None:
        given = [(prompts.text_prompt, "text", asked.text)]
    elif asked.contexts is not None:
        contexts = [each.text for each in asked.contexts]
        given = [] if asked.query is None else [(query, "query", asked.query)]
        given.append((prompts.document_prompt, "contexts", contexts))
    else:
        given = [] if asked.queries is None else [(query, "queries", asked.queries)]
        if asked.documents is not None:
            given.append((prompts.document_prompt, "documents", asked.documents))
    texts, names = list[str](), list[str]()
    for prompt, name, each in given:
        own = [each] if isinstance(each, str) else each
        texts += _prompted(prompt, own)
        names += [name] if name == "query" else _names(own, name)
    if asked.contexts is not None:
        names = [name if name == "query" else f"{name}.text" for name in names]
    return texts, names


def _prompted(prompt: str, texts: Sequence[str]) -> list[str]:
    """Return texts behind a prompt; what is empty stays so, to be refused."""
    return [prompt + each if each else each for each in texts]


def _nearest(query: bytes, *contexts: bytes) -> list[RankedContext]:
    """Return contexts by the cosines of their angles to the query, the largest first."""
    rows = np.frombuffer(b"".join((query, *contexts)), "<f4").astype(np.float64)
    rows = rows.reshape(1 + len(contexts), -1)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    scores = enumerate((rows[1:] @ rows[0]).tolist())
    ranked = [RankedContext(index, score) for index, score in scores]
    return sorted(ranked, key=lambda context: -context.score)


async def create(request: EdgeRequest) -> Response:
    """Handle `POST …/v1/embeddings`."""
    edge, asked = request.edge, await read_json(request, _request_body)
    caller = caller_of(request)
    spec, text = edge.encoder(asked.model)
    await arrive(request, spec)
    embedding = _embedding(spec)
    if asked.dimensions not in (None, embedding.dimensions):
        raise InvalidInput(
            f"Bad input: dimensions: the model {spec.id} has {embedding.dimensions}, and cannot "
            "make shorter vectors",
            param="dimensions",
        )
    tokens = await _input_tokens(edge, spec, text, asked, caller.tenant)
    form = _form(spec, embedding.pooling)
    embedded = await vectors(request, caller, spec, tokens, form)
    in_base64 = asked.encoding_format == "base64"
    items = [
        EmbeddingItem("embedding", index, _base64(each) if in_base64 else floats(each).tolist())
        for index, each in enumerate(embedded)
    ]
    return JSONBytes(encode(EmbeddingList("list", items, asked.model, tokens.usage())))


# --- what was sent -------------------------------------------------------------------------------


async def _input_tokens(
    edge: Edge, spec: ModelSpec, text: EncoderText, asked: EmbeddingRequest, tenant: str
) -> Texts:
    """Read OpenAI's four forms of `input`. Token ids are taken as they are, special ones too."""
    given = prompts_given(asked.input, "input")
    _check_count(given, spec, "input")
    names = _names(given, "input")
    texts = [each for each in given if isinstance(each, str)]
    if texts:
        texts = _prompted(_embedding(spec).text_prompt, texts)
        truncate = bool(asked.truncate_inputs)
        return await tokenised(edge, spec, text, texts, names, tenant=tenant, truncate=truncate)
    ids = [each for each in given if isinstance(each, list)]
    for name, each in zip(names, ids, strict=True):
        if not each:
            raise InvalidInput(f"Bad input: {name} is empty", param="input")
        wrong = next((id_ for id_ in each if not 0 <= id_ < text.vocab_size), None)
        if wrong is not None:
            raise InvalidInput(
                f"Bad input: {name}: {wrong} is not a token id below {text.vocab_size}",
                param="input",
            )
    return Texts(within_lengths(ids, spec, text, names))


def _names(texts: Sequence[object], param: str) -> list[str]:
    return [f"{param}[{number}]" for number in range(len(texts))]


def _check_count(texts: Sequence[object], spec: ModelSpec, param: str) -> None:
    most = min(MAX_EMBEDDING_INPUTS, MAX_VALUES // _embedding(spec).dimensions)
    if len(texts) > most:
        raise InvalidInput(
            f"Bad input: {param}: {len(texts)} texts, at most {most} at once", param=param
        )


def _form(spec: ModelSpec, pooling: Pooling) -> Form:
    embedding = _embedding(spec)
    return Form(kind=pooling, width=embedding.dimensions, normalize=embedding.normalize)


def _embedding(spec: ModelSpec) -> Embedding:
    if spec.embedding is None:  # the catalog has both or neither
        raise TypeError(f"{spec.id} has no embedding")
    return spec.embedding


# --- what is answered ----------------------------------------------------------------------------


def _base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode()
