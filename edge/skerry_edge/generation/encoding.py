"""What every task of an encoder shares: texts to token ids, bounds, and vectors from the region."""

from __future__ import annotations

import dataclasses
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TypeVar

from skerry.errors import InternalError, InvalidInput, PromptTooLong, SkerryError
from skerry.wire.encoders import EmbeddingUsage
from skerry_edge.answer_headers import AnswerHeaders
from skerry_edge.gate.caller import Caller
from skerry_edge.gate.grants import check_model
from skerry_edge.gate.request_demand import RequestDemand
from skerry_edge.generation.edge import Edge
from skerry_edge.ledger.repeats import RepeatPolicy
from skerry_edge.ledger.vector_settlement import open_vectors
from skerry_edge.telemetry import tracing
from skerry_edge.text.desk import TenantDesk
from skerry_edge.text.encoder import EncoderText
from skerry_edge.text.prompts import INLINE_CHARS
from skerry_regions.models.catalog import ModelSpec
from skerry_regions.wire.protocol import MAX_TEXTS, MAX_VECTOR_BYTES, Embed, VectorKind

FLOAT_BYTES = 4
MAX_CHARS_PER_TOKEN = 64  # of a text that is cut off: what is behind is not tokenised first

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


async def encoded(
    edge: Edge,
    spec: ModelSpec,
    texts: Texts,
    form: Form,
    caller: Caller,
    headers: AnswerHeaders,
    repeats: RepeatPolicy | None = None,
) -> list[bytes]:
    """Return one vector per text, in order: f32[width], little-endian.

    Raises what `RegionClient.embed` and `Admission.enter` raise, or `IdempotencyMismatch`.
    """
    if caller.models:
        check_model(spec, caller.models)
    num_tokens = sum(map(len, texts.ids))
    settlement = await open_vectors(
        edge.stores,
        spec,
        caller,
        repeats,
        headers,
        texts=[*zip_longest(texts.ids, texts.second_starts)],
        form=dataclasses.astuple(form),
        num_tokens=num_tokens,
    )
    if settlement.found is not None:
        return settlement.found
    try:
        demand = RequestDemand(
            caller=caller, model=spec.id, price=spec.price, prompt_tokens=num_tokens
        )
        place = await edge.admission.enter(demand, headers.update)
    except SkerryError as error:
        edge.metrics.generations_failed.add(1, spec.id, error.code)
        raise
    settlement.admit()
    edge.metrics.running.change(1)
    try:
        vectors = [
            vector
            for batch in _batches(texts, form.width)
            for vector in await _encoded_batch(edge, spec, batch, form, caller)
        ]
        place.leave(num_tokens)
        settlement.finish(vectors)
    except Exception as error:
        settlement.settle("failed")
        code = error.code if isinstance(error, SkerryError) else InternalError.code
        edge.metrics.generations_failed.add(1, spec.id, code)
        raise
    finally:
        edge.metrics.running.change(-1)
        settlement.settle("cancelled")
        place.leave()
    edge.metrics.prompt_tokens.add(num_tokens, spec.id)
    edge.metrics.latency.observe(edge.clock() - caller.started, spec.id)
    return vectors


async def _encoded_batch(
    edge: Edge, spec: ModelSpec, batch: Texts, form: Form, caller: Caller
) -> Iterator[bytes]:
    message = Embed(
        stream=1,
        request_id=caller.request_id,
        model=spec.id,
        texts=batch.ids,
        pooling=form.kind,
        normalize=form.normalize,
        second_starts=batch.second_starts,
        priority=caller.priority,
        residency=caller.residency,
    )
    tokens = sum(map(len, batch.ids))
    with tracing.span("encode", model=spec.id, texts=len(batch.ids), tokens=tokens):
        data = await edge.region.embed(message)
    size = FLOAT_BYTES * form.width
    if len(data) != size * len(batch.ids):
        raise ValueError(f"{len(data)} bytes for {len(batch.ids)} vectors of {size}")
    return (data[start : start + size] for start in range(0, len(data), size))


def _batches(texts: Texts, width: int) -> Iterator[Texts]:
    """Yield parts of the texts that one message each can carry there and back."""
    size = min(MAX_TEXTS, MAX_VECTOR_BYTES // (FLOAT_BYTES * width))
    for start in range(0, len(texts.ids), size):
        yield Texts(texts.ids[start : start + size], texts.second_starts[start : start + size])


def floats(vector: bytes) -> array[float]:
    """Return a vector's numbers."""
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
    tenant: str,
    truncate: bool,
) -> Texts:
    """Return token ids of each text, none longer than the model takes. Raises InvalidInput,
    PromptTooLong.

    `names` say in errors where the texts were.
    """
    check_chars(edge, spec, text, texts, names, truncate=truncate)
    texts = _beginnings(text, texts)
    with tracing.span("tokenise", model=spec.id, texts=len(texts)):
        ids = await _inline_or_at_desk(
            edge.desk.of(tenant),
            sum(map(len, texts)),
            lambda: within_lengths(text.encode(texts, truncate=truncate), spec, text, names),
        )
    return Texts(ids)


async def tokenised_pairs(
    edge: Edge,
    spec: ModelSpec,
    text: EncoderText,
    query: str,
    contexts: Sequence[str],
    *,
    tenant: str,
    truncate: bool,
) -> Texts:
    """Return token ids of the query with each context. Raises as `tokenised` does."""
    names = [f"contexts[{number}].text" for number in range(len(contexts))]
    check_chars(edge, spec, text, [query], ["query"], truncate=False)
    check_chars(edge, spec, text, contexts, names, truncate=truncate)
    contexts = _beginnings(text, contexts)
    chars = sum(map(len, contexts)) + len(contexts) * len(query)

    def pairs() -> Texts:
        if text.room_beside(query) < 1:
            raise PromptTooLong(
                f"Bad input: query leaves no room for a context among the {text.max_tokens} tokens "
                f"that {spec.id} takes",
                param="query",
            )
        seconds = list[int]()

        def ids() -> Iterator[list[int]]:
            for each, second in text.encode_pairs(query, contexts, truncate=truncate):
                seconds.append(second)
                yield each

        return Texts(within_lengths(ids(), spec, text, names), seconds)

    with tracing.span("tokenise", model=spec.id, texts=len(contexts)):
        return await _inline_or_at_desk(edge.desk.of(tenant), chars, pairs)


async def _inline_or_at_desk(desk: TenantDesk, chars: int, work: Callable[[], T]) -> T:
    """Work at the desk if it takes long, so that one request cannot hold up the streams of
    others."""
    return work() if chars <= INLINE_CHARS else await desk.run(work)


def _beginnings(text: EncoderText, texts: Sequence[str]) -> Sequence[str]:
    """Return texts without what lies behind all that a model can take of them."""
    most = text.max_tokens * MAX_CHARS_PER_TOKEN
    return [each[:most] for each in texts] if any(len(each) > most for each in texts) else texts


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


def within_lengths(
    ids: Iterable[list[int]], spec: ModelSpec, text: EncoderText, names: Sequence[str]
) -> list[list[int]]:
    """Return token ids of each text, and refuse what is longer than the model takes as it comes."""
    found = list[list[int]]()
    for name, each in zip(names, ids, strict=True):
        if len(each) > text.max_tokens:
            raise PromptTooLong(
                f"Bad input: {name} has {len(each)} tokens; {spec.id} takes "
                f"{text.max_tokens}, special ones included. `truncate_inputs: true` cuts off what "
                "is more",
                param=_field(name),
            )
        found.append(each)
    return found


def _field(name: str) -> str:
    return name.partition("[")[0]
