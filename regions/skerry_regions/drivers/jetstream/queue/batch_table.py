"""The records of a queue on JetStream: one message per batch, which says how far it has come.

b.BATCH                 the record: each change of a batch is one of it, under its sequence
t.TENANT                what waits and what is stored of a tenant, changed with its batches
k.TENANT.DIGEST         an idempotency key: its batch, and the fingerprint
x.TENANT.NUMBER.BATCH   of each batch, for lists
o.BATCH                 of each that is not closed
d.END.BATCH             of each that ended, with what is to be deleted after the retention
s.CONTENT               a submission that is under way, or died
h.CONTENT  n.CONTENT    a batch's header; its items' references
i.CONTENT.BLOCK         items' payloads, many together
r.CONTENT.INDEX         an item's result; p.CONTENT.INDEX.TURN: one that is too large for it
l                       who leads
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from skerry.errors import Unavailable
from skerry_regions.drivers.jetstream.batch_write import write_together
from skerry_regions.drivers.jetstream.queue.batch_state import (
    KNOWN_CHANGES,
    BatchHeader,
    BatchState,
    decode_block,
    decode_header,
    decode_state,
    encode,
    record_of,
)
from skerry_regions.drivers.jetstream.specs import key_of
from skerry_regions.drivers.jetstream.stream import KeyedStream, RevisionConflict, Write
from skerry_regions.drivers.jetstream.values import each_of, read_value, write_value
from skerry_regions.drivers.queue_bounds import check_stored, check_waiting
from skerry_regions.queue import BatchRecord, QueueLimits

ATTEMPTS = 64  # at a record, while others change it
CHANGE_SECONDS = 5.0  # for one write; its caller tries again
LOOK_SECONDS = 1.0  # for which a record of another's may be old where it only plans
KEPT_VALUES, LARGE_BYTES = 16, 2 << 20  # headers, references and blocks in memory
DONE, SWEPT = b"done", b"swept"  # what lies under `s.` of a submission that has ended

T = TypeVar("T")
Decide = Callable[[BatchState], tuple[BatchState, Sequence[Write]] | None]
"""A batch after a change, and what is written with it; None: there is nothing to change."""


class TenantTotals(Struct, frozen=True):
    """What lies under `t.`."""

    waiting: int = 0
    num_bytes: int = 0


class Remains(Struct, frozen=True):
    """What lies under `d.`: all that is of a batch, but for its record."""

    id: str
    content: str
    listed: str
    key: str


_totals = msgspec.msgpack.Decoder(TenantTotals).decode


class BatchTable:
    """Reads and changes batches. Calls come from threads and wait for the connection's loop."""

    def __init__(
        self,
        stream: KeyedStream,
        loop: asyncio.AbstractEventLoop,
        limits: QueueLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._stream = stream
        self._loop = loop
        self._limits = limits or QueueLimits()
        self._clock = clock
        self._wall_clock = wall_clock
        self._changing = asyncio.Lock()  # so that changes of one edge do not conflict
        self._values: dict[str, bytes] = {}  # that never change
        self._open: dict[str, tuple[float, BatchState]] = {}  # and when each was read
        self._seen: dict[str, dict[int, tuple[int, float]]] = {}  # turns of open items, and when

    def close(self) -> None:
        """Do nothing: the connection is its owner's."""

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(self._noting(work), self._loop).result()

    async def _noting(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except Unavailable:
            # Those who hold leases could not renew them either: they count from the next look.
            self._forget_times()
            raise

    def _forget_times(self) -> None:
        self._seen.clear()
        self._open.clear()

    # --- reading ----------------------------------------------------------------------------------

    async def _state(self, id: str) -> tuple[BatchState, int] | None:
        """Return a batch's record, and its sequence."""
        found = await self._stored_state(key_of(id))
        if found is None:
            self._open.pop(id, None)
            self._seen.pop(id, None)
        return found

    async def _stored_state(self, key: str) -> tuple[BatchState, int] | None:
        stored = await self._stream.last(f"b.{key}")
        if stored is None or not stored.data:
            return None
        state = decode_state(stored.data)
        self._observe(state, self._clock())
        return state, stored.sequence

    def _observe(self, state: BatchState, at: float) -> None:
        """Note since when items' leases and pauses are counted here."""
        known = self._seen.get(state.id, {})
        self._open[state.id] = time.monotonic(), state
        self._seen[state.id] = {
            index: known[index]
            if index in known and known[index][0] == item.turn
            else (item.turn, at)
            for index, item in state.open.items()
        }

    def _due(self, state: BatchState) -> dict[int, float]:
        """Return when each open item may be claimed again."""
        seen, now = self._seen.get(state.id, {}), self._clock()
        return {
            index: (seen[index][1] if index in seen else now) + item.seconds
            for index, item in state.open.items()
        }

    async def _open_batches(self) -> list[BatchState]:
        """Return batches that are not closed, oldest first, as of the last second."""
        keys = [key.removeprefix("o.") for key in await self._stream.keys("o.*")]
        late = time.monotonic() - LOOK_SECONDS
        by_key = {key_of(id): state for id, (at, state) in self._open.items() if at > late}
        late_keys = [key for key in keys if key not in by_key]
        found = await each_of(late_keys, self._stored_state)
        states = [by_key[key] for key in keys if key in by_key]
        states += [each[0] for each in found if each is not None]
        self._open = {state.id: self._open[state.id] for state in states if state.id in self._open}
        return sorted(states, key=lambda state: (state.number, state.id))

    async def _value(self, key: str) -> bytes:
        """Return a value that is written before what names it."""
        value = self._values.pop(key, None)
        if value is None:
            value = await read_value(self._stream, key)
        if value is None:
            raise Unavailable(f"{self._stream.name} has lost {key}.")
        if len(value) <= LARGE_BYTES:
            self._values[key] = value
        while len(self._values) > KEPT_VALUES:
            self._values.pop(next(iter(self._values)))
        return value

    async def _write_value(self, key: str, value: bytes) -> None:
        await write_value(self._stream, key, value, seconds=CHANGE_SECONDS)

    async def _header(self, state: BatchState) -> BatchHeader:
        return decode_header(await self._value(f"h.{state.content}"))

    async def _record(self, state: BatchState) -> BatchRecord:
        return record_of(state, (await self._header(state)).meta)

    async def _payload(self, state: BatchState, index: int) -> bytes:
        blocks = (await self._header(state)).blocks
        block = max(number for number, first in enumerate(blocks) if first <= index)
        payloads = decode_block(await self._value(f"i.{state.content}.{block}"))
        return payloads[index - blocks[block]]

    # --- changing ---------------------------------------------------------------------------------

    async def _change(self, id: str, decide: Decide) -> BatchState | None:
        """Return a batch after a change; None where there is none, or nothing to change."""
        change = secrets.token_bytes(6)
        async with self._changing:
            for _ in range(ATTEMPTS):
                began, found = self._clock(), await self._state(id)
                if found is None:
                    return None
                before, sequence = found
                if change in before.changes:  # its answer was lost
                    return before
                decided = decide(before)
                if decided is None:
                    return None
                after, writes = decided
                after = replace(after, changes=(*before.changes, change)[-KNOWN_CHANGES:])
                record = Write(f"b.{key_of(id)}", encode(after), sequence)
                writes = [*writes, *markers(before, after)]
                try:
                    totals = await self._with_totals(after.tenant, *difference(before, after))
                    await self._together([*totals, *writes, record])
                except RevisionConflict:
                    continue
                self._observe(after, began)
                return after
        raise Unavailable("The batch is changed by too many at once.")

    async def _together(self, writes: Sequence[Write]) -> None:
        await write_together(self._stream, writes, seconds=CHANGE_SECONDS)

    async def _with_totals(self, tenant: str, waiting: int, num_bytes: int) -> list[Write]:
        """Return the write of a tenant's totals with so much more; none where it is nothing.

        Raises `QueueRefused` where more would wait than may.
        """
        if not waiting and not num_bytes:
            return []
        key = f"t.{key_of(tenant)}"
        stored = await self._stream.last(key)
        totals = TenantTotals() if stored is None else _totals(stored.data)
        if waiting > 0:
            check_waiting(self._limits, totals.waiting, waiting)
        if waiting >= 0 and num_bytes > 0:
            check_stored(self._limits, totals.num_bytes, num_bytes)
        after = TenantTotals(totals.waiting + waiting, totals.num_bytes + num_bytes)
        return [Write(key, encode(after), 0 if stored is None else stored.sequence)]


def difference(before: BatchState, after: BatchState) -> tuple[int, int]:
    """Return how many more items wait, and how many more bytes are stored."""
    return after.waiting - before.waiting, after.num_bytes - before.num_bytes


def markers(before: BatchState | None, after: BatchState) -> list[Write]:
    """Return what says that a batch is open, or has ended, where that is new."""
    writes = []
    if before is None or (before.ended_at is not None and after.ended_at is None):
        writes.append(Write(f"o.{key_of(after.id)}", b"1"))
    if after.ended_at is not None and (before is None or before.ended_at != after.ended_at):
        remains = Remains(after.id, after.content, listed_key(after), after.key)
        end = f"{int(after.ended_at * 1e6):016x}"
        writes.append(Write(f"d.{end}.{key_of(after.id)}", encode(remains)))
    return writes


def listed_key(state: BatchState) -> str:
    """Return the key by which a batch is in lists."""
    return f"x.{key_of(state.tenant)}.{state.number:016x}.{key_of(state.id)}"


def key_key(tenant: str, key: str) -> str:
    """Return where an idempotency key lies."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    return f"k.{key_of(tenant)}.{digest}"
