"""Every operation of the HTTP API, with the structs of what it takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from skerry import wire
from skerry_edge.api.anthropic import messages_wire
from skerry_edge.api.batch import wire as batch_wire
from skerry_edge.api.batch.files import MAX_LIMIT
from skerry_edge.api.documents.openapi_bodies import (
    Author,
    Health,
    ListedModel,
    ModelSchema,
    Readiness,
    Task,
    TokenStatus,
)
from skerry_edge.api.responses import responses_wire
from skerry_edge.api.workers_ai.binding import BindingRequest
from skerry_edge.api.workers_ai.native import UniversalRequest
from skerry_edge.envelopes import BINDING_PATH, MODEL_HEADER
from skerry_edge.ledger.usage_report import DIMENSIONS, Totals
from skerry_edge.telemetry.tracing import TraceRecord

Schema = dict[str, Any]
Struct = type[msgspec.Struct]
Errors = Literal["native", "openai", "anthropic", "binding"]

ACCOUNT = "/client/v4/accounts/{account_id}"
JSON, BYTES = "application/json", "application/octet-stream"
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


def parameter(name: str, where: str, schema: Schema, description: str) -> Schema:
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "schema": schema,
        "description": description,
    }


MODEL = parameter("model", "path", {"type": "string"}, "A model's id or alias; slashes may be raw.")
RESPONSE_ID = parameter("id", "path", {"type": "string"}, "Of a stored response.")
REQUEST_ID = parameter("request_id", "path", {"type": "string"}, "An answer's `x-request-id`.")
NATURAL: Schema = {"type": "integer", "minimum": 1}
TEXT: Schema = {"type": "string"}
QUEUE = parameter(
    "queueRequest",
    "query",
    {"type": "string", "enum": ["true", "false"]},
    "`true` queues requests, or asks for their answers.",
)
FILE_ID = parameter("id", "path", TEXT, "Of a file.")
BATCH_ID = parameter("id", "path", TEXT, "Of a batch.")
PAGE = (
    parameter("after", "query", TEXT, "The id that the page follows."),
    parameter("limit", "query", {**NATURAL, "maximum": MAX_LIMIT}, "By default 20."),
)
UPLOAD: Schema = {
    "type": "object",
    "properties": {"purpose": {"const": "batch"}, "file": {"type": "string", "format": "binary"}},
    "required": ["purpose", "file"],
}
SEARCH = (
    parameter("search", "query", TEXT, "Part of a name."),
    parameter("task", "query", TEXT, "A task's name."),
    parameter("author", "query", TEXT, "Who made it."),
    parameter("page", "query", {**NATURAL, "maximum": 1_000_000}, "From 1."),
    parameter("per_page", "query", {**NATURAL, "maximum": 1000}, "By default 50."),
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
        parameters=({**parameter("model", "query", TEXT, "Id or alias."), "required": True},),
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
            parameter("by", "query", TEXT, f"Of {', '.join(DIMENSIONS)}; several with commas."),
            parameter("since", "query", TEXT, "90m, 24h or 7d ago, or a UTC day; 30d if absent."),
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
        parameters=(parameter(MODEL_HEADER, "header", TEXT, "The model; required."),),
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
            parameter("purpose", "query", TEXT, "`batch` or `batch_output`."),
            parameter("order", "query", {"type": "string", "enum": ["asc", "desc"]}, "Of age."),
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
