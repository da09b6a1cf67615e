"""`/openapi.json`: the HTTP API in OpenAPI 3.1, made of the structs that check it.

Each operation names its structs; statuses and error bodies follow from its dialect, since any
request can fail in any documented way.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from skerry import __version__, wire
from skerry.errors import SkerryError
from skerry_edge import messages_wire, responses_wire
from skerry_edge.auth import PUBLIC_PATHS
from skerry_edge.batch import wire as batch_wire
from skerry_edge.batch.files import FORM, MAX_LIMIT
from skerry_edge.binding import BindingRequest
from skerry_edge.dialects import BINDING_PATH, MODEL_HEADER, JSONBytes, encode
from skerry_edge.native import UniversalRequest
from skerry_edge.tracing import TraceRecord
from skerry_edge.usage_report import DIMENSIONS, Totals

Schema = dict[str, Any]
Struct = type[msgspec.Struct]
Errors = Literal["native", "openai", "anthropic", "binding"]

ACCOUNT = "/client/v4/accounts/{account_id}"
REFERENCE = "#/components/schemas/{name}"
JSON, EVENTS, BYTES = "application/json", "text/event-stream", "application/octet-stream"
HEAD_STATUSES = (400, 408, 413, 414, 431, 503)  # of requests that are refused before routing
RUN_INPUTS = (
    wire.TextGenerationInput,
    wire.ChatRunInput,
    wire.EmbeddingsInput,
    wire.RankingInput,
    wire.ClassificationInput,
    batch_wire.QueuedBody,
)
RUN_RESULTS = (
    wire.TextGenerationOutput,
    wire.ChatCompletion,
    wire.EmbeddingsOutput,
    wire.RankingOutput,
    list[wire.LabelScore],
    batch_wire.QueuedStatus,
    batch_wire.QueuedAnswers,
)


class ModelSchema(msgspec.Struct):
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


class Readiness(msgspec.Struct):
    status: str
    models: list[str]


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
    error: wire.OpenAIErrorDetail


ERRORS: dict[Errors, Struct] = {
    "native": wire.ErrorEnvelope,
    "openai": wire.OpenAIError,
    "anthropic": AnthropicError,
    "binding": wire.BindingError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path. Of several `inputs` or `results` the model decides which."""

    id: str
    path: str
    summary: str
    results: Sequence[Any]  # types
    inputs: Sequence[Struct] = ()  # empty: GET, unless `method` says otherwise
    form: Schema | None = None  # what is sent in place of inputs
    method: str = ""
    errors: Errors = "native"
    enveloped: bool = True
    paged: bool = False
    streams: bool = False
    media: str = JSON  # of a good answer
    parameters: tuple[Schema, ...] = ()
    statuses: tuple[int, ...] = ()  # of answers like a good one

    @property
    def verb(self) -> str:
        return self.method or ("post" if self.inputs or self.form else "get")


def _parameter(name: str, where: str, schema: Schema, description: str) -> Schema:
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "schema": schema,
        "description": description,
    }


MODEL = _parameter(
    "model", "path", {"type": "string"}, "A model's id or alias; slashes may be raw."
)
RESPONSE_ID = _parameter("id", "path", {"type": "string"}, "Of a stored response.")
REQUEST_ID = _parameter("request_id", "path", {"type": "string"}, "An answer's `x-request-id`.")
NATURAL: Schema = {"type": "integer", "minimum": 1}
TEXT: Schema = {"type": "string"}
QUEUE = _parameter(
    "queueRequest",
    "query",
    {"type": "string", "enum": ["true", "false"]},
    "`true` queues requests, or asks for their answers.",
)
FILE_ID = _parameter("id", "path", TEXT, "Of a file.")
BATCH_ID = _parameter("id", "path", TEXT, "Of a batch.")
PAGE = (
    _parameter("after", "query", TEXT, "The id that the page follows."),
    _parameter("limit", "query", {**NATURAL, "maximum": MAX_LIMIT}, "By default 20."),
)
UPLOAD: Schema = {
    "type": "object",
    "properties": {"purpose": {"const": "batch"}, "file": {"type": "string", "format": "binary"}},
    "required": ["purpose", "file"],
}
SEARCH = (
    _parameter("search", "query", TEXT, "Part of a name."),
    _parameter("task", "query", TEXT, "A task's name."),
    _parameter("author", "query", TEXT, "Who made it."),
    _parameter("page", "query", {**NATURAL, "maximum": 1_000_000}, "From 1."),
    _parameter("per_page", "query", {**NATURAL, "maximum": 1000}, "By default 50."),
)


