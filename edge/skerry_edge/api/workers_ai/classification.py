"""`/ai/run/{model}` of models that classify: a text's labels, or contexts ranked by a query.

A model of one label ranks: it reads the query and a context together, and its score says how well
one answers the other. What is longer than the model takes is an error, unless `truncate_inputs` is
set, which cuts the context.
"""

from __future__ import annotations

import math
from array import array

from starlette.responses import Response

from skerry.wire.encoders import (
    ClassificationInput,
    LabelScore,
    RankedContext,
    RankingInput,
    RankingOutput,
)
from skerry_edge.api.bodies import Body
from skerry_edge.api.edge_request import EdgeRequest, decoded
from skerry_edge.api.handler import caller_of, vectors
from skerry_edge.api.upstream_fields import NATIVE_TEXTS
from skerry_edge.envelopes import Dialect, JSONBytes, encode
from skerry_edge.gate.caller import Caller
from skerry_edge.generation.encoding import Form, Texts, floats, tokenised, tokenised_pairs
from skerry_edge.text.encoder import EncoderText
from skerry_regions.models.catalog import Classification, ModelSpec

_text_body = Body(ClassificationInput, NATIVE_TEXTS, corrects=True)
_ranking_body = Body(RankingInput, NATIVE_TEXTS, corrects=True)


async def run(
    request: EdgeRequest, spec: ModelSpec, text: EncoderText, body: bytes, dialect: Dialect
) -> Response:
    """Return labels in the model's order, or contexts with the best first."""
    result: RankingOutput | list[LabelScore]
    if _classification(spec).ranks:
        ranked = await decoded(request, _ranking_body, body)
        caller = caller_of(request, ranked.options)
        result = await _ranking(request, spec, text, ranked, caller)
    else:
        asked = await decoded(request, _text_body, body)
        caller = caller_of(request, asked.options)
        result = await _labels(request, spec, text, asked, caller)
    return JSONBytes(dialect.wrap(encode(result)))


async def _labels(
    request: EdgeRequest,
    spec: ModelSpec,
    text: EncoderText,
    asked: ClassificationInput,
    caller: Caller,
) -> list[LabelScore]:
    truncate = bool(asked.truncate_inputs)
    texts = await tokenised(
        request.edge, spec, text, [asked.text], ["text"], tenant=caller.tenant, truncate=truncate
    )
    (scores,) = await _scores(request, spec, texts, caller)
    named = zip(_classification(spec).labels, scores, strict=True)
    return [LabelScore(label, score) for label, score in named]


async def _ranking(
    request: EdgeRequest,
    spec: ModelSpec,
    text: EncoderText,
    asked: RankingInput,
    caller: Caller,
) -> RankingOutput:
    contexts = [context.text for context in asked.contexts]
    truncate = bool(asked.truncate_inputs)
    texts = await tokenised_pairs(
        request.edge, spec, text, asked.query, contexts, tenant=caller.tenant, truncate=truncate
    )
    scores = await _scores(request, spec, texts, caller)
    ranked = [RankedContext(index, score) for index, (score,) in enumerate(scores)]
    ranked.sort(key=lambda context: -context.score)
    return RankingOutput(ranked[: asked.top_k], texts.usage())


async def _scores(
    request: EdgeRequest, spec: ModelSpec, texts: Texts, caller: Caller
) -> list[list[float]]:
    """Return a score from 0 to 1 per label, of each text."""
    classification = _classification(spec)
    form = Form(kind="classes", width=len(classification.labels))
    encoded = await vectors(request, caller, spec, texts, form)
    shares = _sigmoids if classification.is_independent else _softmax
    return [shares(floats(vector)) for vector in encoded]


def _sigmoids(scores: array[float]) -> list[float]:
    return [0.5 * (1.0 + math.tanh(0.5 * score)) for score in scores]


def _softmax(scores: array[float]) -> list[float]:
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _classification(spec: ModelSpec) -> Classification:
    if spec.classification is None:  # the catalog has both or neither
        raise TypeError(f"{spec.id} does not classify")
    return spec.classification
