"""Queues of batches within small limits, and what is put into them."""

from __future__ import annotations

from typing import Protocol

from skerry_regions.queue import (
    BatchRecord,
    Claim,
    NewBatch,
    NewItem,
    Queue,
    QueueLimits,
)

LIMITS = QueueLimits(
    batch_items=8,
    payload_bytes=64,
    result_bytes=64,
    meta_bytes=64,
    tenant_waiting=12,
    tenant_bytes=200,
    attempts=3,
    retention_seconds=1000.0,
)
LEASE = 10.0
MODELS = frozenset({"m"})


class Store(Protocol):
    """A driver's store, with a clock that the suite moves."""

    def open(self) -> Queue:
        """Another worker's or edge's view of the same store, bounded by `LIMITS`."""
        ...

    def pass_time(self, seconds: float) -> None: ...


def batch(
    id: str = "b", *, tenant: str = "t", model: str = "m", key: str | None = None,
    fingerprint: bytes = b"", window: float = 500.0, meta: bytes = b"meta",
) -> NewBatch:  # fmt: skip
    return NewBatch(
        id=id, tenant=tenant, token="token", kind="kind", model=model, target="/target", meta=meta,
        key=key, fingerprint=fingerprint, window_seconds=window,
    )  # fmt: skip


def items(count: int, size: int = 2) -> list[NewItem]:
    return [NewItem(f"{i:0{size}}".encode(), f"r{i}") for i in range(count)]


def claim(queue: Queue, limit: int = 100, owner: str = "w") -> list[Claim]:
    return queue.claim(owner, MODELS, limit, LEASE)


def places(claims: list[Claim]) -> list[tuple[str, int]]:
    return [(each.batch, each.index) for each in claims]


def of(queue: Queue, id: str = "b") -> BatchRecord:
    record = queue.batch(None, id)
    assert record is not None
    return record
