"""The scheduler on a virtual clock: a step takes `num_tokens` times a fixed price."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import count

from bench.subjects.requests import Request, SamplingParams
from tests.core.kv.sane_pools import check_pool

from skerry_core.blocks import BlockPool, blocks_for
from skerry_core.config import BLOCK_SIZE
from skerry_core.engine.scheduler import Scheduler
from skerry_core.engine.sequence import Sequence
from skerry_core.engine.step_plan import PlannedRow
from skerry_core.engine.step_price import StepPrice
from skerry_core.names import BlockNames
from skerry_core.request import Priority, PriorityName

SECONDS_PER_TOKEN = 0.001
INTERACTIVE = Priority.INTERACTIVE


class Sim:
    """A scheduler, its queue of sequences, and a device that takes time and makes tokens."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        max_running: int = 8,
        max_step_tokens: int = 128,
        max_gap_seconds: float = math.inf,
        max_samples: int = 64,
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.max_running = max_running
        self.max_step_tokens = max_step_tokens
        self.max_samples = max_samples
        self.scheduler = Scheduler(
            self.pool,
            names=BlockNames(b"model"),
            max_running=max_running,
            max_step_tokens=max_step_tokens,
            max_gap_seconds=max_gap_seconds,
            max_samples=max_samples,
            price=StepPrice(),
        )
        self.now = 0.0
        self.live: list[Sequence] = []
        self.service: defaultdict[str, float] = defaultdict(float)  # seconds by tenant
        self._numbers = count()

    def add(
        self,
        tenant: str = "",
        *,
        prompt: int = 10,
        output: int = 10,
        priority: PriorityName = "interactive",
        shared_prompt: bool = False,
        prompt_logprobs: int | None = None,
    ) -> Sequence:
        number = next(self._numbers)
        salt = 0 if shared_prompt else number
        request = Request(
            id=str(number),
            prompt_ids=tuple(salt * 10_000 + i for i in range(prompt)),
            sampling=SamplingParams(max_tokens=output),
            tenant=tenant,
            priority=priority,
            prompt_logprobs=prompt_logprobs,
        )
        sequence = request.sequence()
        sequence.arrive(number, self.now)
        self.scheduler.add(sequence)
        self.live.append(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        self.live.remove(sequence)
        self.scheduler.remove(sequence)

    def step(self) -> dict[Sequence, PlannedRow]:
        """One checked step; its rows by sequence."""
        rows = self.scheduler.schedule(self.now)
        self.check(rows)
        if rows:
            seconds = SECONDS_PER_TOKEN * sum(row.num_tokens for row in rows)
            self.scheduler.settle(rows, seconds)
            self.now += seconds
            for row in rows:
                self.service[row.sequence.request.tenant] += SECONDS_PER_TOKEN * row.num_tokens
                self.finish(row)
        check_pool(self.pool)
        return {row.sequence: row for row in rows}

    def finish(self, row: PlannedRow) -> None:
        sequence = row.sequence
        sequence.num_prompt_logprobs += row.num_targets
        if row.makes_token:
            sequence.append(sequence.output_tokens)
            if sequence.output_tokens == sequence.request.sampling.max_tokens:
                self.abort(sequence)

    def run(self, max_steps: int = 10_000) -> None:
        while self.live:
            assert max_steps > 0, "starved or stuck"
            max_steps -= 1
            assert self.step(), "nothing runs although there is work"

    def check(self, rows: list[PlannedRow]) -> None:
        assert sum(row.num_tokens for row in rows) <= self.max_step_tokens
        assert sum(row.num_samples for row in rows) <= self.max_samples
        running = [s for s in self.live if s.slot >= 0]
        assert len({s.slot for s in running}) == len(running) <= self.max_running
        assert len(running) == self.scheduler.num_running
        assert len(self.live) - len(running) == self.scheduler.num_waiting
        references = Counter(block for s in running for block in s.blocks)
        assert self.pool.num_used == len(references)
        for sequence in self.live:
            if sequence.slot < 0:
                assert (sequence.blocks, sequence.num_computed) == ([], 0)
        for row in rows:
            sequence, stop = row.sequence, row.start + row.num_tokens
            assert row.num_tokens >= 1
            assert row.start == sequence.num_computed
            assert stop <= sequence.num_tokens
            written = sequence.blocks[row.start // BLOCK_SIZE : blocks_for(stop)]
            assert len(sequence.blocks) >= blocks_for(stop)
            assert all(references[block] == 1 for block in written), "writes a shared block"
        self.check_classes(rows)

    def check_classes(self, rows: list[PlannedRow]) -> None:
        kinds = [(row.sequence.priority, not row.is_decode) for row in rows]
        assert kinds == sorted(kinds), "interactive before batch, decode before prefill"
        if (INTERACTIVE, True) in kinds:
            assert kinds[-1][0] is INTERACTIVE, "batch runs beside an interactive first token"
        waits = any(s.slot < 0 and s.priority is INTERACTIVE for s in self.live)
        if waits:
            assert all(priority is INTERACTIVE for priority, _ in kinds), "batch overtakes"
