"""What the next step computes: which sequences, how many tokens of each, in which blocks.

The rules of the house:

1. Interactive before batch. Batch gets the tokens, slots and blocks that interactive leaves, gives
   its slots and blocks back when interactive wants them, and does not run at all in a step that
   works on an interactive first token: that token waits for at most the step in progress.
2. Within a class, decode rows first (one token each), then prefill chunks, the tenant with the
   least service first: up to `max_step_tokens` in all, and beside interactive decode rows as many
   as keep the step within `max_gap_seconds`: a chunk's time is added to the gap of every stream.
3. A newcomer (see `fairness`) gets its first chunk in the next step even when slots and blocks are
   full, whoever has to make room.
4. A tenant with nothing running may displace a tenant that has several sequences running.
5. Preemption is by recompute: the victim's blocks are released (sealed ones stay in the prefix
   cache) and it waits at the head of its tenant's queue. Victims are batch before interactive,
   then of tenants with several sequences running, then of the tenant with the most service, then
   the youngest. With rule 4 this settles: who was displaced to one sequence displaces nobody.
6. Apart from newcomers, a sequence is admitted only when all its tokens find blocks beside what
   the running ones still need, so that admission causes no preemption soon after. While the next
   in turn finds none, nobody overtakes it.
7. The last token always runs. A prefix match leaves the block of the last token out, so that a
   fully cached prompt is computed from its last block boundary on and never writes into a shared
   block. (The alternative, copy-on-write, saves at most 63 tokens for prompts that end exactly on
   a boundary, and would need a copy in every runner.)
8. Drafted tokens (see `speculation`) take what is left of the step, and no block that their
   sequence does not hold.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from skerry_core.blocks import BlockPool, blocks_for
from skerry_core.config import BLOCK_SIZE
from skerry_core.engine.fairness import FairShare
from skerry_core.engine.plan import Plan, Row
from skerry_core.engine.sequence import Sequence
from skerry_core.engine.speculation import Speculator
from skerry_core.engine.step_price import StepPrice
from skerry_core.names import BlockNames
from skerry_core.request import Priority

_arrival = attrgetter("arrival")


class Standing(NamedTuple):
    """What makes a running sequence a victim; the largest goes first."""

    priority: Priority
    is_settled: bool  # not a newcomer's: rule 3 must not be undone in its own step
    has_several: bool  # its tenant runs others as well
    service: float  # engine seconds of its tenant
    arrival: int


class Scheduler:
    """Owns the waiting and the running sequences, and decides. Pure: no clock, no device.

    `max_running` is at most `max_step_tokens` and `max_samples`, so every running sequence can
    have a token in every step.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        names: BlockNames,
        max_running: int,
        max_step_tokens: int,
        max_gap_seconds: float,
        max_samples: int,
        price: StepPrice,
        speculator: Speculator | None = None,
    ) -> None:
        self._pool = pool
        self._speculator = speculator
        self._names = names
        self._max_step_tokens = max_step_tokens
        self._max_gap_seconds = max_gap_seconds
        self._max_samples = max_samples
        self._free_slots = list(reversed(range(max_running)))
        # By class; waiting queues by tenant, none empty, each in order of arrival.
        self._running: dict[Priority, dict[Sequence, None]] = {p: {} for p in Priority}
        self._waiting: dict[Priority, dict[str, list[Sequence]]] = {p: {} for p in Priority}
        self._tenant_running: dict[Priority, Counter[str]] = {p: Counter() for p in Priority}
        self._fair = {priority: FairShare() for priority in Priority}
        self._price = price
        self.num_waiting = 0
        self.num_preemptions = 0
        self.num_cache_query_tokens = 0
        self.num_cache_hit_tokens = 0

    @property
    def num_running(self) -> int:
        return sum(map(len, self._running.values()))

    def service(self, tenant: str, priority: Priority = Priority.INTERACTIVE) -> float:
        """Engine seconds of a tenant that has requests, as fairness counts them."""
        return self._fair[priority].service(tenant)

    # --- sequences come and go -------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Its tokens must fit the pool when it is alone."""
        self._fair[sequence.request.priority].enter(sequence.request.tenant)
        self._enqueue(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that ended or was aborted, and release its blocks."""
        if sequence.slot >= 0:
            self._pin(sequence)
            self._vacate(sequence)
        else:
            self._dequeue(sequence)
        self._fair[sequence.request.priority].leave(sequence.request.tenant)

    def _pin(self, sequence: Sequence) -> None:
        """Keep its prompt for as long as its request asks, counted from its first place."""
        request = sequence.request
        if request.pin_seconds and sequence.start_time is not None:
            prompt = sequence.digests[: sequence.num_prompt // BLOCK_SIZE]
            until = sequence.start_time + request.pin_seconds
            self._pool.pin(prompt, until, request.cache_key)

    def _enqueue(self, sequence: Sequence) -> None:
        queue = self._waiting[sequence.request.priority].setdefault(sequence.request.tenant, [])
        insort(queue, sequence, key=_arrival)
        self.num_waiting += 1

    def _dequeue(self, sequence: Sequence) -> None:
        queues = self._waiting[sequence.request.priority]
        queue = queues[sequence.request.tenant]
        queue.remove(sequence)
        if not queue:
            del queues[sequence.request.tenant]
        self.num_waiting -= 1

    def _vacate(self, sequence: Sequence) -> None:
        priority, tenant = sequence.request.priority, sequence.request.tenant
        del self._running[priority][sequence]
        self._tenant_running[priority][tenant] -= 1
        if not self._tenant_running[priority][tenant]:
            del self._tenant_running[priority][tenant]
        self._free_slots.append(sequence.slot)
        sequence.slot = -1
        self._pool.release(sequence.blocks)
        sequence.blocks = []

    def _preempt(self, plan: Plan, sequence: Sequence) -> None:
        plan.drop(sequence)
        self.put_back(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Take a running sequence's slot and blocks, and let it wait to be computed again."""
        self._vacate(sequence)
        sequence.num_computed = 0
        self._enqueue(sequence)
        sequence.preemptions += 1
        self.num_preemptions += 1

    # --- one step --------------------------------------------------------------------------------

    def schedule(self, now: float) -> list[Row]:
        """Rows of the next step, their blocks allocated; empty when nothing can run.

        `now` (seconds) becomes the start time of sequences that get their first place. The caller
        computes the rows and then calls `settle`.
        """
        self._pool.expire_pins(now)
        plan = Plan(self._max_step_tokens, self._max_samples)
        for priority in Priority:
            self._continue_decoding(plan, priority)
            if plan.rows and priority is Priority.INTERACTIVE:
                plan.limit(self._price.chunk(len(plan.rows), self._max_gap_seconds))
            all_admitted = self._admit_newcomers(plan, priority, now)
            all_admitted &= self._prefill(plan, priority, now, may_admit=all_admitted)
            if plan.booked or not all_admitted or not plan.tokens_left:
                break  # rules 1 and 6: lower classes stand back
        if self._speculator is not None:
            self._speculator.add_drafts(plan)
        return list(plan.rows.values())

    def settle(self, rows: list[Row], seconds: float) -> None:
        """Account for computed rows: seal their full blocks and charge their tenants.

        A row's share of the step's `seconds` is its share of the tokens.
        """
        num_tokens = sum(row.num_tokens for row in rows)
        seconds_per_token = seconds / num_tokens
        stream_tokens = sum(row.num_tokens for row in rows if row.is_decode)
        self._price.observe(stream_tokens, num_tokens - stream_tokens, seconds)
        if self._speculator is not None:
            self._speculator.observe(rows)
        for row in rows:
            sequence, share = row.sequence, row.num_tokens * seconds_per_token
            if row.is_decode:
                sequence.decode_seconds += share
            else:
                sequence.prefill_seconds += share
            # What was handed over starts with one token of its output: admitted, and yet a decode.
            if row.is_decode or (row.num_tokens == 1 and row.start >= sequence.num_prompt):
                sequence.decode_steps += 1
                sequence.decode_tokens += 1 + row.num_accepted
            else:
                sequence.prefill_steps += 1
                sequence.prefill_tokens += row.num_tokens
            self._fair[sequence.request.priority].charge(sequence.request.tenant, share)
            if not row.is_placed:  # preempted when the next step was planned
                continue
            sequence.num_computed = row.end
            first, end = row.start // BLOCK_SIZE, sequence.num_computed // BLOCK_SIZE
            if end > first:
                self._seal(sequence, first, end)

    def _seal(self, sequence: Sequence, first: int, end: int) -> None:
        sequence.extend_digests(end, self._names)
        for i in range(first, end):
            self._pool.seal(sequence.blocks[i], sequence.digests[i])

    # --- parts of a step -------------------------------------------------------------------------

    def _continue_decoding(self, plan: Plan, priority: Priority) -> None:
        running = self._running[priority]
        ready = [s for s in running if s.is_decoding and not (s.awaits_mask or s.is_complete)]
        for sequence in ready:
            if plan.tokens_left == 0 or plan.samples_left == 0:
                return  # only batch can find nothing left
            if sequence.slot >= 0 and self._grow(plan, sequence, 1):
                plan.put(sequence, 1)

    def _admit_newcomers(self, plan: Plan, priority: Priority, now: float) -> bool:
        """Rule 3. Whether all of them got their first chunk."""
        fair = self._fair[priority]
        waiting = self._waiting[priority]
        heads = [queue[0] for tenant, queue in waiting.items() if fair.is_newcomer(tenant)]
        heads.sort(key=_arrival)
        for i, sequence in enumerate(heads):
            if not self._admit(plan, sequence, now, shares=len(heads) - i, is_newcomer=True):
                return False
        return True

    def _prefill(self, plan: Plan, priority: Priority, now: float, *, may_admit: bool) -> bool:
        """Hand out the tokens that are left, tenant by tenant. Whether nobody was refused."""
        started = self._started_prefills(plan, priority)
        waiting = self._waiting[priority]
        tenants = started.keys() | waiting.keys() if may_admit else started.keys()
        turns = [self._turn(plan, priority, tenant) for tenant in tenants]
        heapq.heapify(turns)
        while turns and plan.tokens_left:
            tenant = heapq.heappop(turns)[-1]
            if tenant in started:
                sequence = started[tenant].pop()
                if not started[tenant]:
                    del started[tenant]
                self._continue_prefill(plan, sequence)
            elif not may_admit:
                continue
            elif not self._admit(plan, waiting[tenant][0], now):
                may_admit = False
            if tenant in started or tenant in waiting:
                heapq.heappush(turns, self._turn(plan, priority, tenant))
        return may_admit

    def _started_prefills(self, plan: Plan, priority: Priority) -> dict[str, list[Sequence]]:
        """Running sequences with more than a decode to do, by tenant, oldest last."""
        started: dict[str, list[Sequence]] = {}
        for sequence in self._running[priority]:
            if sequence not in plan.rows and not sequence.is_decoding:
                started.setdefault(sequence.request.tenant, []).append(sequence)
        for sequences in started.values():
            sequences.sort(key=_arrival, reverse=True)
        return started

    def _turn(self, plan: Plan, priority: Priority, tenant: str) -> tuple[float, str]:
        """Sort key of who is next: the least service, counting what this step adds to it."""
        booked = plan.booked.get(tenant, 0) * self._price.per_prompt_token
        return self._fair[priority].service(tenant) + booked, tenant

    def _continue_prefill(self, plan: Plan, sequence: Sequence) -> None:
        chunk = plan.chunk(sequence)
        if sequence.slot >= 0 and chunk and self._grow(plan, sequence, chunk):
            plan.put(sequence, chunk)

    def _grow(self, plan: Plan, sequence: Sequence, num_tokens: int) -> bool:
        """Give a running sequence the blocks of its next tokens; False if it had to go itself."""
        missing = blocks_for(sequence.num_computed + num_tokens) - len(sequence.blocks)
        if missing <= 0:
            return True
        while self._pool.num_idle < missing:
            victim = self._worst()
            self._preempt(plan, victim)
            if victim is sequence:
                return False
        sequence.blocks += self._pool.allocate(missing)
        return True

    def _admit(
        self,
        plan: Plan,
        sequence: Sequence,
        now: float,
        *,
        shares: int = 1,
        is_newcomer: bool = False,
    ) -> bool:
        """Give a waiting sequence a slot, blocks, and its first chunk; False leaves it waiting."""
        while not self._free_slots:
            if not self._displace(plan, sequence, is_newcomer=is_newcomer):
                return False
        blocks = self._match(sequence)
        num_matched = len(blocks) * BLOCK_SIZE
        sequence.num_computed = num_matched + sequence.tail_after(num_matched)
        chunk = plan.chunk(sequence, shares)
        missing = blocks_for(sequence.num_computed + chunk) - len(blocks)
        needed = missing if is_newcomer else self._needed(sequence, len(blocks))
        while chunk and self._pool.num_idle < needed:
            if not self._displace(plan, sequence, is_newcomer=is_newcomer):
                chunk = 0
            elif not is_newcomer:
                needed = self._needed(sequence, len(blocks))
        if not chunk:
            self._pool.release(blocks)
            sequence.num_computed = 0
            return False
        self._place(sequence, blocks + self._pool.allocate(missing), now)
        plan.put(sequence, chunk, is_admission=True)
        return True

    def _match(self, sequence: Sequence) -> list[int]:
        """Cached blocks of its beginning, each with a reference; rule 7 bounds them."""
        if not sequence.may_match_prefix:
            return []
        most = (sequence.num_tokens - 1) // BLOCK_SIZE
        sequence.extend_digests(most, self._names)
        return self._pool.acquire(sequence.digests[:most])

    def _needed(self, sequence: Sequence, num_matched: int) -> int:
        """Idle blocks that rule 6 asks for: its own, those of prompts in work, one each to grow."""
        needed = blocks_for(sequence.num_tokens) - num_matched
        for other in self._all_running():
            if other.request.priority <= sequence.request.priority:
                needed += 1 + max(0, blocks_for(other.num_tokens) - len(other.blocks))
        return needed

    def _place(self, sequence: Sequence, blocks: list[int], now: float) -> None:
        self._dequeue(sequence)
        priority, tenant = sequence.request.priority, sequence.request.tenant
        self._running[priority][sequence] = None
        self._tenant_running[priority][tenant] += 1
        sequence.slot = self._free_slots.pop()
        sequence.blocks = blocks
        self.num_cache_query_tokens += sequence.num_tokens
        self.num_cache_hit_tokens += sequence.num_computed
        if sequence.start_time is None:
            sequence.start_time = now
            sequence.cached_tokens = min(sequence.num_computed, sequence.num_prompt - 1)

    # --- who makes room --------------------------------------------------------------------------

    def _all_running(self) -> Iterator[Sequence]:
        for running in self._running.values():
            yield from running

    def _standing(self, sequence: Sequence) -> Standing:
        """How a running sequence ranks as a victim."""
        priority, tenant = sequence.request.priority, sequence.request.tenant
        fair = self._fair[priority]
        return Standing(
            priority,
            not fair.is_newcomer(tenant),
            self._tenant_running[priority][tenant] > 1,
            fair.service(tenant),
            sequence.arrival,
        )

    def _worst(self) -> Sequence:
        """The first victim of rule 5."""
        return max(self._all_running(), key=self._standing)

    def _displace(self, plan: Plan, sequence: Sequence, *, is_newcomer: bool) -> bool:
        """Preempt the worst of the running if `sequence`, which waits, may take its place."""
        if not self.num_running:
            return False
        victim = self._worst()
        theirs, mine = self._standing(victim), sequence.request.priority
        has_none = not self._tenant_running[mine][sequence.request.tenant]
        if theirs.priority > mine or (
            theirs.priority == mine
            and theirs.is_settled
            and (is_newcomer or (has_none and theirs.has_several))
        ):
            self._preempt(plan, victim)
            return True
        return False
