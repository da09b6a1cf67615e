"""A batch as one record, and every change of it as a function of the record before.

Items are claimed in order, so `next` says which were never claimed, and only those that were and
are not done lie in `open`. What is neither has its result. Leases and pauses are durations, which
whoever reads the record counts from when it saw the item's `turn`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from skerry_regions.queue import BatchRecord, Ending, Settled

MAX_OPEN = 1000  # claimed and not done: so many make a record of tens of kB
KNOWN_CHANGES = 16  # of which a record says that they were made
VERSION = 1


class OpenItem(Struct, frozen=True, array_like=True):
    """An item that was claimed and is not done."""

    owner: str  # "": given back
    attempts: int
    turn: int  # another one after each claim, renewal and return
    seconds: float  # of the lease; of the pause of one that was given back


class BatchState(Struct, frozen=True, kw_only=True):
    """What lies under a batch's key, but for what is written once (`BatchHeader`)."""

    version: int = VERSION
    id: str
    tenant: str
    kind: str
    model: str
    key: str  # where its idempotency key lies; "": it has none
    content: str  # part of the keys of its items and results
    number: int  # later batches have higher ones
    total: int
    created_at: float
    window_seconds: float
    expires_at: float
    started_at: float | None = None
    ended_at: float | None = None
    ending: Ending | None = None
    closed_at: float | None = None
    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    num_bytes: int = 0
    waiting_bytes: int = 0  # payloads of items that are not done
    dead_bytes: int = 0  # payloads of dead items
    dead_result_bytes: int = 0
    next: int = 0  # the first item that was never claimed
    open: dict[int, OpenItem] = {}
    dead_items: bytes = b""  # a bit for each
    revived: bytes = b""  # a bit for each dead one that is to be tried again
    turns: int = 0
    changes: tuple[bytes, ...] = ()  # the last ones

    @property
    def waiting(self) -> int:
        """Return items that are not done and may still be."""
        return 0 if self.ending else self.total - self.succeeded - self.failed


class BatchHeader(Struct, frozen=True):
    """What of a batch never changes and only some need."""

    token: str
    target: str
    meta: bytes
    blocks: tuple[int, ...]  # the first item of each
    key: str | None = None  # its idempotency key; None of headers of before, too


class ItemOutcome(Struct, frozen=True):
    """What lies under `r.`."""

    state: Settled
    result: bytes
    apart: str = ""  # where the result lies, unless it is here


encode = msgspec.msgpack.Encoder().encode
decode_state = msgspec.msgpack.Decoder(BatchState).decode
decode_header = msgspec.msgpack.Decoder(BatchHeader).decode
decode_outcome = msgspec.msgpack.Decoder(ItemOutcome).decode
decode_block = msgspec.msgpack.Decoder(tuple[bytes, ...]).decode


def record_of(state: BatchState, meta: bytes) -> BatchRecord:
    """Return a batch as the queue's callers know it."""
    return BatchRecord(
        id=state.id, tenant=state.tenant, kind=state.kind, model=state.model, meta=meta,
        created_at=state.created_at, expires_at=state.expires_at, started_at=state.started_at,
        ended_at=state.ended_at, ending=state.ending, closed_at=state.closed_at, total=state.total,
        succeeded=state.succeeded, failed=state.failed, dead=state.dead, num_bytes=state.num_bytes,
    )  # fmt: skip


def indexes_of(bits: bytes) -> Iterator[int]:
    """Return the items whose bits are set, in order."""
    for number, byte in enumerate(bits):
        if byte:
            yield from (8 * number + bit for bit in range(8) if byte >> bit & 1)


