"""OpenAI's `/v1/batches`: an input file's requests, done within a window, answered in files."""

from __future__ import annotations

import asyncio
import uuid

import msgspec
from msgspec import Struct
from starlette.responses import Response

from skerry.errors import InvalidInput, NotFound
from skerry_edge.api.batch.files import list_query, tenant_batches
from skerry_edge.api.batch.input_file import InputFile
from skerry_edge.api.batch.output_files import file_id
from skerry_edge.api.batch.target import lasting_token, target_of, zone_of
from skerry_edge.api.batch.wire import (
    BatchList,
    BatchObject,
    BatchRequest,
    BatchStatus,
    LineError,
    LineErrors,
    RequestCounts,
)
from skerry_edge.api.bodies import Body
from skerry_edge.api.edge_request import EdgeRequest, read_json
from skerry_edge.api.handler import key_of
from skerry_edge.api.other_zones import may_be_shown, of_any_zone
from skerry_edge.envelopes import JSONBytes, encode
from skerry_edge.ledger.batches import OPENAI, Batches, batches_of
from skerry_edge.ledger.files import stored_pieces
from skerry_regions.queue import BatchRecord, NewBatch
from skerry_regions.zones import elsewhere, id_in

HOUR = 3600.0


class Meta(Struct):
    """What a batch says of itself, as the queue keeps it."""

    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None
    errors: list[LineError] = []
    residency: str | None = None  # as `Bound` has it


_request_body = Body(BatchRequest)
_meta_decoder = msgspec.json.Decoder(Meta)


async def create(request: EdgeRequest) -> Response:
    """Handle `POST …/v1/batches`. An input file with mistakes makes a batch that has failed; one
    that is bound to a zone makes one that is bound to it."""
    edge, principal = request.edge, request.principal
    batches, tenant = batches_of(edge.batches), principal.account_id
    asked = await read_json(request, _request_body)
    window_seconds = _window(asked.completion_window, batches.limits.longest_window_hours)
    file = await asyncio.to_thread(batches.files.get, tenant, asked.input_file_id)
    if file is None or file.purpose != "batch":
        raise InvalidInput(
            f"Bad input: input_file_id: there is no file {asked.input_file_id} of the purpose "
            f"'batch'.{elsewhere(asked.input_file_id, edge.residency)}",
            param="input_file_id",
        )
    content = InputFile(asked.endpoint, edge.spec, batches.limits)
    await asyncio.to_thread(content.read, stored_pieces(batches.files, tenant, file))
    zone = file.residency or request.residency
    meta = Meta(
        endpoint=asked.endpoint,
        input_file_id=asked.input_file_id,
        completion_window=asked.completion_window,
        metadata=asked.metadata,
        errors=content.errors,
        residency=zone,
    )
    key = key_of(request)
    record = await batches.submit(
        NewBatch(
            id=id_in(edge.residency, "batch_", uuid.uuid4().hex),
            tenant=tenant,
            token=lasting_token(principal),
            kind=OPENAI,
            model=content.model.id if content.model else "",
            target=target_of(
                request,
                f"/client/v4/accounts/{tenant}/ai{asked.endpoint}",
                residency=zone,
            ),
            meta=encode(meta),
            key=key.key if key else None,
            fingerprint=key.request if key else b"",
            window_seconds=window_seconds,
        ),
        [] if content.errors else content.items,
    )
    return JSONBytes(encode(await _shown(batches, record)))


@of_any_zone
async def retrieve(request: EdgeRequest) -> Response:
    """Handle `GET …/v1/batches/{id}`."""
    batches, tenant = tenant_batches(request)
    record = await asyncio.to_thread(batches.queue.batch, tenant, request.path_params["id"])
    return JSONBytes(encode(await _shown(batches, _known(record, request))))


