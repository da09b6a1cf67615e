"""What an edge needs to take and to do batches, and the bounds of both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from skerry.errors import IdempotencyMismatch, InvalidInput, Overloaded, TaskNotSupported
from skerry_edge.ledger.files import Files
from skerry_edge.ledger.idempotency import HEADER
from skerry_regions.queue import BatchRecord, KeyInUse, NewBatch, NewItem, Queue, QueueRefused

NATIVE, OPENAI = "native", "openai"  # kinds of batches
GENERATION = "text-generation"  # the task whose requests have seeds
FULL_RETRY_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What one submission may hold, and how much of it runs at once. Times in seconds."""

    queued_requests: int = 10_000  # of one `?queueRequest=true`; its body is bounded besides
    file_lines: int = 50_000
    line_bytes: int = 1 << 20
    reported_errors: int = 100  # of an input file's lines
    window_seconds: float = 24 * 3600.0  # until queued requests expire
    longest_window_hours: int = 7 * 24
    max_in_flight: int = 16  # items that run at once on an idle edge
    interactive_weight: int = 8  # items that make room for each interactive request
    longest_pause_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The queue and the files of an edge. `submitted` wakes the dispatcher."""

    queue: Queue
    files: Files
    limits: BatchLimits = field(default_factory=BatchLimits)
    submitted: asyncio.Event = field(default_factory=asyncio.Event)

    async def submit(self, batch: NewBatch, items: Sequence[NewItem]) -> BatchRecord:
        """Queue a batch.

        Raises `InvalidInput`, `IdempotencyMismatch`, `Overloaded` or `Unavailable`.
        """
        try:
            record = await asyncio.to_thread(self.queue.submit, batch, items)
        except KeyInUse as error:
            raise IdempotencyMismatch(f"{HEADER}: {error}.") from None
        except QueueRefused as error:
            if error.is_full:
                message = f"The queue is full: {error}."
                raise Overloaded(message, retry_after=FULL_RETRY_SECONDS) from None
            raise InvalidInput(f"Bad input: {error}") from None
        self.submitted.set()
        return record

    def close(self) -> None:
        """Close both."""
        self.queue.close()
        self.files.close()


def batches_of(batches: Batches | None) -> Batches:
    """Return an edge's queue and files. Raises `TaskNotSupported` where there are none."""
    if batches is None:
        raise TaskNotSupported("This platform keeps no batches.")
    return batches
