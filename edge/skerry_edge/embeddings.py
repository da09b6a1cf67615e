"""Texts to vectors, in both dialects: `/ai/run/{model}` and OpenAI's `/v1/embeddings`.

A text that is longer than the model takes is an error, unless `truncate_inputs` is set: a vector of
half a text is a wrong answer that nobody sees.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from array import array
from collections.abc import Iterator, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from skerry.errors import InvalidInput, PromptTooLong, SkerryError
from skerry.wire import (
    MAX_EMBEDDING_INPUTS,
    EmbeddingItem,
    EmbeddingList,
    EmbeddingRequest,
    EmbeddingsInput,
    EmbeddingsOutput,
    EmbeddingUsage,
)
from skerry_edge.bodies import decode, read_body
from skerry_edge.completions import prompts_given
from skerry_edge.dialects import Dialect, JSONBytes, encode
from skerry_edge.edge import Edge
from skerry_edge.encoder_text import EncoderText
from skerry_edge.generation import Call
from skerry_edge.prompts import INLINE_CHARS
from skerry_edge.routing import attended, authorise, call_of, edge_of
from skerry_regions.catalog import Embedding, ModelSpec, Pooling
from skerry_regions.protocol import MAX_TEXTS, MAX_VECTOR_BYTES, Embed

FLOAT_BYTES = 4
MAX_VALUES = 1 << 20  # numbers in one answer: what it may take of memory

_input_decoder = msgspec.json.Decoder(EmbeddingsInput)
_request_decoder = msgspec.json.Decoder(EmbeddingRequest)


async def run(
    request: Request,
    edge: Edge,
    spec: ModelSpec,
    text: EncoderText,
    body: bytes,
    dialect: Dialect,
) -> Response:
    """`/ai/run/{model}` of a model that embeds: `data` has a row for each text."""
    asked = decode(_input_decoder, body)
    call = call_of(request, authorise(request, "run"))
    texts = [asked.text] if isinstance(asked.text, str) else asked.text
    embedding = _embedding(spec)
    pooling = asked.pooling or embedding.pooling
    ids = await _tokenised(edge, spec, text, texts, "text", truncate=bool(asked.truncate_inputs))
    vectors = await attended(request, call, embed(edge, spec, ids, pooling, call))
    result = EmbeddingsOutput(
        shape=[len(vectors), embedding.dimensions],
        data=[_floats(vector) for vector in vectors],
        pooling=pooling,
        usage=_usage(ids),
    )
    return JSONBytes(dialect.wrap(encode(result)))


async def create(request: Request) -> Response:
    """`POST …/v1/embeddings`."""
    edge = edge_of(request)
    principal = authorise(request, "run")
    asked = decode(_request_decoder, await read_body(request, edge.limits.body_bytes))
    call = call_of(request, principal)
    spec, text = edge.encoder(asked.model)
    embedding = _embedding(spec)
    if asked.dimensions not in (None, embedding.dimensions):
        raise InvalidInput(
            f"Bad input: dimensions: the model {spec.id} has {embedding.dimensions}, and cannot "
            "make shorter vectors",
            param="dimensions",
        )
    ids = await _input_ids(edge, spec, text, asked)
    vectors = await attended(request, call, embed(edge, spec, ids, embedding.pooling, call))
    form = _base64 if asked.encoding_format == "base64" else _floats
    items = [
        EmbeddingItem("embedding", index, form(vector)) for index, vector in enumerate(vectors)
    ]
    return JSONBytes(encode(EmbeddingList("list", items, asked.model, _usage(ids))))


async def embed(
    edge: Edge, spec: ModelSpec, ids: list[list[int]], pooling: Pooling, call: Call
) -> list[bytes]:
    """One vector per text, in order: f32[dimensions], little-endian.

    Raises what `RegionClient.embed` raises, or Overloaded by the edge's own bound.
    """
    edge.check_room()
    edge.metrics.in_progress += 1
    try:
        vectors = [
            vector
            for batch in _batches(ids, _embedding(spec).dimensions)
            for vector in await _embed_batch(edge, spec, batch, pooling, call)
        ]
    except SkerryError as error:
        edge.metrics.generations_failed.add(1, spec.id, error.code)
        raise
    finally:
        edge.metrics.in_progress -= 1
    edge.metrics.prompt_tokens.add(sum(map(len, ids)), spec.id)
    edge.metrics.latency.observe(edge.clock() - call.started, spec.id)
    return vectors


async def _embed_batch(
    edge: Edge, spec: ModelSpec, batch: list[list[int]], pooling: Pooling, call: Call
) -> Iterator[bytes]:
    embedding = _embedding(spec)
    message = Embed(
        stream=1,
        request_id=call.request_id,
        model=spec.id,
        texts=batch,
        pooling=pooling,
        normalize=embedding.normalize,
    )
    data = await edge.region.embed(message)
    size = FLOAT_BYTES * embedding.dimensions
    if len(data) != size * len(batch):
        raise ValueError(f"{len(data)} bytes for {len(batch)} vectors of {size}")
    return (data[start : start + size] for start in range(0, len(data), size))


def _batches(ids: list[list[int]], dimensions: int) -> Iterator[list[list[int]]]:
    """What one message each can carry there and back."""
    size = min(MAX_TEXTS, MAX_VECTOR_BYTES // (FLOAT_BYTES * dimensions))
    return (ids[start : start + size] for start in range(0, len(ids), size))


# --- what was asked ------------------------------------------------------------------------------


async def _input_ids(
    edge: Edge, spec: ModelSpec, text: EncoderText, asked: EmbeddingRequest
) -> list[list[int]]:
    """OpenAI's four forms of `input`. Token ids are taken as they are, special ones included."""
    given = prompts_given(asked.input, "input")
    texts = [each for each in given if isinstance(each, str)]
    if texts:
        return await _tokenised(
            edge, spec, text, texts, "input", truncate=bool(asked.truncate_inputs)
        )
    ids = [each for each in given if isinstance(each, list)]
    _check_count(ids, spec, "input")
    for number, each in enumerate(ids):
        if not each:
            raise InvalidInput(f"Bad input: input[{number}] is empty", param="input")
        wrong = next((id_ for id_ in each if not 0 <= id_ < text.vocab_size), None)
        if wrong is not None:
            raise InvalidInput(
                f"Bad input: input[{number}]: {wrong} is not a token id below {text.vocab_size}",
                param="input",
            )
    _check_lengths(ids, spec, text, "input")
    return ids