def _v1(id: str, path: str, summary: str, results: Sequence[Any], **options: Any) -> Operation:
    options = {"errors": "openai", "enveloped": False, **options}
    return Operation(
        id=id, path=f"{ACCOUNT}/ai/v1{path}", summary=summary, results=results, **options
    )


OPERATIONS = (
    Operation(
        id="run",
        path=f"{ACCOUNT}/ai/run/{{model}}",
        summary="Run a model",
        inputs=RUN_INPUTS,
        results=RUN_RESULTS,
        streams=True,
        parameters=(MODEL, QUEUE),
    ),
    Operation(
        id="runNamed",
        path=f"{ACCOUNT}/ai/run",
        summary="Run the model that the body names",
        inputs=(UniversalRequest,),
        results=RUN_RESULTS,
        streams=True,
        parameters=(QUEUE,),
    ),
    Operation(
        id="searchModels",
        path=f"{ACCOUNT}/ai/models/search",
        summary="Models that are served, in pages",
        results=(list[ListedModel],),
        paged=True,
        parameters=SEARCH,
    ),
    Operation(
        id="getModelSchema",
        path=f"{ACCOUNT}/ai/models/schema",
        summary="What a model takes and gives",
        results=(ModelSchema,),
        parameters=({**_parameter("model", "query", TEXT, "Id or alias."), "required": True},),
    ),
    Operation(
        id="searchAuthors",
        path=f"{ACCOUNT}/ai/authors/search",
        summary="Who made the models",
        results=(list[Author],),
    ),
    Operation(
        id="searchTasks",
        path=f"{ACCOUNT}/ai/tasks/search",
        summary="What the models do",
        results=(list[Task],),
    ),
    Operation(
        id="getUsage",
        path=f"{ACCOUNT}/ai/usage",
        summary="What the account used, and what it cost",
        results=(list[Totals],),
        parameters=(
            _parameter("by", "query", TEXT, f"Of {', '.join(DIMENSIONS)}; several with commas."),
            _parameter("since", "query", TEXT, "90m, 24h or 7d ago, or a UTC day; 30d if absent."),
        ),
    ),
    Operation(
        id="getTrace",
        path=f"{ACCOUNT}/ai/traces/{{request_id}}",
        summary="What a request did, and when",
        results=(TraceRecord,),
        parameters=(REQUEST_ID,),
    ),
    Operation(
        id="verifyToken",
        path="/client/v4/user/tokens/verify",
        summary="Whether the token works",
        results=(TokenStatus,),
    ),
    Operation(
        id="runBinding",
        path=BINDING_PATH,
        summary="Run a model for a Worker's env.AI",
        inputs=(BindingRequest,),
        results=RUN_RESULTS,
        errors="binding",
        enveloped=False,
        streams=True,
        parameters=(_parameter(MODEL_HEADER, "header", TEXT, "The model; required."),),
    ),
    _v1(
        "createChatCompletion",
        "/chat/completions",
        "OpenAI chat completions",
        (wire.ChatCompletion,),
        inputs=(wire.ChatCompletionRequest,),
        streams=True,
    ),
    _v1(
        "createCompletion",
        "/completions",
        "OpenAI text completions",
        (wire.Completion,),
        inputs=(wire.CompletionRequest,),
        streams=True,
    ),
    _v1(
        "createEmbedding",
        "/embeddings",
        "OpenAI embeddings",
        (wire.EmbeddingList,),
        inputs=(wire.EmbeddingRequest,),
    ),
    _v1(
        "createResponse",
        "/responses",
        "OpenAI responses",
        (responses_wire.ResponseObject,),
        inputs=(responses_wire.ResponsesRequest,),
        streams=True,
    ),
    _v1(
        "getResponse",
        "/responses/{id}",
        "A stored response",
        (responses_wire.ResponseObject,),
        parameters=(RESPONSE_ID,),
    ),
    _v1(
        "deleteResponse",
        "/responses/{id}",
        "Forget a stored response",
        (responses_wire.DeletedResponse,),
        method="delete",
        parameters=(RESPONSE_ID,),
    ),
    _v1(
        "createMessage",
        "/messages",
        "Anthropic messages",
        (messages_wire.MessagesAnswer,),
        inputs=(messages_wire.MessagesRequest,),
        errors="anthropic",
        streams=True,
    ),
    _v1(
        "countMessageTokens",
        "/messages/count_tokens",
        "Length of a prompt",
        (messages_wire.TokenCount,),
        inputs=(messages_wire.CountRequest,),
        errors="anthropic",
    ),
    _v1(
        "uploadFile",
        "/files",
        "Keep a file for a batch",
        (batch_wire.FileObject,),
        form=UPLOAD,
    ),
    _v1(
        "listFiles",
        "/files",
        "A tenant's files, newest first",
        (batch_wire.FileList,),
        parameters=(
            *PAGE,
            _parameter("purpose", "query", TEXT, "`batch` or `batch_output`."),
            _parameter("order", "query", {"type": "string", "enum": ["asc", "desc"]}, "Of age."),
        ),
    ),
    _v1("getFile", "/files/{id}", "One file", (batch_wire.FileObject,), parameters=(FILE_ID,)),
    _v1(
        "deleteFile",
        "/files/{id}",
        "Forget a file",
        (batch_wire.DeletedFile,),
        method="delete",
        parameters=(FILE_ID,),
    ),
    _v1(
        "getFileContent",
        "/files/{id}/content",
        "What a file holds",
        (str,),
        media=BYTES,
        parameters=(FILE_ID,),
    ),
    _v1(
        "createBatch",
        "/batches",
        "Run an input file's requests on idle capacity",
        (batch_wire.BatchObject,),
        inputs=(batch_wire.BatchRequest,),
    ),
    _v1(
        "listBatches",
        "/batches",
        "A tenant's batches, newest first",
        (batch_wire.BatchList,),
        parameters=PAGE,
    ),
    _v1(
        "getBatch",
        "/batches/{id}",
        "One batch",
        (batch_wire.BatchObject,),
        parameters=(BATCH_ID,),
    ),
    _v1(
        "cancelBatch",
        "/batches/{id}/cancel",
        "End a batch now",
        (batch_wire.BatchObject,),
        method="post",
        parameters=(BATCH_ID,),
    ),
    _v1("listModels", "/models", "OpenAI model list", (wire.ModelList,)),
    _v1("getModel", "/models/{model}", "One model", (wire.ModelCard,), parameters=(MODEL,)),
    Operation(
        id="health",
        path="/healthz",
        summary="The process answers",
        results=(Health,),
        enveloped=False,
    ),
    Operation(
        id="readiness",
        path="/readyz",
        summary="Some model can be asked",
        results=(Readiness,),
        enveloped=False,
        statuses=(503,),
    ),
)


