"""Every operation of the HTTP API: who answers it, which scope it needs, what it takes and gives.

Routes are tried in this order, and each try takes a microsecond: first what is called most.
"""

from __future__ import annotations

import asyncio
import functools
import re
from typing import Any

from starlette.responses import Response
from starlette.routing import compile_path

from skerry.wire import openai as openai_wire
from skerry_edge.api import gateway_operations
from skerry_edge.api.anthropic import messages, messages_wire
from skerry_edge.api.batch import batches, files
from skerry_edge.api.batch import wire as batch_wire
from skerry_edge.api.documents import health, listings, schemas, traces, usage_routes
from skerry_edge.api.documents.openapi import (
    ACCOUNT,
    ANTHROPIC,
    BATCH_ID,
    BINDING,
    BYTES,
    FILE_ID,
    IN_PATH,
    MODEL,
    NATIVE,
    OPENAI,
    OPENAI_PREFIXES,
    ORDER,
    PAGE,
    QUEUE,
    READ,
    REQUEST_ID,
    RESPONSE_ID,
    RUN,
    RUN_INPUTS,
    RUN_RESULTS,
    SEARCH,
    TEXT,
    UPLOAD,
    operation,
    result,
    v1,
)
from skerry_edge.api.documents.openapi_bodies import (
    Author,
    Health,
    ListedModel,
    ModelSchemas,
    Readiness,
    Task,
    TokenStatus,
)
from skerry_edge.api.edge_request import EdgeRequest
from skerry_edge.api.openai import chat, completions, embeddings
from skerry_edge.api.responses import responses, responses_wire, upgrade
from skerry_edge.api.workers_ai import binding, native
from skerry_edge.envelopes import BINDING_PATH, MODEL_HEADER, JSONBytes, encode
from skerry_edge.ledger.usage_report import DIMENSIONS, Totals
from skerry_edge.telemetry.tracing import TraceRecord
from skerry_regions.access import ROLES, SCOPES
from skerry_regions.geo.region_report import RegionReport
from skerry_regions.operations import (
    JSON,
    Errors,
    Operation,
    document,
    parameter,
)

STEER, METRICS = ("steer",), ("metrics",)  # scopes
OPERATOR = ("operator",)  # a role


async def openapi(request: EdgeRequest) -> Response:
    """Answer `GET /openapi.json`."""
    return JSONBytes(await asyncio.to_thread(_encoded_document))  # 0.1 s once, on a slow machine