def with_bits(bits: bytes, indexes: Collection[int], *, is_set: bool) -> bytes:
    """Return bits of which these are set, or cleared."""
    changed = bytearray(bits)
    for index in indexes:
        if is_set:
            changed.extend(bytes(max(0, index // 8 + 1 - len(changed))))
            changed[index // 8] |= 1 << index % 8
        elif index // 8 < len(changed):
            changed[index // 8] &= ~(1 << index % 8)
    return bytes(changed)


def claimable(
    state: BatchState, due: Mapping[int, float], now: float, most: int, limit: int
) -> list[int]:
    """Return so many items that may be claimed, in their order; `due` is when open ones may be."""
    if state.ending:
        return []
    fresh = [
        index for index, item in state.open.items() if not item.seconds and item.attempts < most
    ]
    room = min(limit, MAX_OPEN - len(state.open))
    untouched: list[int] = []
    for index in indexes_of(state.revived):
        if len(untouched) >= room:
            break
        untouched.append(index)
    behind = min(state.total, state.next + max(0, room - len(untouched)))
    untouched += range(state.next, behind)
    late = sorted(
        (due[index], index)
        for index, item in state.open.items()
        if item.seconds and item.attempts < most and due[index] <= now
    )
    return (sorted(fresh + untouched) + [index for _, index in late])[:limit]


def with_claims(
    state: BatchState,
    indexes: Collection[int],
    owner: str,
    lease: float,
    now: float,
    unsent: Collection[int] = (),
) -> BatchState:
    """Lease items that are claimable. Those `unsent` are the owner's already: an attempt of theirs
    is counted that was never made."""
    opened, turn = dict(state.open), state.turns + 1
    for index in indexes:
        before = opened.get(index)
        attempts = 0 if before is None else before.attempts
        attempts += index not in unsent
        opened[index] = OpenItem(owner, attempts, turn, lease)
    return replace(
        state,
        open=opened,
        turns=turn,
        next=max(state.next, *(index + 1 for index in indexes)),
        revived=with_bits(state.revived, indexes, is_set=False),
        started_at=now if state.started_at is None else state.started_at,
    )


def with_renewed(
    state: BatchState, indexes: Collection[int], owner: str, lease: float
) -> BatchState:
    """Renew the leases of items that are an owner's."""
    turn = state.turns + 1
    renewed = {index: OpenItem(owner, state.open[index].attempts, turn, lease) for index in indexes}
    return replace(state, open=state.open | renewed, turns=turn)


def with_returned(
    state: BatchState, indexes: Collection[int], seconds: float, *, counts: bool
) -> BatchState:
    """Give items back for so long; `counts`: as attempts."""
    turn = state.turns + 1
    returned = {
        index: OpenItem("", state.open[index].attempts - (not counts), turn, seconds)
        for index in indexes
    }
    return replace(state, open=state.open | returned, turns=turn)


def with_result(
    state: BatchState, index: int, settled: Settled, payload: int, result: int, now: float
) -> BatchState:
    """Enter an item that is done, with the bytes of its payload and its result; the last one ends
    the batch."""
    opened = {key: item for key, item in state.open.items() if key != index}
    is_dead, has_succeeded = settled == "dead", settled == "succeeded"
    after = replace(
        state,
        open=opened,
        succeeded=state.succeeded + has_succeeded,
        failed=state.failed + (not has_succeeded),
        dead=state.dead + is_dead,
        num_bytes=state.num_bytes + result - (0 if is_dead else payload),
        waiting_bytes=state.waiting_bytes - payload,
    )
    if is_dead:
        after = replace(
            after,
            dead_items=with_bits(state.dead_items, [index], is_set=True),
            dead_bytes=state.dead_bytes + payload,
            dead_result_bytes=state.dead_result_bytes + result,
        )
    return after if after.waiting else replace(after, ended_at=now, ending="completed")


def with_end(state: BatchState, ending: Ending, now: float) -> BatchState:
    """End a batch before all its items are done."""
    return replace(
        state,
        ended_at=now,
        ending=ending,
        num_bytes=state.num_bytes - state.waiting_bytes,
        waiting_bytes=0,
    )


def with_revived(state: BatchState, now: float) -> BatchState:
    """Have dead items wait again."""
    return replace(
        state,
        failed=state.failed - state.dead,
        dead=0,
        revived=with_bits(state.revived, [*indexes_of(state.dead_items)], is_set=True),
        dead_items=b"",
        num_bytes=state.num_bytes - state.dead_result_bytes,
        waiting_bytes=state.waiting_bytes + state.dead_bytes,
        dead_bytes=0,
        dead_result_bytes=0,
        expires_at=now + state.window_seconds,
        ended_at=None,
        ending=None,
        closed_at=None,
    )


def done_items(state: BatchState, after: int, limit: int) -> list[tuple[int, bool]]:
    """Return items that are done, by index, behind `after`, and whether each has a result."""
    revived = {*indexes_of(state.revived)}
    found: list[tuple[int, bool]] = []
    for index in range(after + 1, state.total if state.ending else state.next):
        if len(found) >= limit:
            break
        has_result = index < state.next and index not in state.open and index not in revived
        if has_result or state.ending:
            found.append((index, has_result))
    return found
