"""What operations of the HTTP API have in common: parameters, answers, errors, names of paths.

Statuses and error bodies follow from an operation's dialect, since any request can fail in any
documented way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from skerry import wire
from skerry.errors import SkerryError
from skerry.wire import encoders
from skerry.wire import openai as openai_wire
from skerry_edge.api.batch.files import FORM, MAX_LIMIT
from skerry_edge.api.batch.wire import QueuedAnswers, QueuedBody, QueuedStatus
from skerry_edge.api.documents.openapi_bodies import AnthropicError, PageInfo, RefusedHead
from skerry_edge.api.edge_request import Handler
from skerry_edge.envelopes import anthropic_error, binding_error, native_error, openai_error
from skerry_regions.operations import (
    JSON,
    Content,
    Errors,
    Operation,
    Outcome,
    Schema,
    parameter,
)

ACCOUNT = "/client/v4/accounts/{account_id}"
OPENAI_PREFIXES = (f"{ACCOUNT}/ai/v1", "/ai/v1", "/v1")  # the first one is described
RUN, READ = ("run",), ("read",)  # scopes

BYTES, EVENTS = "application/octet-stream", "text/event-stream"
HEAD_STATUSES = (400, 408, 413, 414, 431, 503)  # of requests that are refused before routing

TEXT: Schema = {"type": "string"}
NATURAL: Schema = {"type": "integer", "minimum": 1}
IN_PATH = {
    "account_id": parameter(
        "account_id", "path", TEXT | {"pattern": "^[0-9a-f]{32}$"}, "The account of the token."
    )
}
MODEL = parameter("model", "path", TEXT, "A model's id or alias; slashes may be raw.")
RESPONSE_ID = parameter("id", "path", TEXT, "Of a stored response.")
REQUEST_ID = parameter("request_id", "path", TEXT, "An answer's `x-request-id`.")
FILE_ID = parameter("id", "path", TEXT, "Of a file.")
BATCH_ID = parameter("id", "path", TEXT, "Of a batch.")
QUEUE = parameter(
    "queueRequest",
    "query",
    TEXT | {"enum": ["true", "false"]},
    "`true` queues requests, or asks for their answers.",
)
PAGE = (
    parameter("after", "query", TEXT, "The id that the page follows."),
    parameter("limit", "query", NATURAL | {"maximum": MAX_LIMIT}, "By default 20."),
)
ORDER = parameter("order", "query", TEXT | {"enum": ["asc", "desc"]}, "Of age.")
SEARCH = (
    parameter("search", "query", TEXT, "Part of a name."),
    parameter("task", "query", TEXT, "A task's name."),
    parameter("author", "query", TEXT, "Who made it."),
    parameter("page", "query", NATURAL | {"maximum": 1_000_000}, "From 1."),
    parameter("per_page", "query", NATURAL | {"maximum": 1000}, "By default 50."),
)
UPLOAD: Schema = {
    "type": "object",
    "properties": {
        "purpose": {"const": "batch"},
        "file": TEXT | {"format": "binary"},
    },
    "required": ["purpose", "file"],
}

# Of several inputs or results the model decides which.
RUN_INPUTS: Schema = (
    wire.TextGenerationInput,
    openai_wire.ChatRunInput,
    encoders.EmbeddingsInput,
    encoders.RankingInput,
    encoders.ClassificationInput,
    QueuedBody,
)
RUN_RESULTS: Schema = (
    wire.TextGenerationOutput,
    openai_wire.ChatCompletion,
    encoders.EmbeddingsOutput,
    encoders.ContextVectorsOutput,
    encoders.RankingOutput,
    list[encoders.LabelScore],
    QueuedStatus,
    QueuedAnswers,
)


def result(schema: Schema, *, streams: bool = False) -> dict[int, Content]:
    """Return a good answer: JSON, or events where the request has `stream`."""
    return {200: {JSON: schema} | ({EVENTS: TEXT} if streams else {})}


def enveloped(schema: Schema, *, paged: bool = False, streams: bool = False) -> dict[int, Content]:
    """Return a good answer in the success envelope."""
    properties = {
        "result": schema,
        "success": {"const": True},
        "errors": {"type": "array", "maxItems": 0},
        "messages": {"type": "array", "items": wire.ApiMessage},
    }
    if paged:
        properties["result_info"] = PageInfo
    envelope = {"type": "object", "properties": properties, "required": list(properties)}
    return result(envelope, streams=streams)


def _errors(body: type[Any], encode: Callable[[SkerryError, str], bytes]) -> Errors:
    statuses = {kind.status for kind in SkerryError.by_code.values() if kind.status}
    return Errors(
        answers={
            status: Outcome(
                "The request failed.",
                {JSON: (body, RefusedHead) if status in HEAD_STATUSES else body},
            )
            for status in sorted(statuses | {*HEAD_STATUSES})
        },
        encode=encode,
    )


NATIVE = _errors(wire.ErrorEnvelope, native_error)
BINDING = _errors(wire.BindingError, binding_error)
OPENAI = _errors(openai_wire.OpenAIError, openai_error)
ANTHROPIC = _errors(AnthropicError, anthropic_error)


def operation(
    method: str,
    path: str,
    handler: Handler,
    id: str,
    summary: str,
    answer: Schema,
    *parameters: Schema,
    body: Schema = None,
    form: Schema = None,
    scopes: tuple[str, ...] | None = READ,
    errors: Errors = NATIVE,
    answers: Callable[..., dict[int, Content]] = enveloped,
    counted: bool = False,
    **options: bool,
) -> Operation:
    """Return an operation whose good answer is `answer`, as `answers` wraps it with `options`."""
    bodies = {media: schema for media, schema in ((JSON, body), (FORM, form)) if schema is not None}
    return Operation(
        method=method, path=path, handler=handler, scopes=scopes, errors=errors, id=id,
        summary=summary, parameters=parameters, body=bodies or None,
        answers=answers(answer, **options), is_counted=counted,
    )  # fmt: skip


def v1(method: str, path: str, *described: Any, **options: Any) -> Iterator[Operation]:
    """Yield an operation of OpenAI's or Anthropic's clients under each of its names; the first one
    is described."""
    defaults: dict[str, Any] = {"scopes": RUN, "errors": OPENAI, "answers": result}
    whole = operation(method, path, *described, **(defaults | options))
    for prefix in OPENAI_PREFIXES:
        yield replace(whole, path=prefix + path, id=whole.id if prefix.startswith(ACCOUNT) else "")
