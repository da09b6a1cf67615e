"""Queued requests and batches as clients send and parse them, in both dialects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, Protocol, Self, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from skerry.wire import ApiMessage

Reference = Annotated[str, Meta(max_length=512)]

# --- Workers AI ----------------------------------------------------------------------------------


class QueuedBody(Struct):
    """Body of a call with `?queueRequest=true`: requests, one request, or a question after them."""

    requests: list[Raw] | None = None
    request_id: Annotated[str, Meta(max_length=128)] | None = None


class QueuedStatus(Struct):
    """What a submission is answered with, and a question that comes too early."""

    status: Literal["queued", "running"]
    request_id: str
    model: str


class QueuedAnswer(Struct, kw_only=True):
    """One of `responses`, in no stated order; `id` is its place among the requests."""

    id: int
    success: bool
    result: Any
    errors: list[ApiMessage] | UnsetType = UNSET
    external_reference: str | UnsetType = UNSET


class QueuedUsage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class QueuedAnswers(Struct):
    """What a question is answered with once all requests are done."""

    responses: list[QueuedAnswer]
    usage: QueuedUsage


# --- OpenAI: lists -------------------------------------------------------------------------------


class Listable(Protocol):
    """What a list may hold."""

    id: str


L = TypeVar("L", bound=Listable)


class ListPage(Struct, Generic[L], kw_only=True):
    """A part of a list, as OpenAI's clients page through it."""

    object: Literal["list"] = "list"
    data: Sequence[L]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, data: Sequence[L], *, has_more: bool) -> Self:
        """Return the page that has these."""
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return cls(data=data, first_id=first, last_id=last, has_more=has_more)


# --- OpenAI: files -------------------------------------------------------------------------------


class FileObject(Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int  # Unix seconds, as all times here
    expires_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileList(ListPage[FileObject]):
    pass


class DeletedFile(Struct):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


# --- OpenAI: batches -----------------------------------------------------------------------------

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
BatchStatus = Literal[
    "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


class BatchRequest(Struct, kw_only=True):
    """Body of `POST …/v1/batches`."""

    input_file_id: Annotated[str, Meta(max_length=128)]
    endpoint: Endpoint
    completion_window: Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,2}h$")]
    metadata: Metadata | None = None


class RequestCounts(Struct):
    total: int = 0
    completed: int = 0
    failed: int = 0


class LineError(Struct, frozen=True):
    """What is wrong with an input file."""

    code: str
    message: str
    line: int | None = None  # from 1
    param: str | None = None


class LineErrors(Struct):
    data: list[LineError]
    object: Literal["list"] = "list"


class BatchObject(Struct, kw_only=True):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: LineErrors | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts
    metadata: dict[str, str] | None = None


class BatchList(ListPage[BatchObject]):
    pass


# --- OpenAI: lines of files ----------------------------------------------------------------------


class InputLine(Struct):
    """A line of an input file."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: str
    url: str
    body: dict[str, Raw]


class LineResponse(Struct):
    """What the endpoint would have answered."""

    status_code: int
    request_id: str
    body: Raw


class LineFailure(Struct):
    code: str
    message: str


class OutputLine(Struct):
    """A line of an output file or an error file; exactly one of `response` and `error`."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineFailure | None


class Reply(Struct):
    """What an endpoint answered to an item, as the queue keeps it."""

    status: int
    request_id: str
    body: Raw  # JSON


encode_reply = msgspec.json.Encoder().encode
decode_reply = msgspec.json.Decoder(Reply).decode
