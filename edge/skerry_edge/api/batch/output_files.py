"""Output and error files of batches, written from the queue when a batch has ended.

A file's id follows from its batch, so writing it twice leaves one file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Literal

from skerry_edge.api.batch.target import zone_of
from skerry_edge.api.batch.wire import LineFailure, LineResponse, OutputLine, decode_reply
from skerry_edge.envelopes import encode
from skerry_edge.ledger.batches import OPENAI, Batches
from skerry_regions.queue import BatchRecord, ItemResult, ItemState, Queue
from skerry_regions.zones import GLOBAL, id_in, zone_of_id

PAGE = 100

Content = Literal["output", "error"]

FAILURES: dict[ItemState, LineFailure] = {
    "cancelled": LineFailure("batch_cancelled", "This request was cancelled with its batch."),
    "expired": LineFailure(
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    "dead": LineFailure("internal_error", "This request was lost at each attempt."),
}


def file_id(batch: str, content: Content) -> str:
    """Return the id of a batch's file, whether there is one or not."""
    digest = hashlib.blake2b(f"{batch}/{content}".encode(), digest_size=12).hexdigest()
    return id_in(zone_of_id(batch) or GLOBAL, "file-", digest)


def write_files(batches: Batches, record: BatchRecord) -> None:
    """Keep what came of an OpenAI batch as files; of none there is none. May take seconds."""
    if record.kind != OPENAI:
        return
    if record.succeeded:
        _write(batches, record, "output", lambda item: item.state == "succeeded")
    if record.succeeded < record.total:
        _write(batches, record, "error", lambda item: item.state != "succeeded")


def _write(
    batches: Batches, record: BatchRecord, content: Content, belongs: Callable[[ItemResult], bool]
) -> None:
    lines = (
        encode(_line(record, item)) + b"\n"
        for item in _results(batches.queue, record.id)
        if belongs(item)
    )
    batches.files.put(
        record.tenant,
        file_id(record.id, content),
        f"{record.id}_{content}.jsonl",
        "batch_output",
        lines,
        residency=zone_of(record),
    )


def _results(queue: Queue, batch: str) -> Iterator[ItemResult]:
    last = -1
    while page := queue.results(batch, after=last, limit=PAGE):
        yield from page
        last = page[-1].index


def _line(record: BatchRecord, item: ItemResult) -> OutputLine:
    id = f"batch_req_{record.id.removeprefix('batch_')}_{item.index}"
    if not item.result:
        return OutputLine(id, item.reference or "", None, FAILURES[item.state])
    reply = decode_reply(item.result)
    response = LineResponse(reply.status, reply.request_id, reply.body)
    return OutputLine(id, item.reference or "", response, None)
