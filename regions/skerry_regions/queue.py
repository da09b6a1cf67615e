"""The batch queue: requests that may wait, kept until they are done and for a while after.

A batch is a list of items that a tenant submits at once. A worker claims items under a lease,
renews it while it works, and settles each one exactly once; an item whose worker dies is claimed
again when the lease lapses. What an item says, and what came of it, are bytes to the queue.

    submit ─▶ waiting ─ claim ─▶ leased ─ settle ─▶ succeeded | failed | dead ─▶ pruned
                 ▲                 │
                 └── defer, lapse ─┘          cancel, expire: from waiting or leased, at once

Leases and pauses are durations on the store's clock; the times of day in a record are for people.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from msgspec import Struct

LEASE_SECONDS = 5.0
RENEW_SECONDS = 1.0

ItemState = Literal["waiting", "succeeded", "failed", "dead", "cancelled", "expired"]
"""`failed` is the item's own fault, `dead` has used up its attempts and may be tried again."""

Settled = Literal["succeeded", "failed", "dead"]
Ending = Literal["completed", "cancelled", "expired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """What a queue holds at most. Sizes in bytes, times in seconds."""

    batch_items: int = 50_000
    payload_bytes: int = 1 << 20  # of one item
    result_bytes: int = 8 << 20  # of one item
    meta_bytes: int = 256 << 10
    tenant_waiting: int = 200_000  # items of a tenant that are not done
    tenant_bytes: int = 1 << 30  # of a tenant: payloads and results
    attempts: int = 5
    retention_seconds: float = 7 * 86400.0  # of results, after the batch ended


class NewItem(Struct, frozen=True):
    """One request. `reference` is the caller's own name for it."""

    payload: bytes
    reference: str | None = None


class NewBatch(Struct, frozen=True, kw_only=True):
    """What items of one submission share. `meta` is the caller's and comes back as it is.

    A second batch of the same tenant and `key` is the first one, if its `fingerprint` agrees. Items
    that wait longer than `window_seconds` expire.
    """

    id: str
    tenant: str
    token: str = ""  # id of the API token that it came with
    kind: str
    model: str  # catalog id; only workers that serve it claim the items
    target: str = ""  # where the items are to be sent
    meta: bytes = b""
    key: str | None = None
    fingerprint: bytes = b""  # of what the tenant sent
    window_seconds: float


class BatchRecord(Struct, frozen=True, kw_only=True):
    """A batch as the queue knows it. Times are Unix seconds."""

    id: str
    tenant: str
    kind: str
    model: str
    meta: bytes
    created_at: float
    expires_at: float
    started_at: float | None = None  # when the first item was claimed
    ended_at: float | None = None
    ending: Ending | None = None
    closed_at: float | None = None  # when what follows the end was done
    total: int
    succeeded: int = 0
    failed: int = 0  # dead ones included
    dead: int = 0
    num_bytes: int = 0  # payloads and results

    @property
    def waiting(self) -> int:
        """Return items that are not done and may still be."""
        return 0 if self.ending else self.total - self.succeeded - self.failed


class Claim(Struct, frozen=True, kw_only=True):
    """An item that a worker holds the lease of."""

    item: int  # names the item within the queue
    owner: str
    batch: str
    index: int  # within its batch
    tenant: str
    token: str
    kind: str
    model: str
    target: str
    payload: bytes
    attempt: int  # from 1
    is_last: bool  # no attempt follows this one


class ItemResult(Struct, frozen=True, kw_only=True):
    """What came of an item; `result` is empty when there was none."""

    index: int
    reference: str | None
    state: ItemState
    result: bytes


class QueueRefused(Exception):
    """The submission exceeds a bound; the message says which. `is_full`: it may fit later."""

    def __init__(self, message: str, *, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full


class KeyInUse(Exception):
    """The tenant's idempotency key belongs to a batch of other items."""


class Queue(Protocol):
    """A durable store of batches. Every driver passes one conformance suite.

    Calls block, and may come from any thread or process. All raise `skerry.errors.Unavailable`
    when the store cannot be used.
    """

    def submit(self, batch: NewBatch, items: Sequence[NewItem]) -> BatchRecord:
        """Keep a batch; when this returns it survives the machine. Of a known key: the batch that
        is there. Raises QueueRefused or KeyInUse."""
        ...

    def batch(self, tenant: str | None, id: str) -> BatchRecord | None:
        """Return a batch of a tenant; None: of any."""
        ...

    def batches(
        self, *, tenant: str | None = None, kind: str | None = None,
        after: str | None = None, limit: int = 100,
    ) -> list[BatchRecord]:  # fmt: skip
        """Return batches of a tenant, or of all, newest first; those older than the batch
        `after`."""
        ...

    def results(self, batch: str, *, after: int = -1, limit: int = 100) -> list[ItemResult]:
        """Return items of a batch that are done, by index, beginning behind index `after`."""
        ...

    def cancel(self, tenant: str, id: str) -> BatchRecord | None:
        """End a batch now: items that are not done are cancelled, leased ones included."""
        ...

    def retry(self, tenant: str, id: str) -> int:
        """Give the dead items of a batch new attempts; how many there were. None of a batch that
        was cut short. Raises QueueRefused when more would wait than a tenant's may."""
        ...

    def lead(self, owner: str, lease_seconds: float = LEASE_SECONDS) -> bool:
        """Take or keep the lease of the one worker that claims. False while another holds it."""
        ...

    def claim(
        self, owner: str, models: frozenset[str], limit: int,
        lease_seconds: float = LEASE_SECONDS,
    ) -> list[Claim]:  # fmt: skip
        """Lease items of these models, oldest first, tenants in turn."""
        ...

    def renew(
        self, owner: str, items: Collection[int], lease_seconds: float = LEASE_SECONDS
    ) -> frozenset[int]:
        """Renew a worker's leases of these items; those of them that it still holds."""
        ...

    def settle(self, claim: Claim, state: Settled, result: bytes) -> bool:
        """Say what came of an item. False, and nothing changes, if the lease is gone."""
        ...

    def defer(self, claim: Claim, seconds: float, *, counts: bool) -> bool:
        """Give an item back, to be claimed again after a pause; `counts`: as an attempt."""
        ...

    def release(self, owner: str) -> None:
        """Give everything back at once, uncounted, and lead no longer."""
        ...

    def tend(self) -> None:
        """Do what time brings: late batches expire, items that lost every attempt are dead, results
        that were kept long enough are pruned."""
        ...

    def has_work(self) -> bool:
        """Return whether any batch is not closed. Cheap: idle workers call it all the time."""
        ...

    def ended(self, limit: int = 10) -> list[BatchRecord]:
        """Return batches that ended and are not closed, oldest first."""
        ...

    def close_batch(self, id: str) -> None:
        """Note that what had to follow a batch's end is done."""
        ...

    def close(self) -> None: ...
