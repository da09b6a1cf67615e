"""Workers AI's async batch: `?queueRequest=true` queues requests, and fetches their answers.

    {"requests": [{…, "external_reference": "a"}, …]}  ─▶ {"status": "queued", "request_id": …}
    {"request_id": …}  ─▶ {"status": "queued" | "running"}, at the end {"responses": […], "usage"}

A body with neither is one request. What is wrong with a request is said in its own answer.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator

import msgspec
from msgspec import UNSET, Raw
from starlette.responses import Response, StreamingResponse

from skerry.errors import (
    InternalError,
    InvalidInput,
    NotFound,
    RequestError,
    SkerryError,
    Unavailable,
)
from skerry.wire import ApiMessage, RunOptions
from skerry_edge.api.batch.rows import Fields, fields_of, payload_of
from skerry_edge.api.batch.target import Bound, lasting_token, target_of, zone_of
from skerry_edge.api.batch.wire import (
    QueuedAnswer,
    QueuedBody,
    QueuedStatus,
    QueuedUsage,
    Reference,
    decode_reply,
)
from skerry_edge.api.bodies import decode
from skerry_edge.api.edge_request import EdgeRequest
from skerry_edge.api.handler import key_of
from skerry_edge.api.other_zones import from_elsewhere, may_be_shown
from skerry_edge.envelopes import Dialect, JSONBytes, encode
from skerry_edge.gate.grants import check_model
from skerry_edge.ledger.batches import (
    NATIVE,
    Batches,
    batches_of,
)
from skerry_edge.text.prompts import NATIVE_TEMPERATURE, OPENAI_TEMPERATURE
from skerry_regions.models.catalog import ModelSpec
from skerry_regions.queue import BatchRecord, ItemResult, NewBatch, NewItem
from skerry_regions.zones import elsewhere, id_in

PAGE = 100  # answers that are read at once
REFERENCE = "external_reference"
RESULT = b"\0"  # stands for the result in an envelope; JSON has no such byte


class Envelope(msgspec.Struct):
    """What `/ai/run` answered to one request."""

    result: Raw = Raw(b"{}")
    errors: list[ApiMessage] = []


class WithUsage(msgspec.Struct):
    usage: QueuedUsage | None = None


_body_decoder = msgspec.json.Decoder(QueuedBody)
_reference_decoder = msgspec.json.Decoder(Reference | None)
_envelope_decoder = msgspec.json.Decoder(Envelope)
_usage_decoder = msgspec.json.Decoder(WithUsage)


def is_asked(request: EdgeRequest, options: RunOptions | None) -> bool:
    """Return whether the caller wants to come back for the answer."""
    if options is not None and options.queue_request:
        return True
    return request.query_params.get("queueRequest", "").lower() == "true"


async def answer(request: EdgeRequest, spec: ModelSpec, body: bytes, dialect: Dialect) -> Response:
    """Queue requests for a model, or return their answers."""
    edge, principal = request.edge, request.principal
    batches, tenant = batches_of(edge.batches), principal.account_id
    asked = decode(_body_decoder, body)
    if asked.request_id is not None and asked.requests is None:
        return await _report(request, spec, asked.request_id, dialect)
    if principal.models:
        check_model(spec, principal.models)
    requests = [body] if asked.requests is None else asked.requests
    most = batches.limits.queued_requests
    if not 1 <= len(requests) <= most:
        raise InvalidInput(
            f"Bad input: requests: 1 to {most}, got {len(requests)}", param="requests"
        )
    key, zone = key_of(request), request.residency
    record = await batches.submit(
        NewBatch(
            id=id_in(edge.residency, "", str(uuid.uuid4())),
            tenant=tenant,
            token=lasting_token(principal),
            kind=NATIVE,
            model=spec.id,
            target=target_of(
                request, f"/client/v4/accounts/{tenant}/ai/run/{spec.id}", residency=zone
            ),
            meta=encode(Bound(zone)),
            key=key.key if key else None,
            fingerprint=key.request if key else b"",
            window_seconds=batches.limits.window_seconds,
        ),
        [_item(spec, each, index) for index, each in enumerate(requests)],
    )
    return JSONBytes(dialect.wrap(encode(QueuedStatus("queued", record.id, spec.id))))


def _item(spec: ModelSpec, body: bytes | Raw, index: int) -> NewItem:
    temperature = OPENAI_TEMPERATURE if spec.answer == "chat" else NATIVE_TEMPERATURE
    try:
        fields: Fields = fields_of(body)
        reference = decode(_reference_decoder, bytes(fields.pop(REFERENCE, Raw(b"null"))))
        return NewItem(payload_of(fields, spec, temperature), reference)
    except RequestError as error:
        message = f"requests[{index}]: {error.message}"
        raise type(error)(message, param=f"requests[{index}]") from None


# --- what came of them ---------------------------------------------------------------------------


async def _report(request: EdgeRequest, spec: ModelSpec, id: str, dialect: Dialect) -> Response:
    edge, tenant = request.edge, request.principal.account_id
    batches = batches_of(edge.batches)
    record = await asyncio.to_thread(batches.queue.batch, tenant, id)
    is_it = record is not None and record.kind == NATIVE and record.model == spec.id
    if record is None or not is_it or not may_be_shown(request, zone_of(record)):
        if (answer := await from_elsewhere(request, id)) is not None:
            return answer
        raise NotFound(
            "No such request of this model; its answers may have been kept long enough."
            + elsewhere(id, edge.residency)
        )
    if record.ended_at is None:
        waiting = QueuedStatus("running" if record.started_at else "queued", id, spec.id)
        return JSONBytes(dialect.wrap(encode(waiting)))
    before, _, after = dialect.wrap(RESULT).partition(RESULT)
    return StreamingResponse(
        _answers(batches, record, before, after), media_type="application/json"
    )


async def _answers(
    batches: Batches, record: BatchRecord, before: bytes, after: bytes
) -> AsyncGenerator[bytes, None]:
    """Yield the answers page by page, so that a long batch is never in memory as a whole."""
    yield before + b'{"responses":['
    usage, last, comma = QueuedUsage(), -1, b""
    while page := await asyncio.to_thread(batches.queue.results, record.id, after=last, limit=PAGE):
        last = page[-1].index
        for each in page:
            told = _answer(each)
            _add_usage(usage, told)
            yield comma + encode(told)
            comma = b","
    yield b'],"usage":' + encode(usage) + b"}" + after


def _answer(item: ItemResult) -> QueuedAnswer:
    reference = UNSET if item.reference is None else item.reference
    if not item.result:
        error = _why_none(item)
        return QueuedAnswer(
            id=item.index,
            success=False,
            result={},
            errors=[ApiMessage(f"AiError: {error.message}", error.number)],
            external_reference=reference,
        )
    told = _envelope_decoder.decode(decode_reply(item.result).body)
    return QueuedAnswer(
        id=item.index,
        success=not told.errors,
        result=told.result,
        errors=told.errors or UNSET,
        external_reference=reference,
    )


def _why_none(item: ItemResult) -> SkerryError:
    match item.state:
        case "cancelled":
            return RequestError("The request was cancelled.")
        case "expired":
            return Unavailable("The request waited too long.")
        case _:
            return InternalError("The request was lost at each attempt.")


def _add_usage(usage: QueuedUsage, told: QueuedAnswer) -> None:
    if not isinstance(told.result, Raw):
        return
    try:
        used = _usage_decoder.decode(told.result).usage
    except msgspec.ValidationError:  # not an object, or one that counts otherwise
        return
    if used is not None:
        usage.prompt_tokens += used.prompt_tokens
        usage.completion_tokens += used.completion_tokens
        usage.total_tokens += used.total_tokens
