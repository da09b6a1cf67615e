"""Bounds of batch queues, the same ones and in the same words for each driver."""

from __future__ import annotations

from collections.abc import Sequence

from skerry_regions.queue import NewBatch, NewItem, QueueLimits, QueueRefused


def submission_bytes(limits: QueueLimits, batch: NewBatch, items: Sequence[NewItem]) -> int:
    """Return bytes of a submission whose parts are within bounds. Raises `QueueRefused`."""
    if len(items) > limits.batch_items:
        raise QueueRefused(f"a batch has at most {limits.batch_items} requests")
    if len(batch.meta) > limits.meta_bytes:
        raise QueueRefused(f"what a batch says of itself has at most {limits.meta_bytes} bytes")
    for index, item in enumerate(items):
        if len(item.payload) > limits.payload_bytes:
            raise QueueRefused(
                f"request {index} has {len(item.payload)} bytes, at most {limits.payload_bytes}"
            )
    return sum(len(item.payload) for item in items)


def check_waiting(limits: QueueLimits, waiting: int, more: int) -> None:
    """Raise `QueueRefused` when so many more items of a tenant may not wait."""
    if waiting + more > limits.tenant_waiting:
        raise QueueRefused(
            f"{waiting} requests wait already, and with these {more} they would be more "
            f"than {limits.tenant_waiting}",
            is_full=True,
        )


def check_stored(limits: QueueLimits, stored: int, more: int) -> None:
    """Raise `QueueRefused` when so many more bytes of a tenant may not be stored."""
    if stored + more > limits.tenant_bytes:
        raise QueueRefused(
            f"requests and results take {stored} bytes already, and with these {more} they "
            f"would be more than {limits.tenant_bytes}",
            is_full=True,
        )


def check_result(limits: QueueLimits, result: bytes) -> None:
    """Raise ValueError for a result that is too large."""
    if len(result) > limits.result_bytes:
        raise ValueError(f"a result of {len(result)} bytes, at most {limits.result_bytes}")
