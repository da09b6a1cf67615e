"""The scheduler alone, on a virtual clock: a step takes `num_tokens` times a fixed price."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.engine.virtual_clock import INTERACTIVE, SECONDS_PER_TOKEN, Sim
from tests.properties import examples

from skerry_core.config import BLOCK_SIZE
from skerry_core.engine.sequence import Sequence
from skerry_core.request import PriorityName


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
@settings(max_examples=examples(120, deep=1500), deadline=None)
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