OPERATIONS: tuple[Operation, ...] = (
    *v1(
        "POST", "/chat/completions", chat.chat_completions, "createChatCompletion",
        "OpenAI chat completions", openai_wire.ChatCompletion,
        body=openai_wire.ChatCompletionRequest,
        streams=True, counted=True,
    ),
    operation(
        "POST", f"{ACCOUNT}/ai/run/{{model:path}}", native.run, "run", "Run a model", RUN_RESULTS,
        MODEL, QUEUE, body=RUN_INPUTS, scopes=RUN, streams=True, counted=True,
    ),
    operation(
        "GET", "/healthz", health.health, "health", "The process answers", Health, scopes=None,
        answers=result,
    ),
    operation(
        "GET", "/readyz", health.ready, "readiness", "Some model can be asked", Readiness,
        parameter("model", "query", TEXT, "Whether this one can: an id or alias."),
        scopes=None, answers=lambda answer: {200: {JSON: answer}, 503: {JSON: answer}},
    ),
    operation(
        "GET", "/regions", health.show_regions, "getRegions",
        "Queue and round trips of the edge's region, for DNS servers", RegionReport,
        parameter("clients", "query", TEXT, "`1`: round trips to clients too, by network."),
        scopes=STEER + OPERATOR, answers=result,
    ),
    operation(
        "GET", "/metrics", health.show_metrics, "", "Prometheus text", TEXT,
        scopes=METRICS + OPERATOR,
    ),
    operation("GET", "/openapi.json", openapi, "", "This description", {}, scopes=None),
    operation(
        "GET", "/client/v4/user/tokens/verify", native.verify_token, "verifyToken",
        "Whether the token works", TokenStatus, scopes=(*SCOPES, *ROLES),
    ),
    operation(
        "POST", f"{ACCOUNT}/ai/run", native.run_named, "runNamed",
        "Run the model that the body names", RUN_RESULTS, QUEUE, body=native.UniversalRequest,
        scopes=RUN, streams=True, counted=True,
    ),
    operation(
        "GET", f"{ACCOUNT}/ai/models/search", listings.search_models, "searchModels",
        "Models that are served, in pages", list[ListedModel], *SEARCH,
        paged=True,
    ),
    operation(
        "GET", f"{ACCOUNT}/ai/models/schema", schemas.model_schema, "getModelSchema",
        "What a model takes and gives", ModelSchemas,
        parameter("model", "query", TEXT, "Id or alias.", required=True),
    ),
    operation(
        "GET", f"{ACCOUNT}/ai/authors/search", listings.search_authors, "searchAuthors",
        "Who made the models", list[Author],
    ),
    operation(
        "GET", f"{ACCOUNT}/ai/tasks/search", listings.search_tasks, "searchTasks",
        "What the models do", list[Task],
    ),
    operation(
        "GET", f"{ACCOUNT}/ai/usage", usage_routes.usage, "getUsage",
        "What the account used, and what it cost", list[Totals],
        parameter("by", "query", TEXT, f"Of {', '.join(DIMENSIONS)}; several with commas."),
        parameter("since", "query", TEXT, "90m, 24h or 7d ago, or a UTC day; 30d if absent."),
        parameter(
            "accounts", "query", TEXT | {"enum": ["own", "all"]}, "`all` is for operators."
        ),
        scopes=(*READ, *ROLES),
    ),
    operation(
        "GET", f"{ACCOUNT}/ai/caps", usage_routes.caps, "getCaps",
        "What is spent of the caps of an account and its tokens", list[usage_routes.CapUse],
        scopes=(*READ, *ROLES),
    ),
    operation(
        "GET", f"{ACCOUNT}/ai/traces/{{request_id}}", traces.show_trace, "getTrace",
        "What a request did, and when", TraceRecord, REQUEST_ID, scopes=ROLES,
    ),
    operation(
        "POST", BINDING_PATH, binding.run, "runBinding", "Run a model for a Worker's env.AI",
        RUN_RESULTS, parameter(MODEL_HEADER, "header", TEXT, "The model; required."),
        body=binding.BindingRequest, scopes=RUN, errors=BINDING,
        answers=result, streams=True, counted=True,
    ),
    operation(
        "GET", "/ai-api/models/search", listings.search_models, "",
        "The same for a Worker's env.AI", list[ListedModel],
    ),
    *v1(
        "POST", "/completions", completions.completions, "createCompletion",
        "OpenAI text completions", openai_wire.Completion, body=openai_wire.CompletionRequest,
        streams=True, counted=True,
    ),
    *v1(
        "POST", "/messages", messages.messages, "createMessage", "Anthropic messages",
        messages_wire.MessagesAnswer, body=messages_wire.MessagesRequest, errors=ANTHROPIC,
        streams=True, counted=True,
    ),
    *v1(
        "POST", "/messages/count_tokens", messages.count_tokens, "countMessageTokens",
        "Length of a prompt", messages_wire.TokenCount, body=messages_wire.CountRequest,
        errors=ANTHROPIC, counted=True,
    ),
    *v1(
        "POST", "/responses", responses.create, "createResponse", "OpenAI responses",
        responses_wire.ResponseObject, body=responses_wire.ResponsesRequest, streams=True,
        counted=True,
    ),
    *v1(
        "POST", "/responses/input_tokens", responses.count_tokens, "countResponseTokens",
        "Length of a prompt", responses_wire.InputTokens, body=responses_wire.InputTokensRequest,
        counted=True,
    ),
    *v1(
        "GET", "/responses/{id}/input_items", responses.input_items, "listInputItems",
        "What a stored response was made of, the newest first", responses_wire.InputItemList,
        RESPONSE_ID, *PAGE, ORDER,
    ),
    *v1(
        "GET", "/responses", upgrade.connect, "connectResponses",
        "OpenAI responses over a WebSocket", openai_wire.OpenAIError,
        answers=lambda answer: {101: {}, 426: {JSON: answer}},
    ),
    *v1(
        "GET", "/responses/{id}", responses.retrieve, "getResponse", "A stored response",
        responses_wire.ResponseObject, RESPONSE_ID,
    ),
    *v1(
        "DELETE", "/responses/{id}", responses.delete, "deleteResponse",
        "Forget a stored response", responses_wire.DeletedResponse, RESPONSE_ID,
    ),
    *v1(
        "POST", "/embeddings", embeddings.create, "createEmbedding", "OpenAI embeddings",
        openai_wire.EmbeddingList, body=openai_wire.EmbeddingRequest, counted=True,
    ),
    *v1(
        "POST", "/files", files.upload, "uploadFile", "Keep a file for a batch",
        batch_wire.FileObject, form=UPLOAD,
    ),
    *v1(
        "GET", "/files", files.list_files, "listFiles", "A tenant's files, newest first",
        batch_wire.FileList, *PAGE,
        parameter("purpose", "query", TEXT, "`batch` or `batch_output`."),
        ORDER,
    ),
    *v1(
        "GET", "/files/{id}", files.retrieve, "getFile", "One file", batch_wire.FileObject, FILE_ID,
    ),
    *v1(
        "DELETE", "/files/{id}", files.delete, "deleteFile", "Forget a file",
        batch_wire.DeletedFile, FILE_ID,
    ),
    *v1(
        "GET", "/files/{id}/content", files.content, "getFileContent", "What a file holds", str,
        FILE_ID, answers=lambda answer: {200: {BYTES: answer}},
    ),
    *v1(
        "POST", "/batches", batches.create, "createBatch",
        "Run an input file's requests on idle capacity", batch_wire.BatchObject,
        body=batch_wire.BatchRequest,
    ),
    *v1(
        "GET", "/batches", batches.list_batches, "listBatches", "A tenant's batches, newest first",
        batch_wire.BatchList, *PAGE,
    ),
    *v1(
        "GET", "/batches/{id}", batches.retrieve, "getBatch", "One batch",
        batch_wire.BatchObject, BATCH_ID,
    ),
    *v1(
        "POST", "/batches/{id}/cancel", batches.cancel, "cancelBatch", "End a batch now",
        batch_wire.BatchObject, BATCH_ID,
    ),
    *v1(
        "GET", "/models", listings.list_models, "listModels", "OpenAI model list",
        openai_wire.ModelList,
        scopes=READ,
    ),
    *v1(
        "GET", "/models/{model:path}", listings.get_model, "getModel", "One model",
        openai_wire.ModelCard, MODEL, scopes=READ,
    ),
    *gateway_operations.OPERATIONS,
)  # fmt: skip

_PATTERNS = [(compile_path(each.path)[0], each.errors) for each in OPERATIONS]
_PREFIXES = f"(?:{'|'.join(OPENAI_PREFIXES)})".replace("{account_id}", "[^/]*")
_OPENAI_PATH = re.compile(f"{_PREFIXES}(?:/|$)")
_ANTHROPIC_PATH = re.compile(f"{_PREFIXES}/messages(?:/|$)")


def errors_of(path: str) -> Errors:
    """Return the dialect of errors of a path: its operation's, or else that of its beginning."""
    for pattern, errors in _PATTERNS:
        if pattern.match(path):
            return errors
    if _ANTHROPIC_PATH.match(path):
        return ANTHROPIC
    return OPENAI if _OPENAI_PATH.match(path) else NATIVE


@functools.cache
def _encoded_document() -> bytes:
    return encode(openapi_document())


def openapi_document() -> dict[str, Any]:
    """Return the description of the whole API."""
    return document("Skerry", OPERATIONS, in_path=IN_PATH)
