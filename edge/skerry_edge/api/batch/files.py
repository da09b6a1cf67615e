"""OpenAI's `/v1/files`, for what batches read and write."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from skerry.errors import InvalidInput, NotFound, TaskNotSupported
from skerry_edge.api.batch.wire import DeletedFile, FileList, FileObject
from skerry_edge.api.edge_request import EdgeRequest
from skerry_edge.api.other_zones import may_be_shown, of_any_zone
from skerry_edge.envelopes import JSONBytes, encode
from skerry_edge.ledger.batches import Batches, batches_of
from skerry_edge.ledger.files import PIECE_BYTES, StoredFile, stored_pieces
from skerry_edge.whole_numbers import whole_number
from skerry_regions.zones import elsewhere, id_in

MAX_FORM_FIELDS = 16
MAX_FIELD_BYTES = 1024
MAX_NAME = 255  # characters of a file's name that are kept
DEFAULT_LIMIT, MAX_LIMIT = 20, 100
FORM = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Which part of a list is requested."""

    after: str | None
    limit: int


async def upload(request: EdgeRequest) -> Response:
    """Handle `POST …/v1/files`: a form with `purpose` and `file`."""
    batches, tenant = tenant_batches(request)
    if not request.headers.get("content-type", "").lower().startswith(FORM):
        raise InvalidInput(f"Bad input: a file is sent as {FORM}")
    try:
        async with request.form(
            max_files=1, max_fields=MAX_FORM_FIELDS, max_part_size=MAX_FIELD_BYTES
        ) as form:
            stored = await _store(request, batches, tenant, form)
    except HTTPException as error:
        raise InvalidInput(f"Bad input: the form cannot be read: {error.detail}") from None
    return JSONBytes(encode(_shown(stored)))


async def _store(request: EdgeRequest, batches: Batches, tenant: str, form: FormData) -> StoredFile:
    purpose, file = form.get("purpose"), form.get("file")
    if not isinstance(file, UploadFile):
        raise InvalidInput("Bad input: file is missing", param="file")
    if purpose != "batch":
        raise TaskNotSupported("Files are for batches: purpose must be 'batch'.", param="purpose")
    name = (file.filename or "file")[:MAX_NAME]
    return await asyncio.to_thread(
        batches.files.put,
        tenant,
        id_in(request.edge.residency, "file-", uuid.uuid4().hex),
        name,
        "batch",
        _chunks(file.file),
        residency=request.residency,
    )


async def list_files(request: EdgeRequest) -> Response:
    """Handle `GET …/v1/files`: newest first unless `order=asc`; `after` and `limit` page through
    them."""
    batches, tenant = tenant_batches(request)
    query = list_query(request)
    files = await asyncio.to_thread(
        batches.files.page,
        tenant,
        purpose=request.query_params.get("purpose") or None,
        after=query.after,
        limit=query.limit + 1,
        newest_first=request.query_params.get("order") != "asc",
    )
    data = [_shown(file) for file in files[: query.limit]]
    return JSONBytes(encode(FileList.of(data, has_more=len(files) > query.limit)))


@of_any_zone
async def retrieve(request: EdgeRequest) -> Response:
    """Handle `GET …/v1/files/{id}`."""
    batches, tenant = tenant_batches(request)
    return JSONBytes(encode(_shown(await _file(batches, tenant, request))))


@of_any_zone
async def content(request: EdgeRequest) -> Response:
    """Handle `GET …/v1/files/{id}/content`: its bytes."""
    batches, tenant = tenant_batches(request)
    file = await _file(batches, tenant, request)
    return StreamingResponse(
        stored_pieces(batches.files, tenant, file),
        media_type="application/octet-stream",
        headers={"content-length": str(file.size)},
    )


@of_any_zone
async def delete(request: EdgeRequest) -> Response:
    """Handle `DELETE …/v1/files/{id}`. A batch that read it goes on."""
    batches, tenant = tenant_batches(request)
    id = (await _file(batches, tenant, request)).id
    if not await asyncio.to_thread(batches.files.delete, tenant, id):
        raise _no_file(request)
    return JSONBytes(encode(DeletedFile(id)))


def list_query(request: EdgeRequest) -> ListQuery:
    """Return `after` and `limit` of a list. Raises `InvalidInput`."""
    limit = whole_number(request.query_params.get("limit") or str(DEFAULT_LIMIT), 1, MAX_LIMIT)
    if limit is None:
        raise InvalidInput(f"Bad input: limit: a number from 1 to {MAX_LIMIT}", param="limit")
    return ListQuery(request.query_params.get("after") or None, limit)


def tenant_batches(request: EdgeRequest) -> tuple[Batches, str]:
    """Return the edge's batches, and whose of them a caller sees."""
    tenant = request.principal.account_id
    return batches_of(request.edge.batches), tenant


async def _file(batches: Batches, tenant: str, request: EdgeRequest) -> StoredFile:
    file = await asyncio.to_thread(batches.files.get, tenant, request.path_params["id"])
    if file is None or not may_be_shown(request, file.residency):
        raise _no_file(request)
    return file


def _no_file(request: EdgeRequest) -> NotFound:
    other = elsewhere(request.path_params["id"], request.edge.residency)
    return NotFound(f"No such file; it may have been kept long enough.{other}")


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    while chunk := file.read(PIECE_BYTES):
        yield chunk


def _shown(file: StoredFile) -> FileObject:
    return FileObject(
        id=file.id,
        bytes=file.size,
        created_at=int(file.created_at),
        expires_at=int(file.expires_at),
        filename=file.filename,
        purpose=file.purpose,
    )
