"""The batch queue of a zone's edges: records in a stream of JetStream."""

from __future__ import annotations

import contextlib
import secrets
import uuid
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from skerry.errors import Unavailable
from skerry_regions.drivers.jetstream.queue.batch_state import (
    BatchHeader,
    BatchState,
    decode_outcome,
    decode_state,
    done_items,
    encode,
    record_of,
    with_end,
    with_revived,
)
from skerry_regions.drivers.jetstream.queue.batch_table import (
    ATTEMPTS,
    CHANGE_SECONDS,
    DONE,
    key_key,
    listed_key,
    markers,
)
from skerry_regions.drivers.jetstream.queue.batch_work import BatchWork
from skerry_regions.drivers.jetstream.specs import key_of
from skerry_regions.drivers.jetstream.stream import RevisionConflict, Stored, Write
from skerry_regions.drivers.jetstream.values import PIECE_BYTES, each_of
from skerry_regions.drivers.queue_bounds import submission_bytes
from skerry_regions.queue import (
    BatchRecord,
    ItemResult,
    ItemState,
    KeyInUse,
    NewBatch,
    NewItem,
    QueueRefused,
    Settled,
)

FULL_SHARE = 0.7  # of the stream: what is left is for results
SUBMIT_SECONDS = 900.0  # that one submission may take; one that died is swept after an hour
TOO_MANY_CHANGES = "The tenant's batches are changed by too many at once."


class BatchKey(Struct, frozen=True):
    """What lies under an idempotency key."""

    batch: str
    fingerprint: bytes


decode_key = msgspec.msgpack.Decoder(BatchKey).decode
decode_references = msgspec.msgpack.Decoder(tuple[str | None, ...]).decode


