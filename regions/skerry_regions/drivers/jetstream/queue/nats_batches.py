"""The queue of a zone on NATS servers as one end of a copy."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

from skerry.errors import Unavailable
from skerry_regions.drivers.jetstream.queue.batch_state import (
    MAX_OPEN,
    BatchState,
    OpenItem,
    decode_block,
    done_items,
    encode,
    record_of,
    with_bits,
)
from skerry_regions.drivers.jetstream.queue.batch_table import (
    ATTEMPTS,
    CHANGE_SECONDS,
    key_key,
)
from skerry_regions.drivers.jetstream.queue.nats_queue import (
    TOO_MANY_CHANGES,
    BatchKey,
    NatsQueue,
    decode_key,
    decode_references,
)
from skerry_regions.drivers.jetstream.specs import parts_of
from skerry_regions.drivers.jetstream.stream import KeyedStream, Write
from skerry_regions.drivers.jetstream.values import each_of
from skerry_regions.drivers.queue_copy import CopiedBatch, CopiedItem
from skerry_regions.queue import ItemState, NewBatch, NewItem, QueueLimits, Settled

UNBOUNDED = QueueLimits(tenant_waiting=1 << 60, tenant_bytes=1 << 60)  # the other queue took it


class NatsBatches(NatsQueue):
    """See `skerry_edge.shared.copies.tables`. Calls come from a thread."""

    def __init__(self, stream: KeyedStream, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(stream, loop, UNBOUNDED)

    def keys(self) -> list[str]:
        """Return ids, oldest first."""
        listed = [parts_of(key) for key in self._wait(self._stream.keys("x.*.*.*"))]
        return [id for *_, id in sorted(listed, key=lambda parts: parts[2])]

    def read(self, key: str) -> CopiedBatch | None:
        return self._wait(self._read(key))

    def write(self, batch: CopiedBatch) -> None:
        """Keep a batch as it was elsewhere: all that it is of, and its record last."""
        self._wait(self._write(batch))

    async def _read(self, id: str) -> CopiedBatch | None:
        found = await self._state(id)
        if found is None:
            return None
        state = found[0]
        header = await self._header(state)
        stored_key = await self._stream.last(state.key) if state.key else None
        new = NewBatch(
            id=state.id, tenant=state.tenant, token=header.token, kind=state.kind,
            model=state.model, target=header.target, meta=header.meta, key=header.key,
            fingerprint=b"" if stored_key is None else decode_key(stored_key.data).fingerprint,
            window_seconds=state.window_seconds,
        )  # fmt: skip
        return CopiedBatch(new, record_of(state, header.meta), await self._items(state))

    async def _items(self, state: BatchState) -> list[CopiedItem]:
        blocks = range(len((await self._header(state)).blocks))
        payloads: list[bytes] = []
        for block in blocks:
            payloads += decode_block(await self._value(f"i.{state.content}.{block}"))
        references = decode_references(await self._value(f"n.{state.content}"))
        done = dict(done_items(state, -1, state.total))
        with_result = [index for index, has_result in done.items() if has_result]
        outcomes = await each_of(with_result, lambda index: self._outcome(state, index))
        known = dict(zip(with_result, outcomes, strict=True))
        items = []
        for index, reference in enumerate(references):
            outcome = known.get(index)
            item_state: ItemState = "waiting"
            if state.ending == "cancelled" or state.ending == "expired":
                item_state = state.ending
            result = b""
            if outcome is not None:
                item_state, result = outcome
            payload = payloads[index] if item_state in ("waiting", "dead") else b""
            attempts = state.open[index].attempts if index in state.open else 0
            items.append(CopiedItem(reference, payload, item_state, attempts, result))
        return items

    async def _write(self, batch: CopiedBatch) -> None:
        items = [NewItem(item.payload, item.reference) for item in batch.items]
        content, marker = await self._write_content(batch.new, items)
        settled = [*_settled(batch.items)]
        await each_of(settled, lambda each: self._write_result(content, *each))
        await self._commit_copy(batch, content, marker)

    async def _write_result(self, content: str, index: int, state: Settled, result: bytes) -> None:
        write = await self._outcome_of(content, index, state, result)
        await self._stream.write(write, seconds=CHANGE_SECONDS)

    async def _commit_copy(self, batch: CopiedBatch, content: str, marker: int) -> None:
        """Have a batch known whose items and results are there; one of its id stays."""
        new, key, named = batch.new, "", []
        if new.key is not None:
            key = key_key(new.tenant, new.key)
            named = [Write(key, encode(BatchKey(new.id, new.fingerprint)))]
        for _ in range(ATTEMPTS):
            number = (await self._stream.state()).last_sequence
            if await self._enter(state_of(batch, content, number, key), named, marker) is not None:
                return
        raise Unavailable(TOO_MANY_CHANGES)


def _settled(items: list[CopiedItem]) -> Iterator[tuple[int, Settled, bytes]]:
    for index, item in enumerate(items):
        if item.state == "succeeded" or item.state == "failed" or item.state == "dead":
            yield index, item.state, item.result


def state_of(batch: CopiedBatch, content: str, number: int, key: str) -> BatchState:
    """Return the record of a batch that was elsewhere. Pure.

    Items behind the last one that was ever claimed are as they were; of those before it that are
    not done, attempts are kept of as many as may be open.
    """
    record, items = batch.record, batch.items
    settled = {index for index, _, _ in _settled(items)}
    tried = {index for index, item in enumerate(items) if item.attempts and index not in settled}
    begun = max(settled | tried, default=-1) + 1
    undone = [index for index in range(begun) if index not in settled]
    opened = [index for index in undone if index in tried and record.ending is None][:MAX_OPEN]
    dead = [index for index, item in enumerate(items) if item.state == "dead"]
    return BatchState(
        id=record.id, tenant=record.tenant, kind=record.kind, model=record.model, key=key,
        content=content, number=number, total=record.total, created_at=record.created_at,
        window_seconds=batch.new.window_seconds, expires_at=record.expires_at,
        started_at=record.started_at, ended_at=record.ended_at, ending=record.ending,
        closed_at=record.closed_at, succeeded=record.succeeded, failed=record.failed,
        dead=record.dead, num_bytes=record.num_bytes,
        waiting_bytes=sum(len(item.payload) for item in items if item.state == "waiting"),
        dead_bytes=sum(len(items[index].payload) for index in dead),
        dead_result_bytes=sum(len(items[index].result) for index in dead),
        next=begun,
        open={index: OpenItem("", items[index].attempts, 1, 0.0) for index in opened},
        dead_items=with_bits(b"", dead, is_set=True),
        revived=with_bits(b"", {*undone} - {*opened}, is_set=True),
        turns=1,
        changes=(secrets.token_bytes(6),),
    )  # fmt: skip
