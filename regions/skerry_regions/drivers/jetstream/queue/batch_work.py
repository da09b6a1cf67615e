"""What workers do with batches on JetStream."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from skerry.errors import Unavailable
from skerry_regions.drivers.jetstream.queue.batch_state import (
    BatchState,
    ItemOutcome,
    claimable,
    encode,
    with_claims,
    with_renewed,
    with_result,
    with_returned,
)
from skerry_regions.drivers.jetstream.queue.batch_table import CHANGE_SECONDS, Decide
from skerry_regions.drivers.jetstream.queue.batch_upkeep import BatchUpkeep
from skerry_regions.drivers.jetstream.stream import KeyedStream, RevisionConflict, Write
from skerry_regions.drivers.jetstream.values import PIECE_BYTES
from skerry_regions.drivers.queue_bounds import check_result
from skerry_regions.queue import LEASE_SECONDS, Claim, QueueLimits, Settled


class Leader(Struct, frozen=True):
    """What lies under `l`."""

    owner: str
    seconds: float
    change: str  # so that no two are the same


@dataclass(frozen=True, slots=True)
class Held:
    """An item that a worker of this process claimed."""

    owner: str
    batch: str
    index: int
    attempt: int

    def is_in(self, state: BatchState) -> bool:
        """Return whether its lease is its own still."""
        item = state.open.get(self.index)
        return (
            state.ending is None
            and item is not None
            and (item.owner, item.attempts) == (self.owner, self.attempt)
        )


_leaders = msgspec.msgpack.Decoder(Leader).decode


class BatchWork(BatchUpkeep):
    """The workers' side of `Queue`."""

    def __init__(
        self,
        stream: KeyedStream,
        loop: asyncio.AbstractEventLoop,
        limits: QueueLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(stream, loop, limits, clock=clock, wall_clock=wall_clock)
        self._turns: dict[str, int] = {}  # of tenants
        self._held: dict[int, Held] = {}  # by the number of its claim
        self._numbers = itertools.count(1)
        self._leader = (0, 0.0)  # the record's sequence, and when it was seen

    def _forget_times(self) -> None:
        super()._forget_times()
        self._leader = (0, 0.0)

    # --- what workers do --------------------------------------------------------------------------

    def lead(self, owner: str, lease_seconds: float = LEASE_SECONDS) -> bool:
        return self._wait(self._lead(owner, lease_seconds))

    async def _lead(self, owner: str, seconds: float) -> bool:
        began, stored = self._clock(), await self._stream.last("l")
        expected = 0
        if stored is not None:
            leader, expected = _leaders(stored.data), stored.sequence
            if self._leader[0] != expected:
                self._leader = expected, self._clock()
            is_over = self._clock() >= self._leader[1] + leader.seconds
            if leader.owner != owner and not is_over:
                return False
        record = encode(Leader(owner, seconds, secrets.token_hex(6)))
        try:
            sequence = await self._stream.write(
                Write("l", record, expected), seconds=CHANGE_SECONDS
            )
        except RevisionConflict:
            return False
        self._leader = sequence, began
        return True

    def claim(
        self, owner: str, models: frozenset[str], limit: int,
        lease_seconds: float = LEASE_SECONDS,
    ) -> list[Claim]:  # fmt: skip
        return self._wait(self._claim(owner, models, limit, lease_seconds))

    async def _claim(
        self, owner: str, models: frozenset[str], limit: int, lease: float
    ) -> list[Claim]:
        states = [state for state in await self._open_batches() if state.model in models]
        order = self._in_turns(states, owner, limit)
        taken: dict[str, deque[Claim]] = {}
        try:
            for id in dict.fromkeys(order):
                taken[id] = deque(await self._take(id, owner, order.count(id), lease))
        except Unavailable:
            if not any(taken.values()):
                raise
        return [taken[id].popleft() for id in order if taken.get(id)]

    def _in_turns(self, states: Sequence[BatchState], owner: str, limit: int) -> list[str]:
        """Return the batches of the next items, tenants in turn."""
        left = {state.id: len(self._claimable(state, owner, limit)) for state in states}
        order: list[str] = []
        while len(order) < limit and (some := [state for state in states if left[state.id]]):
            state = min(some, key=lambda state: self._turns.get(state.tenant, 0))  # the oldest
            self._turns[state.tenant] = max(self._turns.values(), default=0) + 1
            left[state.id] -= 1
            order.append(state.id)
        waiting = {state.tenant for state in states}
        if len(self._turns) > 2 * len(waiting) + 1000:
            self._turns = {name: self._turns[name] for name in waiting if name in self._turns}
        return order

    def _claimable(self, state: BatchState, owner: str, limit: int) -> list[int]:
        due, most = self._due(state), self._limits.attempts
        found = claimable(state, due, self._clock(), most, limit)
        unsent = self._unsent(state, owner)
        return [*unsent, *(index for index in found if index not in unsent)][:limit]

    def _unsent(self, state: BatchState, owner: str) -> list[int]:
        """Return items that a worker of this process leased, and has not got: what was under way
        for it failed."""
        if state.ending:
            return []
        held = {each.index for each in self._held.values() if each.batch == state.id}
        return [
            index for index, item in state.open.items() if item.owner == owner and index not in held
        ]

    async def _take(self, id: str, owner: str, limit: int, lease: float) -> list[Claim]:
        """Lease items of a batch. Their attempts are written before any is sent."""
        indexes: list[int] = []

        def decide(state: BatchState) -> tuple[BatchState, Sequence[Write]] | None:
            indexes[:] = self._claimable(state, owner, limit)
            if not indexes:
                return None
            now, unsent = self._wall_clock(), self._unsent(state, owner)
            return with_claims(state, indexes, owner, lease, now, unsent), ()

        state = await self._change(id, decide)
        if state is None:
            return []
        header, most = await self._header(state), self._limits.attempts
        claims = []
        for index in indexes:
            item = state.open.get(index)
            if state.ending or item is None or item.owner != owner:
                continue  # it ended while the answer was lost
            claim = Claim(
                item=next(self._numbers), owner=owner, batch=id, index=index, tenant=state.tenant,
                token=header.token, kind=state.kind, model=state.model, target=header.target,
                payload=await self._payload(state, index), attempt=item.attempts,
                is_last=item.attempts >= most,
            )  # fmt: skip
            claims.append(claim)
        self._held |= {each.item: _held_by(each) for each in claims}
        return claims

    def renew(
        self, owner: str, items: Collection[int], lease_seconds: float = LEASE_SECONDS
    ) -> frozenset[int]:
        return self._wait(self._renew(owner, items, lease_seconds))

    async def _renew(self, owner: str, items: Collection[int], lease: float) -> frozenset[int]:
        by_batch: dict[str, dict[int, Held]] = {}
        for number in items:
            held = self._held.get(number)
            if held is not None and held.owner == owner:
                by_batch.setdefault(held.batch, {})[number] = held
        kept: set[int] = set()
        for id, some in by_batch.items():
            kept |= await self._renew_some(id, owner, some, lease)
            for number in some.keys() - kept:
                self._held.pop(number, None)
        return frozenset(kept)

    async def _renew_some(
        self, id: str, owner: str, some: dict[int, Held], lease: float
    ) -> set[int]:
        kept: set[int] = set()

        def decide(state: BatchState) -> tuple[BatchState, Sequence[Write]] | None:
            kept.clear()
            kept.update(number for number, held in some.items() if held.is_in(state))
            indexes = [some[number].index for number in kept]
            return (with_renewed(state, indexes, owner, lease), ()) if kept else None

        if await self._change(id, decide) is None:
            kept.clear()
        return kept

    def settle(self, claim: Claim, state: Settled, result: bytes) -> bool:
        check_result(self._limits, result)
        return self._wait(self._settle(claim, state, result))

    async def _settle(self, claim: Claim, settled: Settled, result: bytes) -> bool:
        found = await self._state(claim.batch)
        if found is None or not _held_by(claim).is_in(found[0]):
            self._held.pop(claim.item, None)
            return False
        content = found[0].content
        outcome = await self._outcome_of(content, claim.index, settled, result)

        def decide(state: BatchState) -> tuple[BatchState, Sequence[Write]] | None:
            if not _held_by(claim).is_in(state):
                return None
            now, payload = self._wall_clock(), len(claim.payload)
            after = with_result(state, claim.index, settled, payload, len(result), now)
            return after, [outcome]

        return await self._finish(claim, decide)

    async def _outcome_of(self, content: str, index: int, settled: Settled, result: bytes) -> Write:
        """Return what makes an item's result known, which is there by then if it is large."""
        outcome = ItemOutcome(settled, result)
        if len(result) > PIECE_BYTES:
            apart = f"p.{content}.{index}.{secrets.token_hex(6)}"
            await self._write_value(apart, result)
            outcome = ItemOutcome(settled, b"", apart)
        return Write(f"r.{content}.{index}", encode(outcome))

    def defer(self, claim: Claim, seconds: float, *, counts: bool) -> bool:
        def decide(state: BatchState) -> tuple[BatchState, Sequence[Write]] | None:
            if not _held_by(claim).is_in(state):
                return None
            return with_returned(state, [claim.index], seconds, counts=counts), ()

        return self._wait(self._finish(claim, decide))

    async def _finish(self, claim: Claim, decide: Decide) -> bool:
        state = await self._change(claim.batch, decide)
        self._held.pop(claim.item, None)
        return state is not None

    def release(self, owner: str) -> None:
        self._wait(self._release(owner))

    async def _release(self, owner: str) -> None:
        def decide(state: BatchState) -> tuple[BatchState, Sequence[Write]] | None:
            own = [index for index, item in state.open.items() if item.owner == owner]
            if state.ending or not own:
                return None
            return with_returned(state, own, 0.0, counts=False), ()

        self._forget_times()
        for state in await self._open_batches():
            if any(item.owner == owner for item in state.open.values()):
                await self._change(state.id, decide)
        self._held = {key: held for key, held in self._held.items() if held.owner != owner}
        stored = await self._stream.last("l")
        if stored is not None and _leaders(stored.data).owner == owner:
            await self._stream.delete("l", through=stored.sequence)


def _held_by(claim: Claim) -> Held:
    return Held(claim.owner, claim.batch, claim.index, claim.attempt)