class NatsQueue(BatchWork):
    """See `Queue`; here is the tenants' side."""

    def submit(self, batch: NewBatch, items: Sequence[NewItem]) -> BatchRecord:
        size = submission_bytes(self._limits, batch, items)
        return self._wait(self._submit(batch, items, size))

    async def _submit(self, batch: NewBatch, items: Sequence[NewItem], size: int) -> BatchRecord:
        """Write all that a batch is of, and its record last."""
        known = await self._of_key(batch)
        if known is not None:
            return known
        await self._with_totals(batch.tenant, len(items), size)  # may it be stored?
        await self._check_room(size)
        now = self._wall_clock()
        content, marker = await self._write_content(batch, items)
        if self._wall_clock() >= now + SUBMIT_SECONDS:
            raise Unavailable("The batch took too long to be stored.")
        return await self._commit(batch, items, size, content, marker)

    async def _of_key(self, batch: NewBatch) -> BatchRecord | None:
        """Return the batch of an idempotency key. Raises `KeyInUse`."""
        stored = await self._stored_key(batch)
        if stored is None:
            return None
        known = decode_key(stored.data)
        if known.fingerprint != batch.fingerprint:
            raise KeyInUse(f"the key {batch.key!r} belongs to a batch of other items")
        found = await self._state(known.batch)
        return None if found is None else await self._record(found[0])

    async def _stored_key(self, batch: NewBatch) -> Stored | None:
        if batch.key is None:
            return None
        return await self._stream.last(key_key(batch.tenant, batch.key))

    async def _check_room(self, size: int) -> None:
        state = await self._stream.state()
        if state.num_bytes + size > FULL_SHARE * state.max_bytes:
            raise QueueRefused("the batches of all tenants take all the room", is_full=True)

    async def _write_content(self, batch: NewBatch, items: Sequence[NewItem]) -> tuple[str, int]:
        """Return under which name all lies that a batch is of, and the sequence of what says that
        its submission is under way."""
        content = uuid.uuid4().hex
        begun = Write(f"s.{content}", repr(self._wall_clock()).encode(), 0)
        marker = await self._stream.write(begun, seconds=CHANGE_SECONDS)
        blocks = _blocks(items)
        header = BatchHeader(
            batch.token, batch.target, batch.meta, tuple(first for first, _ in blocks), batch.key
        )
        for number, (_, payloads) in enumerate(blocks):
            await self._write_value(f"i.{content}.{number}", encode(payloads))
        await self._write_value(f"n.{content}", encode([item.reference for item in items]))
        await self._write_value(f"h.{content}", encode(header))
        return content, marker

    async def _commit(
        self, batch: NewBatch, items: Sequence[NewItem], size: int, content: str, marker: int
    ) -> BatchRecord:
        """Have a batch known whose items are there."""
        key, named = "", []
        if batch.key is not None:
            key = key_key(batch.tenant, batch.key)
            named = [Write(key, encode(BatchKey(batch.id, batch.fingerprint)), 0)]
        for _ in range(ATTEMPTS):
            now = self._wall_clock()
            state = BatchState(
                id=batch.id, tenant=batch.tenant, kind=batch.kind, model=batch.model, key=key,
                content=content, total=len(items), num_bytes=size, waiting_bytes=size,
                number=(await self._stream.state()).last_sequence, created_at=now,
                expires_at=now + batch.window_seconds, window_seconds=batch.window_seconds,
                ended_at=None if items else now, ending=None if items else "completed",
                changes=(secrets.token_bytes(6),),
            )  # fmt: skip
            entered = await self._enter(state, named, marker)
            if entered is not None and entered.content == content:
                return record_of(entered, batch.meta)
            if (known := await self._of_key(batch)) is not None:
                return known
            if entered is not None:
                raise Unavailable(f"There is a batch {batch.id} already.")
        raise Unavailable(TOO_MANY_CHANGES)

    async def _enter(
        self, state: BatchState, named: Sequence[Write], marker: int
    ) -> BatchState | None:
        """Have a batch known that is written but for its record.

        Return the record of its id, which may be another's; None where the tenant's totals or what
        lies under its key became others meanwhile. What is left behind then is swept later.
        """
        writes = [
            *await self._with_totals(state.tenant, state.waiting, state.num_bytes),
            Write(f"s.{state.content}", DONE, marker),
            *markers(None, state),
            Write(listed_key(state), b"1"),
            *named,
            Write(f"b.{key_of(state.id)}", encode(state), 0),
        ]
        try:
            await self._together(writes)
        except RevisionConflict:
            found = await self._state(state.id)
            if found is None or found[0].content != state.content:
                return None if found is None else found[0]
            state = found[0]  # its answer was lost
        with contextlib.suppress(Unavailable):  # then it is swept later
            await self._stream.delete(f"s.{state.content}")
        return state

    def batch(self, tenant: str | None, id: str) -> BatchRecord | None:
        return self._wait(self._batch(tenant, id))

    async def _batch(self, tenant: str | None, id: str) -> BatchRecord | None:
        found = await self._state(id)
        if found is None or tenant not in (None, found[0].tenant):
            return None
        return await self._record(found[0])

    def batches(
        self, *, tenant: str | None = None, kind: str | None = None,
        after: str | None = None, limit: int = 100,
    ) -> list[BatchRecord]:  # fmt: skip
        return self._wait(self._batches(tenant, kind, after, limit))

    async def _batches(
        self, tenant: str | None, kind: str | None, after: str | None, limit: int
    ) -> list[BatchRecord]:
        chosen = "*" if tenant is None else key_of(tenant)
        listed = [key.split(".") for key in await self._stream.keys(f"x.{chosen}.*.*")]
        ids = [id for *_, id in sorted(listed, key=lambda parts: parts[2:], reverse=True)]
        if after is not None:
            place = key_of(after)
            ids = ids[ids.index(place) + 1 :] if place in ids else []
        records: list[BatchRecord] = []
        while ids and len(records) < limit:
            some, ids = ids[:limit], ids[limit:]
            for stored in await each_of([f"b.{id}" for id in some], self._stream.last):
                if stored is not None and stored.data:
                    state = decode_state(stored.data)
                    if kind in (None, state.kind) and len(records) < limit:
                        records.append(await self._record(state))
        return records

    def results(self, batch: str, *, after: int = -1, limit: int = 100) -> list[ItemResult]:
        return self._wait(self._results(batch, after, limit))

    async def _results(self, batch: str, after: int, limit: int) -> list[ItemResult]:
        found = await self._state(batch)
        if found is None:
            return []
        state = found[0]
        items = done_items(state, after, limit)
        references = decode_references(await self._value(f"n.{state.content}")) if items else ()

        async def result(item: tuple[int, bool]) -> ItemResult:
            index, has_result = item
            item_state: ItemState = "cancelled" if state.ending == "cancelled" else "expired"
            data = b""
            if has_result:
                item_state, data = await self._outcome(state, index)
            return ItemResult(
                index=index, reference=references[index], state=item_state, result=data
            )

        return await each_of(items, result)

    async def _outcome(self, state: BatchState, index: int) -> tuple[Settled, bytes]:
        """Return how an item was settled, and its result."""
        stored = await self._stream.last(f"r.{state.content}.{index}")
        if stored is None:
            raise Unavailable(f"{self._stream.name} has lost a result of {state.id}.")
        outcome = decode_outcome(stored.data)
        result = await self._value(outcome.apart) if outcome.apart else outcome.result
        return outcome.state, result

    def cancel(self, tenant: str, id: str) -> BatchRecord | None:
        return self._wait(self._cancel(tenant, id))

    async def _cancel(self, tenant: str, id: str) -> BatchRecord | None:
        def decide(state: BatchState) -> tuple[BatchState, Sequence[Write]] | None:
            if state.tenant != tenant or state.ending:
                return None
            return with_end(state, "cancelled", self._wall_clock()), ()

        await self._change(id, decide)
        return await self._batch(tenant, id)

    def retry(self, tenant: str, id: str) -> int:
        return self._wait(self._retry(tenant, id))

    async def _retry(self, tenant: str, id: str) -> int:
        revived = 0

        def decide(state: BatchState) -> tuple[BatchState, Sequence[Write]] | None:
            nonlocal revived
            if state.tenant != tenant or state.ending not in (None, "completed") or not state.dead:
                return None
            revived = state.dead
            return with_revived(state, self._wall_clock()), ()

        return 0 if await self._change(id, decide) is None else revived


def _blocks(items: Sequence[NewItem]) -> list[tuple[int, list[bytes]]]:
    """Return payloads in blocks of about one message, each with the index of its first."""
    blocks: list[tuple[int, list[bytes]]] = []
    size = PIECE_BYTES
    for index, item in enumerate(items):
        if size + len(item.payload) > PIECE_BYTES - 4096:
            blocks.append((index, []))
            size = 0
        blocks[-1][1].append(item.payload)
        size += len(item.payload) + 5
    return blocks
