"""What every task of an encoder shares: texts to token ids, bounds, and vectors from the region."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TypeVar

from skerry.errors import InternalError, InvalidInput, PromptTooLong, SkerryError
from skerry.wire import EmbeddingUsage
from skerry_edge.gate.entrance import enter
from skerry_edge.generation.choices import Call
from skerry_edge.generation.edge import Edge
from skerry_edge.ledger.books import open_vector_books
from skerry_edge.telemetry import tracing
from skerry_edge.text.encoder import EncoderText
from skerry_edge.text.prompts import INLINE_CHARS
from skerry_regions.models.catalog import ModelSpec
from skerry_regions.wire.protocol import MAX_TEXTS, MAX_VECTOR_BYTES, Embed, VectorKind

FLOAT_BYTES = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The vectors that are wanted: what they are, and how many numbers one has."""

    kind: VectorKind
    width: int
    normalize: bool = False


@dataclass(frozen=True, slots=True)
class Texts:
    """Token ids of each text."""

    ids: list[list[int]]
    second_starts: list[int] = field(default_factory=list[int])
    """Of texts of two parts: how many tokens come before the second one."""

    def usage(self) -> EmbeddingUsage:
        tokens = sum(map(len, self.ids))
        return EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)


async def encoded(edge: Edge, spec: ModelSpec, texts: Texts, form: Form, call: Call) -> list[bytes]:
    """One vector per text, in order: f32[width], little-endian.

    Raises what `RegionClient.embed` and `Admission.enter` raise, or `IdempotencyMismatch`.
    """
    num_tokens = sum(map(len, texts.ids))
    asked = [*zip_longest(texts.ids, texts.second_starts)]
    form_asked = dataclasses.astuple(form)
    books = await open_vector_books(edge, spec, call, asked, form_asked, num_tokens)
    if books.found is not None:
        return books.found
    place = await enter(edge, spec, call, num_tokens)
    books.admit()
    edge.metrics.in_progress += 1
    try:
        vectors = [
            vector
            for batch in _batches(texts, form.width)
            for vector in await _encoded_batch(edge, spec, batch, form, call)
        ]
        place.leave(num_tokens)
        books.finish(vectors)
    except Exception as error:
        books.settle("failed")
        code = error.code if isinstance(error, SkerryError) else InternalError.code
        edge.metrics.generations_failed.add(1, spec.id, code)
        raise
    finally:
        edge.metrics.in_progress -= 1
        books.settle("cancelled")
        place.leave()
    edge.metrics.prompt_tokens.add(num_tokens, spec.id)
    edge.metrics.latency.observe(edge.clock() - call.started, spec.id)
    return vectors


async def _encoded_batch(
    edge: Edge, spec: ModelSpec, batch: Texts, form: Form, call: Call
) -> Iterator[bytes]:
    message = Embed(
        stream=1,
        request_id=call.request_id,
        model=spec.id,
        texts=batch.ids,
        pooling=form.kind,
        normalize=form.normalize,
        second_starts=batch.second_starts,
        priority=call.priority,
        residency=call.residency,
    )
    tokens = sum(map(len, batch.ids))
    with tracing.span("encode", model=spec.id, texts=len(batch.ids), tokens=tokens):
        data = await edge.region.embed(message)
    size = FLOAT_BYTES * form.width
    if len(data) != size * len(batch.ids):
        raise ValueError(f"{len(data)} bytes for {len(batch.ids)} vectors of {size}")
    return (data[start : start + size] for start in range(0, len(data), size))


def _batches(texts: Texts, width: int) -> Iterator[Texts]:
    """What one message each can carry there and back."""
    size = min(MAX_TEXTS, MAX_VECTOR_BYTES // (FLOAT_BYTES * width))
    for start in range(0, len(texts.ids), size):
        yield Texts(texts.ids[start : start + size], texts.second_starts[start : start + size])


def floats(vector: bytes) -> array[float]:
    """A vector's numbers."""
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values


# --- texts to token ids --------------------------------------------------------------------------


async def tokenised(
    edge: Edge,
    spec: ModelSpec,
    text: EncoderText,
    texts: Sequence[str],
    names: Sequence[str],
    *,
    truncate: bool,
) -> Texts:
    """Token ids of each text, none longer than the model takes. Raises InvalidInput, PromptTooLong.

    `names` say in errors where the texts were.
    """
    check_chars(edge, spec, text, texts, names, truncate=truncate)
    with tracing.span("tokenise", model=spec.id, texts=len(texts)):
        ids = await _inline_or_thread(
            sum(map(len, texts)), lambda: text.encode(texts, truncate=truncate)
        )
    check_lengths(ids, spec, text, names)
    return Texts(ids)


async def tokenised_pairs(
    edge: Edge,
    spec: ModelSpec,
    text: EncoderText,
    query: str,
    contexts: Sequence[str],
    *,
    truncate: bool,
) -> Texts:
    """Token ids of the query with each context. Raises as `tokenised` does."""
    names = [f"contexts[{number}].text" for number in range(len(contexts))]
    check_chars(edge, spec, text, [query], ["query"], truncate=False)
    check_chars(edge, spec, text, contexts, names, truncate=truncate)
    room = text.room_beside(query)
    if room < 1:
        raise PromptTooLong(
            f"Bad input: query leaves no room for a context among the {text.max_tokens} tokens "
            f"that {spec.id} takes",
            param="query",
        )
    chars = sum(map(len, contexts)) + len(contexts) * len(query)
    with tracing.span("tokenise", model=spec.id, texts=len(contexts)):
        pairs = await _inline_or_thread(
            chars, lambda: text.encode_pairs(query, contexts, truncate=truncate)
        )
    texts = Texts([ids for ids, _ in pairs], [second for _, second in pairs])
    check_lengths(texts.ids, spec, text, names)
    return texts


async def _inline_or_thread(chars: int, work: Callable[[], T]) -> T:
    """On a thread if it takes long, so that one request cannot hold up the streams of others."""
    return work() if chars <= INLINE_CHARS else await asyncio.to_thread(work)


def check_chars(
    edge: Edge,
    spec: ModelSpec,
    text: EncoderText,
    texts: Sequence[str],
    names: Sequence[str],
    *,
    truncate: bool,
) -> None:
    """Refuse what is empty or far too long before it is tokenised."""
    most = text.max_tokens * edge.limits.prompt_chars_per_token
    for name, each in zip(names, texts, strict=True):
        if not each:
            raise InvalidInput(f"Bad input: {name} is empty", param=_field(name))
        if len(each) > most and not truncate:
            raise PromptTooLong(
                f"Bad input: {name} has {len(each)} characters, far more than the "
                f"{text.max_tokens} tokens that {spec.id} takes hold; `truncate_inputs: true` "
                "cuts them off",
                param=_field(name),
            )


def check_lengths(
    ids: Sequence[Sequence[int]], spec: ModelSpec, text: EncoderText, names: Sequence[str]
) -> None:
    """Refuse what is longer than the model takes."""
    for name, each in zip(names, ids, strict=True):
        if len(each) > text.max_tokens:
            raise PromptTooLong(
                f"Bad input: {name} has {len(each)} tokens; {spec.id} takes "
                f"{text.max_tokens}, special ones included. `truncate_inputs: true` cuts off what "
                "is more",
                param=_field(name),
            )


def _field(name: str) -> str:
    return name.partition("[")[0]