async def openapi(request: Request) -> Response:
    """`GET /openapi.json`."""
    return JSONBytes(_encoded())


@functools.cache
def _encoded() -> bytes:
    return encode(document())


def document() -> Schema:
    """The whole description."""
    types: list[Any] = [PageInfo, RefusedHead, wire.ApiMessage, *ERRORS.values()]
    for operation in OPERATIONS:
        types += [*operation.inputs, *operation.results]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    named = dict(zip(map(_key, types), schemas, strict=True))
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        item = paths.setdefault(operation.path, {})
        if "{account_id}" in operation.path:
            pattern = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
            account = _parameter("account_id", "path", pattern, "The account of the token.")
            item["parameters"] = [account]
        item[operation.verb] = _operation(operation, named)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Skerry", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation, named: dict[str, Schema]) -> Schema:
    good: Schema = {operation.media: {"schema": _result(operation, named)}}
    if operation.streams:
        good[EVENTS] = {"schema": {"type": "string"}}
    responses: Schema = {}
    for status in sorted({kind.status for kind in _kinds() if kind.status} | {*HEAD_STATUSES}):
        failed = [ERRORS[operation.errors], *([RefusedHead] if status in HEAD_STATUSES else [])]
        error = {JSON: {"schema": _any_of([named[_key(kind)] for kind in failed])}}
        responses[str(status)] = {"description": "The request failed.", "content": error}
    for status in (200, *operation.statuses):
        responses[str(status)] = {"description": operation.summary, "content": good}
    described: Schema = {
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": responses,
    }
    if operation.path in PUBLIC_PATHS:
        described["security"] = []
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.inputs:
        body = _any_of([named[_key(kind)] for kind in operation.inputs])
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    if operation.form:
        described["requestBody"] = {"required": True, "content": {FORM: {"schema": operation.form}}}
    return described


def _result(operation: Operation, named: dict[str, Schema]) -> Schema:
    result = _any_of([named[_key(kind)] for kind in operation.results])
    if not operation.enveloped:
        return result
    messages = {"type": "array", "items": named[_key(wire.ApiMessage)]}
    properties = {
        "result": result,
        "success": {"const": True},
        "errors": {"type": "array", "maxItems": 0},
        "messages": messages,
    }
    if operation.paged:
        properties["result_info"] = named[_key(PageInfo)]
    return {"type": "object", "properties": properties, "required": list(properties)}


def _any_of(schemas: list[Schema]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _key(kind: Any) -> str:
    return repr(kind)


def _kinds() -> list[type[SkerryError]]:
    return list(SkerryError.by_code.values())
