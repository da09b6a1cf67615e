"""`/ai/models/schema`: what a model takes and gives, as JSON Schema."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.responses import Response

from skerry import wire
from skerry.errors import InvalidInput
from skerry.wire import encoders
from skerry.wire import openai as openai_wire
from skerry_edge.api.edge_request import EdgeRequest
from skerry_edge.envelopes import JSONBytes, encode, envelope
from skerry_edge.generation.edge import Edge
from skerry_edge.text.prompts import NATIVE_TEMPERATURE, OPENAI_TEMPERATURE
from skerry_regions.models.catalog import ModelSpec

EITHER_PROMPT = [  # one of them; null counts as absent
    {"required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
    {
        "required": ["messages"],
        "properties": {"messages": {"type": "array", "minItems": 1}},
    },
]


async def model_schema(request: EdgeRequest) -> Response:
    """Handle `GET …/ai/models/schema?model=`: JSON Schemas of the model's input and result."""
    edge, name = request.edge, request.query_params.get("model")
    if not name:
        raise InvalidInput("Bad input: the query parameter 'model' is required", param="model")
    spec = edge.spec(name)
    return JSONBytes(await asyncio.to_thread(_encoded_schemas, edge, spec))  # tens of ms


def _encoded_schemas(edge: Edge, spec: ModelSpec) -> bytes:
    return envelope(encode({"input": input_schema(edge, spec), "output": output_schema(spec)}))


def input_schema(edge: Edge, spec: ModelSpec) -> dict[str, Any]:
    """Return the input of `/ai/run/{model}`, with the model's own default and bound of
    `max_tokens`."""
    if spec.embedding is not None:
        schema = struct_schema(encoders.EmbeddingsInput)
        schema["properties"]["pooling"]["default"] = spec.embedding.pooling
        if spec.embedding.takes_instruction:
            schema["properties"]["instruction"]["default"] = spec.embedding.instruction
        else:
            del schema["properties"]["instruction"]
        schema["oneOf"] = [
            {"required": ["text"]},
            {"required": ["contexts"]},
            {"anyOf": [{"required": ["queries"]}, {"required": ["documents"]}]},
        ]
        return schema
    if spec.classification is not None:
        ranks = spec.classification.ranks
        return struct_schema(encoders.RankingInput if ranks else encoders.ClassificationInput)
    is_chat = spec.answer == "chat"
    schema = struct_schema(openai_wire.ChatRunInput if is_chat else wire.TextGenerationInput)
    schema["oneOf"] = EITHER_PROMPT
    temperature = OPENAI_TEMPERATURE if is_chat else NATIVE_TEMPERATURE
    for name, value in spec.sampling.resolved(temperature).items():
        if name != "top_k" or value:
            schema["properties"][name]["default"] = value
    max_tokens = schema["properties"]["max_tokens"]
    max_tokens["default"] = spec.default_max_tokens or edge.limits.default_max_tokens
    for form in max_tokens["anyOf"]:
        if form["type"] == "integer":
            form["maximum"] = spec.context_window
    return schema


def output_schema(spec: ModelSpec) -> dict[str, Any]:
    """Return the result that `/ai/run/{model}` gives, without its envelope."""
    if spec.embedding is not None:
        kinds = (encoders.EmbeddingsOutput, encoders.RankingOutput, encoders.ContextVectorsOutput)
        forms, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
        return {"anyOf": list(forms), "$defs": parts}
    if spec.classification is not None:
        if spec.classification.ranks:
            return struct_schema(encoders.RankingOutput)
        label = struct_schema(encoders.LabelScore)
        return {"type": "array", "items": label, "minItems": 1}
    is_chat = spec.answer == "chat"
    return struct_schema(openai_wire.ChatCompletion if is_chat else wire.TextGenerationOutput)


def struct_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return a struct's schema with itself at the top; what it refers to is under `$defs`."""
    schema = msgspec.json.schema(kind)
    definitions = schema.pop("$defs")
    top: dict[str, Any] = definitions.pop(schema["$ref"].rpartition("/")[2])
    return {**top, "$defs": definitions} if definitions else top
