"""The scheduler alone, on a virtual clock: a step takes `num_tokens` times a fixed price."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import count

import pytest
from bench.subjects.requests import Request, SamplingParams
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

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
        self.pool.sanity_check()
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


# --- chunks and continuous batching --------------------------------------------------------------


def test_a_prompt_is_prefilled_in_chunks_and_then_decodes() -> None:
    sim = Sim(max_step_tokens=100)
    sequence = sim.add(prompt=250, output=3)
    sizes = []
    while sim.live:
        sizes.append(sim.step()[sequence].num_tokens)
    assert sizes == [100, 100, 50, 1, 1]


def test_decode_rows_come_first_and_prefill_gets_the_rest_of_the_step() -> None:
    sim = Sim(max_step_tokens=100)
    decoding = [sim.add(prompt=10, output=50) for _ in range(4)]
    sim.step()
    late = sim.add(prompt=300)
    rows = sim.step()
    assert [rows[s].num_tokens for s in decoding] == [1, 1, 1, 1]
    assert rows[late].num_tokens == 96


def test_a_prompt_adds_little_to_the_gaps_of_running_streams() -> None:
    sim = Sim(max_step_tokens=100, max_gap_seconds=42.5 * SECONDS_PER_TOKEN)
    decoding = [sim.add(prompt=10, output=4) for _ in range(2)]
    sim.step()
    sim.step()
    late = sim.add(prompt=200, output=1)
    sizes = [sim.step()[late].num_tokens for _ in range(2)]
    assert not any(s in sim.live for s in decoding)
    sizes += [sim.step()[late].num_tokens for _ in range(2)]
    assert sizes == [40, 40, 100, 20]


def test_where_streams_take_long_themselves_a_step_takes_at_most_twice_as_long() -> None:
    sim = Sim(
        max_step_tokens=100, max_gap_seconds=SECONDS_PER_TOKEN, max_running=40, num_blocks=128
    )
    for _ in range(32):
        sim.add(prompt=1, output=9)
    sim.step()
    sim.step()
    late = sim.add(prompt=100, output=1)
    assert [sim.step()[late].num_tokens for _ in range(4)] == [32, 32, 32, 4]


def test_streams_of_batch_hold_no_interactive_prompt_back() -> None:
    sim = Sim(max_step_tokens=100, max_gap_seconds=40 * SECONDS_PER_TOKEN)
    sim.add(prompt=10, output=50, priority="batch")
    sim.step()
    prompt = sim.add(prompt=80)
    assert sim.step()[prompt].num_tokens == 80


def test_among_batch_nobody_waits_for_the_next_token() -> None:
    sim = Sim(max_step_tokens=100, max_gap_seconds=20 * SECONDS_PER_TOKEN)
    sim.add(prompt=10, output=50, priority="batch")
    sim.step()
    prompt = sim.add(prompt=200, priority="batch")
    assert sim.step()[prompt].num_tokens == 99


def test_new_requests_join_and_ended_ones_leave_between_any_two_steps() -> None:
    sim = Sim()
    first = sim.add(output=2)
    assert set(sim.step()) == {first}
    second = sim.add()
    assert set(sim.step()) == {first, second}
    assert set(sim.step()) == {second}


def test_prompt_logprobs_take_samples_so_their_chunks_are_as_small_as_these() -> None:
    sim = Sim(max_samples=16, max_running=8)
    decoding = [sim.add(output=30) for _ in range(3)]
    sim.step()
    sequence = sim.add(prompt=40, output=1, prompt_logprobs=0)
    for _ in range(3):
        rows = sim.step()
        assert rows[sequence].num_tokens == rows[sequence].num_samples == 13
        assert all(rows[s].is_decode for s in decoding)
    assert sim.step()[sequence].makes_token


# --- memory --------------------------------------------------------------------------------------


def test_the_youngest_makes_room_and_comes_back() -> None:
    sim = Sim(num_blocks=4)
    old = sim.add(prompt=64, output=120)
    young = sim.add(prompt=64, output=120)
    while sim.scheduler.num_preemptions == 0:
        sim.step()
    assert (old.slot >= 0, young.slot >= 0) == (True, False)
    sim.run()
    assert sim.pool.num_used == 0


def test_admission_leaves_room_for_what_runs() -> None:
    sim = Sim(num_blocks=5, max_step_tokens=64)
    first = sim.add(prompt=200)  # four blocks in the end, one of them held after a step
    second = sim.add(prompt=10)
    assert set(sim.step()) == {first}
    while second.slot < 0:
        sim.step()
    assert sim.scheduler.num_preemptions == 0


@pytest.mark.parametrize("prompt", [1, 63, 64])
def test_a_pool_of_one_block_serves_what_fits_it(prompt: int) -> None:
    sim = Sim(num_blocks=1)
    for _ in range(3):
        sim.add(prompt=prompt, output=64 - prompt + 1)
    sim.run()
    assert sim.pool.num_used == 0


def test_a_cached_prompt_runs_from_its_last_block_boundary() -> None:
    sim = Sim()
    sim.add(prompt=128, output=1, shared_prompt=True)
    sim.run()
    again = sim.add(prompt=128, output=1, shared_prompt=True)
    row = sim.step()[again]
    assert (row.start, row.num_tokens) == (64, 64)
    longer = sim.add(prompt=129, output=1, shared_prompt=True)
    row = sim.step()[longer]
    assert (row.start, row.num_tokens) == (128, 1)
    assert longer.cached_tokens == 128
    assert sim.scheduler.num_cache_hit_tokens == 64 + 128


def test_running_sequences_share_a_prefix() -> None:
    sim = Sim(num_blocks=5)
    sim.add(prompt=129, output=20, shared_prompt=True)
    sim.step()
    sim.step()
    other = sim.add(prompt=129, output=20, shared_prompt=True)
    assert sim.step()[other].start == 128
    assert sim.pool.num_used == 4
    sim.run()


# --- priorities ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_blocks", [8, 64])
def test_batch_never_delays_an_interactive_first_token(num_blocks: int) -> None:
    sim = Sim(num_blocks=num_blocks, max_running=4, max_step_tokens=100)
    for _ in range(6):
        sim.add("bulk", prompt=120, output=50, priority="batch")
    for _ in range(10):
        sim.step()
    assert sim.scheduler.num_running > 0
    sequence = sim.add("bulk", prompt=250)  # 3 steps when it is alone
    for expected in (100, 100, 50):
        rows = sim.step()
        assert {s: row.num_tokens for s, row in rows.items()} == {sequence: expected}
    rows = sim.step()
    assert len(rows) > 1, "batch goes on beside decode rows"
    sim.run()


def test_interactive_takes_the_slots_of_batch_youngest_first() -> None:
    sim = Sim(max_running=3)
    batch = [sim.add("bulk", output=100, priority="batch") for _ in range(3)]
    sim.step()
    for i in range(3):
        sim.add("bulk", output=100)
        sim.step()
        assert [s.slot >= 0 for s in batch] == [j < 2 - i for j in range(3)]


def test_batch_never_takes_from_interactive() -> None:
    sim = Sim(max_running=2)
    for _ in range(2):
        sim.add("hog", output=20)
    sim.step()
    late = sim.add("newcomer", priority="batch")
    for _ in range(19):
        assert late not in sim.step()
    assert late in sim.step()


# --- fairness ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_blocks", [9, 1000])
@pytest.mark.parametrize("prompt", [1, 64, 200])
def test_a_newcomers_first_chunk_is_in_the_next_step(num_blocks: int, prompt: int) -> None:
    sim = Sim(num_blocks=num_blocks, max_running=4)
    hogs = [sim.add("hog", prompt=100, output=400) for _ in range(20)]
    for _ in range(30):
        sim.step()
    if num_blocks == 9:
        assert sim.pool.num_idle <= 2
    else:
        assert sim.scheduler.num_running == 4
    newcomer = sim.add("newcomer", prompt=prompt, output=5)
    assert newcomer in sim.step()
    while newcomer in sim.live:
        assert newcomer.slot >= 0, "and it stays: the hog has others"
        sim.step()
    assert any(s.slot >= 0 for s in hogs)
    sim.run()


def test_as_many_newcomers_as_slots_get_their_first_chunk_at_once() -> None:
    sim = Sim(num_blocks=1000, max_running=4, max_step_tokens=8)
    for _ in range(9):
        sim.add("hog", prompt=50, output=400)
    for _ in range(40):
        sim.step()
    newcomers = [sim.add(f"tenant {i}", prompt=50, output=3) for i in range(4)]
    assert set(sim.step()) == set(newcomers)
    sim.run()


def test_the_tenant_with_the_most_service_makes_room() -> None:
    sim = Sim(max_running=2)
    modest = sim.add("modest", prompt=10, output=300)
    hog = sim.add("hog", prompt=600, output=300)
    for _ in range(10):
        sim.step()
    sim.add("newcomer")
    sim.step()
    assert (modest.slot >= 0, hog.slot >= 0) == (True, False)


def test_a_tenant_that_was_served_is_no_newcomer_when_it_comes_back() -> None:
    sim = Sim(max_running=1, num_blocks=1000)
    sim.add("greedy", prompt=1000, output=1)
    sim.run()
    steady = sim.add("steady", prompt=10, output=200)
    sim.step()
    greedy = sim.add("greedy", prompt=1000, output=1)
    assert greedy in sim.step(), "its history ended when nobody was there to compare with"
    while greedy in sim.live:
        sim.step()
    greedy = sim.add("greedy", prompt=1000, output=1)
    assert set(sim.step()) == {steady}


def test_backlogged_tenants_get_equal_service_within_one_full_batch() -> None:
    """The form of VTC's bound (Sheng et al., theorem 4.4): twice the service of a full batch."""
    sim = Sim(max_running=4, num_blocks=64, max_step_tokens=64)
    shapes = {"long prompts": (300, 5), "long answers": (5, 60), "both": (100, 30)}
    bound = 2 * 4 * 305 * SECONDS_PER_TOKEN
    for _ in range(4000):
        backlog = Counter(s.request.tenant for s in sim.live)
        for tenant, (prompt, output) in shapes.items():
            for _ in range(5 - backlog[tenant]):
                sim.add(tenant, prompt=prompt, output=output)
        sim.step()
        assert max(sim.service.values()) - min(sim.service.values()) <= bound
    assert sum(sim.service.values()) > 15 * bound, "long enough to tell"


