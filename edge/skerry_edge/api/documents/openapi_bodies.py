"""Bodies that only the description of the API names: of answers that are made without a struct."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from skerry import wire
from skerry.wire import openai as openai_wire


class ModelSchemas(msgspec.Struct):
    """JSON Schemas of a model's input and of its result."""

    input: dict[str, Any]
    output: dict[str, Any]


class TokenStatus(msgspec.Struct):
    id: str
    status: Literal["active"]


class Task(msgspec.Struct):
    id: str
    name: str
    description: str


class Author(msgspec.Struct):
    name: str


class ModelProperty(msgspec.Struct):
    property_id: str
    value: str | list[dict[str, Any]]


class ListedModel(msgspec.Struct):
    id: str
    source: int
    name: str
    description: str
    task: Task
    created_at: str
    tags: list[str]
    properties: list[ModelProperty]


class PageInfo(msgspec.Struct):
    count: int
    page: int
    per_page: int
    total_count: int


class Health(msgspec.Struct):
    status: str


class ModelLeftOut(msgspec.Struct):
    model: str
    reason: str


class Readiness(msgspec.Struct, omit_defaults=True):
    status: str
    models: list[str]
    left_out: list[ModelLeftOut] = []  # that the start could not open


class AnthropicErrorDetail(msgspec.Struct):
    type: str
    message: str


class AnthropicError(msgspec.Struct):
    """Error body of `/ai/v1/messages`: Anthropic's form and the envelope's `errors`."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str
    errors: list[wire.ApiMessage]
    success: bool = False


class RefusedHead(msgspec.Struct):
    """Error body of a request that was refused before its path was looked at."""

    errors: list[wire.ApiMessage]
    success: Literal[False]
    result: None
    messages: list[wire.ApiMessage]
    error: openai_wire.OpenAIErrorDetail
