"""What time does to batches on JetStream: they expire, end, are closed and deleted."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from skerry_regions.drivers.jetstream.queue.batch_state import (
    BatchState,
    ItemOutcome,
    encode,
    with_end,
    with_result,
)
from skerry_regions.drivers.jetstream.queue.batch_table import DONE, SWEPT, BatchTable, Remains
from skerry_regions.drivers.jetstream.specs import key_of
from skerry_regions.drivers.jetstream.stream import RevisionConflict, Write
from skerry_regions.drivers.jetstream.values import each_of
from skerry_regions.queue import BatchRecord

PRUNED_AT_ONCE = 16  # batches
SWEEP_SECONDS = 3600.0  # after which a submission without a record has died

_remains = msgspec.msgpack.Decoder(Remains).decode


class BatchUpkeep(BatchTable):
    """The part of `Queue` that any edge of the zone may do at any time."""

    def tend(self) -> None:
        self._wait(self._tend())

    async def _tend(self) -> None:
        now = self._wall_clock()
        for state in await self._open_batches():
            if state.ending is None and state.expires_at <= now:
                await self._change(state.id, self._expire)
            elif state.ending is None:
                await self._bury_lost(state)
        await self._prune(now - self._limits.retention_seconds)
        await self._sweep(now - SWEEP_SECONDS)

    def _expire(self, state: BatchState) -> tuple[BatchState, Sequence[Write]] | None:
        now = self._wall_clock()
        if state.ending or state.expires_at > now:
            return None
        return with_end(state, "expired", now), ()

    async def _bury_lost(self, state: BatchState) -> None:
        """Bury items whose last attempt's lease lapsed."""
        due, now = self._due(state), self._clock()
        for index, item in state.open.items():
            if item.attempts >= self._limits.attempts and due[index] <= now:
                payload = len(await self._payload(state, index))

                def decide(
                    state: BatchState,
                    index: int = index,
                    lost: int = item.turn,
                    size: int = payload,
                ) -> tuple[BatchState, Sequence[Write]] | None:
                    found = state.open.get(index)
                    if state.ending or found is None or found.turn != lost:
                        return None
                    after = with_result(state, index, "dead", size, 0, self._wall_clock())
                    outcome = encode(ItemOutcome("dead", b""))
                    return after, [Write(f"r.{state.content}.{index}", outcome)]

                await self._change(state.id, decide)

    async def _prune(self, before: float) -> None:
        """Delete batches that ended long enough ago."""

        def free(state: BatchState) -> tuple[BatchState, Sequence[Write]] | None:
            """Give its room back to its tenant first; none of it is tried again."""
            if state.ended_at is None or state.ended_at > before:
                return None  # it was tried again
            return replace(state, num_bytes=0, dead=0), ()

        old = [
            key
            for key in await self._stream.keys("d.>")
            if int(key.split(".")[1], 16) <= before * 1e6
        ]
        for key in sorted(old)[:PRUNED_AT_ONCE]:
            marker = await self._stream.last(key)
            if marker is None:
                continue
            remains = _remains(marker.data)
            found = await self._state(remains.id)
            state = found[0] if found is not None and found[0].content == remains.content else None
            if state is None or await self._change(remains.id, free) is not None:
                await self._delete(remains, has_record=state is not None)
            await self._stream.delete(key)

    async def _delete(self, remains: Remains, *, has_record: bool) -> None:
        if remains.key:
            await self._stream.delete(remains.key)
        await self._stream.delete(remains.listed)
        await self._stream.delete(f"o.{key_of(remains.id)}")
        if has_record:
            await self._stream.delete(f"b.{key_of(remains.id)}")
        await self._delete_content(remains.content)

    async def _delete_content(self, content: str) -> None:
        for kind in "irp":
            await self._stream.delete(f"{kind}.{content}.>")
        for kind in "hn":
            await self._stream.delete(f"{kind}.{content}")
            await self._stream.delete(f"{kind}.{content}.>")

    async def _sweep(self, before: float) -> None:
        """Delete what submissions that died left behind."""
        for key in await self._stream.keys("s.*"):
            stored = await self._stream.last(key)
            if stored is None or (stored.data not in (DONE, SWEPT) and float(stored.data) > before):
                continue
            if stored.data != DONE:
                try:  # first, so that it is not known a moment later
                    await self._stream.write(Write(key, SWEPT, stored.sequence))
                except RevisionConflict:
                    continue
                await self._delete_content(key.removeprefix("s."))
            await self._stream.delete(key)

    def has_work(self) -> bool:
        return bool(self._wait(self._stream.keys("o.*")))

    def ended(self, limit: int = 10) -> list[BatchRecord]:
        return self._wait(self._ended(limit))

    async def _ended(self, limit: int) -> list[BatchRecord]:
        found = [state for state in await self._open_batches() if state.ending]
        for state in found:
            if state.closed_at is not None:
                await self._close(state.id)  # its marker is left from a close that was cut off
        unclosed = [state for state in found if state.closed_at is None]
        return await each_of(unclosed[:limit], self._record)

    def close_batch(self, id: str) -> None:
        self._wait(self._close(id))

    async def _close(self, id: str) -> None:
        marker = await self._stream.last(f"o.{key_of(id)}")

        def decide(state: BatchState) -> tuple[BatchState, Sequence[Write]] | None:
            if state.ending is None:
                return None  # it was tried again
            return replace(state, closed_at=state.closed_at or self._wall_clock()), ()

        state = await self._change(id, decide)
        if marker is not None and state is not None:
            await self._stream.delete(marker.key, through=marker.sequence)
            self._open.pop(id, None)