def test_a_flood_does_not_slow_a_tenant_with_one_request_at_a_time() -> None:
    sim = Sim(max_running=4, max_step_tokens=64)
    for _ in range(200):
        sim.add("flood", prompt=100, output=40)
    for _ in range(20):
        sequence = sim.add("calm", prompt=30, output=10)
        steps = 0
        while sequence in sim.live:
            sim.step()
            steps += 1
        assert steps <= 11


# --- anything, at any time -----------------------------------------------------------------------

ARRIVAL = st.tuples(
    st.integers(0, 6),  # steps before it
    st.sampled_from("abcde"),  # tenant
    st.sampled_from(["interactive", "batch"]),
    st.integers(1, 200),  # prompt
    st.integers(1, 40),  # output
    st.booleans(),  # prompt shared with others
    st.sampled_from([None, None, 2]),  # prompt logprobs
    st.none() | st.integers(0, 20),  # aborted after so many steps
)


@given(
    arrivals=st.lists(ARRIVAL, min_size=1, max_size=16),
    num_blocks=st.integers(4, 20),
    max_running=st.integers(1, 6),
    extra_tokens=st.integers(0, 150),
    gap_tokens=st.integers(0, 150),
    extra_samples=st.integers(0, 20),
)
@settings(max_examples=examples(300), deadline=None)
def test_everything_ends_and_the_rules_hold_after_every_step(
    arrivals: list[tuple[int, str, PriorityName, int, int, bool, int | None, int | None]],
    num_blocks: int,
    max_running: int,
    extra_tokens: int,
    gap_tokens: int,
    extra_samples: int,
) -> None:
    sim = Sim(
        num_blocks=num_blocks,
        max_running=max_running,
        max_step_tokens=max_running + extra_tokens,
        max_gap_seconds=gap_tokens * SECONDS_PER_TOKEN,
        max_samples=max_running + extra_samples,
    )
    doomed: dict[Sequence, int] = {}
    for delay, tenant, priority, prompt, output, shared, logprobs, lifetime in arrivals:
        for _ in range(delay):
            step_with_newcomers(sim)
            for sequence in [s for s in doomed if s in sim.live]:
                doomed[sequence] -= 1
                if doomed[sequence] < 0:
                    sim.abort(sequence)
        sequence = sim.add(
            tenant,
            prompt=prompt,
            output=min(output, num_blocks * BLOCK_SIZE - prompt + 1),
            priority=priority,
            shared_prompt=shared,
            prompt_logprobs=logprobs,
        )
        if lifetime is not None:
            doomed[sequence] = lifetime
    sim.run()
    assert sim.pool.num_used == 0
    assert sim.scheduler.num_running == sim.scheduler.num_waiting == 0


def step_with_newcomers(sim: Sim) -> None:
    """One step, in which the longest-waiting newcomer, at least, gets its first chunk."""
    fair = sim.scheduler._classes[INTERACTIVE].fair
    newcomers = [
        s for s in sim.live if s.priority is INTERACTIVE and fair.is_newcomer(s.request.tenant)
    ]
    rows = sim.step()
    if newcomers:
        assert newcomers[0] in rows