async def _tokenised(
    edge: Edge,
    spec: ModelSpec,
    text: EncoderText,
    texts: Sequence[str],
    param: str,
    *,
    truncate: bool,
) -> list[list[int]]:
    """Token ids of each text, none longer than the model takes; on a thread if they are many."""
    _check_count(texts, spec, param)
    most = text.max_tokens * edge.limits.prompt_chars_per_token
    for number, each in enumerate(texts):
        if not each:
            raise InvalidInput(f"Bad input: {param}[{number}] is empty", param=param)
        if len(each) > most and not truncate:
            raise PromptTooLong(
                f"Bad input: {param}[{number}] has {len(each)} characters, far more than the "
                f"{text.max_tokens} tokens that {spec.id} takes hold; `truncate_inputs: true` "
                "cuts them off",
                param=param,
            )
    if sum(map(len, texts)) <= INLINE_CHARS:
        ids = text.encode(texts, truncate=truncate)
    else:
        ids = await asyncio.to_thread(text.encode, texts, truncate=truncate)
    _check_lengths(ids, spec, text, param)
    return ids


def _check_count(texts: Sequence[object], spec: ModelSpec, param: str) -> None:
    most = min(MAX_EMBEDDING_INPUTS, MAX_VALUES // _embedding(spec).dimensions)
    if len(texts) > most:
        raise InvalidInput(
            f"Bad input: {param}: {len(texts)} texts, at most {most} at once", param=param
        )


def _check_lengths(ids: list[list[int]], spec: ModelSpec, text: EncoderText, param: str) -> None:
    for number, each in enumerate(ids):
        if len(each) > text.max_tokens:
            raise PromptTooLong(
                f"Bad input: {param}[{number}] has {len(each)} tokens; {spec.id} takes "
                f"{text.max_tokens}, special ones included. `truncate_inputs: true` cuts off what "
                "is more",
                param=param,
            )


def _embedding(spec: ModelSpec) -> Embedding:
    if spec.embedding is None:  # the catalog has both or neither
        raise TypeError(f"{spec.id} has no embedding")
    return spec.embedding


# --- what is answered ----------------------------------------------------------------------------


def _floats(vector: bytes) -> list[float]:
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def _base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode()


def _usage(ids: list[list[int]]) -> EmbeddingUsage:
    tokens = sum(map(len, ids))
    return EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
