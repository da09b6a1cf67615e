"""Whose turn it is, on a virtual clock: interactive before batch, tenants alike, memory shared."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.core.engine.virtual_clock import SECONDS_PER_TOKEN, Sim


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