async def list_batches(request: EdgeRequest) -> Response:
    """Handle `GET …/v1/batches`: newest first; `after` and `limit` page through them."""
    batches, tenant = tenant_batches(request)
    query = list_query(request)
    records = await asyncio.to_thread(
        batches.queue.batches, tenant=tenant, kind=OPENAI, after=query.after, limit=query.limit + 1
    )
    data = [await _shown(batches, record) for record in records[: query.limit]]
    return JSONBytes(encode(BatchList.of(data, has_more=len(records) > query.limit)))


@of_any_zone
async def cancel(request: EdgeRequest) -> Response:
    """Handle `POST …/v1/batches/{id}/cancel`: what runs is broken off, what is done stays."""
    batches, tenant = tenant_batches(request)
    id = request.path_params["id"]
    _known(await asyncio.to_thread(batches.queue.batch, tenant, id), request)
    record = await asyncio.to_thread(batches.queue.cancel, tenant, id)
    batches.submitted.set()
    return JSONBytes(encode(await _shown(batches, _known(record, request))))


def _known(record: BatchRecord | None, request: EdgeRequest) -> BatchRecord:
    is_it = record is not None and record.kind == OPENAI
    if record is None or not is_it or not may_be_shown(request, zone_of(record)):
        other = elsewhere(request.path_params["id"], request.edge.residency)
        raise NotFound(f"No such batch; it may have been kept long enough.{other}")
    return record


def _window(text: str, longest_hours: int) -> float:
    """Return seconds of a window such as `24h`. Raises `InvalidInput`."""
    hours = int(text.removesuffix("h"))
    if hours > longest_hours:
        raise InvalidInput(
            f"Bad input: completion_window: at most {longest_hours}h", param="completion_window"
        )
    return hours * HOUR


# --- how a batch is shown ------------------------------------------------------------------------


async def _shown(batches: Batches, record: BatchRecord) -> BatchObject:
    files = await asyncio.to_thread(_files, batches, record)
    return batch_object(record, *files)


def _files(batches: Batches, record: BatchRecord) -> tuple[str | None, str | None]:
    """Return ids of the output and the error file, if they are there."""
    if record.closed_at is None:
        return None, None
    output, error = file_id(record.id, "output"), file_id(record.id, "error")
    get = batches.files.get
    return (
        output if get(record.tenant, output) else None,
        error if get(record.tenant, error) else None,
    )


def batch_object(record: BatchRecord, output: str | None, error: str | None) -> BatchObject:
    """Return a batch as OpenAI's clients know it."""
    meta = _meta_decoder.decode(record.meta)
    status = _status(record, meta)
    ended, closed = _seconds(record.ended_at), _seconds(record.closed_at)
    is_cancelled = record.ending == "cancelled"
    return BatchObject(
        id=record.id,
        endpoint=meta.endpoint,
        model=record.model or None,
        errors=LineErrors(meta.errors) if meta.errors else None,
        input_file_id=meta.input_file_id,
        completion_window=meta.completion_window,
        status=status,
        output_file_id=output,
        error_file_id=error,
        created_at=int(record.created_at),
        in_progress_at=None if meta.errors else int(record.created_at),
        expires_at=int(record.expires_at),
        finalizing_at=ended if record.ending == "completed" and not meta.errors else None,
        completed_at=closed if status == "completed" else None,
        failed_at=ended if meta.errors else None,
        expired_at=closed if status == "expired" else None,
        cancelling_at=ended if is_cancelled else None,
        cancelled_at=closed if is_cancelled else None,
        request_counts=RequestCounts(record.total, record.succeeded, record.failed),
        metadata=meta.metadata,
    )


def _status(record: BatchRecord, meta: Meta) -> BatchStatus:
    if meta.errors:
        return "failed"
    if record.ending is None:
        return "in_progress"
    if record.closed_at is None:
        return "cancelling" if record.ending == "cancelled" else "finalizing"
    return record.ending


def _seconds(time: float | None) -> int | None:
    return None if time is None else int(time)
