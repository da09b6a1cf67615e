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
   cache) and it waits at the head of its tenant's queue. `preemption` has who goes first.
6. Apart from newcomers, a sequence is admitted only when all its tokens find blocks beside what
   the running ones still need, so that admission causes no preemption soon after. While the next
   in turn finds none, none overtakes it.
7. The last token always runs. A prefix match leaves the block of the last token out, so that a
   fully cached prompt is computed from its last block boundary on and never writes into a shared
   block. (The alternative, copy-on-write, saves at most 63 tokens for prompts that end exactly on
   a boundary, and would need a copy in every runner.)
8. Where several steps are under way at once and tokens are not fed from one to the next, decode
   rows are divided among them, and so is `max_gap_seconds`. A sequence whose token is being made
   has nothing to run; one that is preempted meanwhile waits until it is known.
9. Drafted tokens (see `speculation`) take what is left of the step, and no block that their
   sequence does not hold.
"""

from __future__ import annotations

import heapq

from skerry_core.blocks import BlockPool, blocks_for
from skerry_core.config import BLOCK_SIZE
from skerry_core.engine import preemption
from skerry_core.engine.scheduling_class import SchedulingClass, blocks_needed, share_of_streams
from skerry_core.engine.sequence import Sequence
from skerry_core.engine.speculation import Speculator
from skerry_core.engine.step_plan import PlannedRow, StepPlan
from skerry_core.engine.step_price import StepPrice
from skerry_core.names import BlockNames
from skerry_core.request import Priority


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
        num_parts: int = 1,
    ) -> None:
        """`num_parts` is how many steps may be under way at once, among which rule 8 divides."""
        self._pool = pool
        self._speculator = speculator
        self._names = names
        self._max_step_tokens = max_step_tokens
        self._max_gap_seconds = max_gap_seconds / num_parts
        self._max_samples = max_samples
        self._free_slots = list(reversed(range(max_running)))
        self._classes = {priority: SchedulingClass() for priority in Priority}
        self._price = price
        self._num_parts = num_parts
        self._num_launched = self._num_settled = 0  # steps
        self.num_preemptions = 0
        self.num_cache_query_tokens = 0
        self.num_cache_hit_tokens = 0

    @property
    def num_running(self) -> int:
        return sum(len(each.running) for each in self._classes.values())

    @property
    def num_waiting(self) -> int:
        return sum(each.num_waiting for each in self._classes.values())

    # --- sequences come and go -------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Its tokens must fit the pool when it is alone."""
        own = self._classes[sequence.priority]
        own.fair.enter(sequence.tenant)
        own.enqueue(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that ended or was aborted, and release its blocks."""
        own = self._classes[sequence.priority]
        if sequence.slot >= 0:
            self._vacate(sequence)
        else:
            own.dequeue(sequence)
        own.fair.leave(sequence.tenant)

    def _vacate(self, sequence: Sequence) -> None:
        self._classes[sequence.priority].stop(sequence)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1
        self._pool.release(sequence.blocks)
        sequence.blocks = []

    def put_back(self, sequence: Sequence) -> None:
        """Take a running sequence's slot and blocks, and let it wait to be computed again."""
        self._vacate(sequence)
        sequence.num_computed = 0
        sequence.preempted_at = self._num_launched
        self._classes[sequence.priority].enqueue(sequence)
        sequence.preemptions += 1
        self.num_preemptions += 1

    # --- one step --------------------------------------------------------------------------------

    def schedule(self, now: float) -> list[PlannedRow]:
        """Return rows of the next step, their blocks allocated; empty when nothing can run.

        `now` (seconds) becomes the start time of sequences that get their first place. The caller
        has the rows computed: it calls `launch` when that begins, and `settle` in the same order.
        """
        self._pool.expire_pins(now)
        plan = StepPlan(self._max_step_tokens, self._max_samples, self._max_samples)
        if self._num_parts > 1:
            num_free = self._num_parts - (self._num_launched - self._num_settled)
            plan.streams_left = share_of_streams(self._classes, self._num_parts, num_free)
        for priority, own in self._classes.items():
            self._continue_decoding(plan, own)
            if plan.rows and priority is Priority.INTERACTIVE:
                plan.limit(self._price.chunk(len(plan.rows), self._max_gap_seconds))
            all_admitted = self._admit_newcomers(plan, own, now)
            all_admitted &= self._prefill(plan, own, now, all_admitted)
            if plan.booked or not all_admitted or not plan.tokens_left:
                break  # rules 1 and 6: lower classes stand back
        if plan.has_recurring and self._speculator is not None:
            self._speculator.add_drafts(plan)
        return list(plan.rows.values())

    def launch(self, rows: list[PlannedRow]) -> None:
        """Let sequences go on from behind rows that are computed from now on."""
        self._num_launched += 1
        for row in rows:
            sequence = row.sequence
            sequence.num_computed = row.end
            if row.num_targets:
                sequence.num_prompt_logprobs += row.num_targets
            if row.is_admission:
                self._classes[sequence.priority].fair.serve(sequence.tenant)

    def settle(self, rows: list[PlannedRow], seconds: float) -> None:
        """Account for computed rows of the oldest step under way, whose sequences live: seal their
        full blocks and charge their tenants.

        A row's share of the step's `seconds` is its share of the tokens.
        """
        self._num_settled += 1
        if not rows:
            return
        num_tokens = sum(row.num_tokens for row in rows)
        seconds_per_token = seconds / num_tokens
        stream_tokens = sum(row.num_tokens for row in rows if row.is_decode)
        self._price.observe(stream_tokens, num_tokens - stream_tokens, seconds)
        if self._speculator is not None and any(row.num_drafts for row in rows):
            self._speculator.observe(rows)
        for row in rows:
            sequence, share = row.sequence, row.num_tokens * seconds_per_token
            row.charge(share)
            self._classes[sequence.priority].fair.charge(sequence.tenant, share)
            if row.is_placed:  # else preempted when a later step was planned
                row.seal(self._pool, self._names)

    # --- parts of a step -------------------------------------------------------------------------

    def _continue_decoding(self, plan: StepPlan, own: SchedulingClass) -> None:
        for sequence in own.ready():
            if plan.tokens_left == 0 or plan.samples_left == 0 or plan.streams_left == 0:
                return  # of a whole step only batch can find nothing left
            if sequence.slot >= 0 and self._grow(plan, sequence, 1):
                plan.put(sequence, 1)

    def _admit_newcomers(self, plan: StepPlan, own: SchedulingClass, now: float) -> bool:
        """Start new sequences (rule 3). Return whether all of them got their first chunk."""
        heads = own.newcomers()
        for i, sequence in enumerate(heads):
            if not self._admit(plan, sequence, now, shares=len(heads) - i, is_newcomer=True):
                return False
        return True

    def _prefill(self, plan: StepPlan, own: SchedulingClass, now: float, may_admit: bool) -> bool:
        """Hand out the tokens that are left, tenant by tenant; return whether all were let in."""
        started, waiting = own.prefills(plan.rows), own.waiting
        tenants = started.keys() | waiting.keys() if may_admit else started.keys()
        turns = [self._turn(plan, own, tenant) for tenant in tenants]
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
                heapq.heappush(turns, self._turn(plan, own, tenant))
        return may_admit

    def _turn(self, plan: StepPlan, own: SchedulingClass, tenant: str) -> tuple[float, str]:
        """Sort key of who is next: the least service, counting what this step adds to it."""
        booked = plan.booked.get(tenant, 0) * self._price.per_prompt_token
        return own.fair.service(tenant) + booked, tenant

    def _continue_prefill(self, plan: StepPlan, sequence: Sequence) -> None:
        chunk = plan.chunk(sequence)
        if sequence.slot >= 0 and chunk and self._grow(plan, sequence, chunk):
            plan.put(sequence, chunk)

    def _grow(self, plan: StepPlan, sequence: Sequence, num_tokens: int) -> bool:
        """Give a running sequence the blocks of its next tokens; False if it had to go itself."""
        missing = blocks_for(sequence.num_computed + num_tokens) - len(sequence.blocks)
        if missing <= 0:
            return True
        while self._pool.num_idle < missing:
            victim = preemption.victim(self._classes)
            self._preempt(plan, victim)
            if victim is sequence:
                return False
        sequence.blocks += self._pool.allocate(missing)
        return True

    def _admit(
        self,
        plan: StepPlan,
        sequence: Sequence,
        now: float,
        *,
        shares: int = 1,
        is_newcomer: bool = False,
    ) -> bool:
        """Give a waiting sequence a slot, blocks, and its first chunk; False leaves it waiting."""
        if sequence.preempted_at > self._num_settled:  # a step under way may have a row of it
            return False
        while not self._free_slots:
            if not self._displace(plan, sequence, is_newcomer=is_newcomer):
                return False
        blocks = self._pool.acquire(sequence.prefix_digests(self._names))  # rule 7 bounds them
        num_matched = len(blocks) * BLOCK_SIZE
        sequence.num_computed = num_matched + sequence.tail_after(num_matched)
        chunk = plan.chunk(sequence, shares)
        missing = blocks_for(sequence.num_computed + chunk) - len(blocks)
        needed = missing if is_newcomer else blocks_needed(self._classes, sequence, len(blocks))
        while chunk and self._pool.num_idle < needed:
            if not self._displace(plan, sequence, is_newcomer=is_newcomer):
                chunk = 0
            elif not is_newcomer:
                needed = blocks_needed(self._classes, sequence, len(blocks))
        if not chunk:
            self._pool.release(blocks)
            sequence.num_computed = 0
            return False
        self._place(sequence, blocks + self._pool.allocate(missing), now)
        plan.put(sequence, chunk, is_admission=True)
        return True

    def _place(self, sequence: Sequence, blocks: list[int], now: float) -> None:
        self._classes[sequence.priority].start(sequence)
        sequence.slot = self._free_slots.pop()
        sequence.blocks = blocks
        self.num_cache_query_tokens += sequence.num_tokens
        self.num_cache_hit_tokens += sequence.num_computed
        if sequence.start_time is None:
            sequence.start_time = now
            sequence.cached_tokens = min(sequence.num_computed, sequence.prompt_tokens - 1)

    def _displace(self, plan: StepPlan, sequence: Sequence, *, is_newcomer: bool) -> bool:
        """Preempt a running sequence if `sequence`, which waits, may take its place."""
        victim = preemption.victim_for(self._classes, sequence, is_newcomer=is_newcomer)
        if victim is not None:
            self._preempt(plan, victim)
        return victim is not None

    def _preempt(self, plan: StepPlan, sequence: Sequence) -> None:
        plan.drop(sequence)
        self.put_back(sequence)
