"""Pauses before restarts grow, stay bounded, and are forgotten by who runs steadily."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from skerry_regions.process.backoff import Backoff, RestartPolicy

POLICY = RestartPolicy(jitter=0.0)


def test_pauses_double_up_to_the_most() -> None:
    backoff = Backoff(POLICY, Random(1))
    pauses = [backoff.failed(0.0) for _ in range(12)]
    assert pauses == [min(0.1 * 2**k, 30.0) for k in range(12)]


def test_a_crash_loop_is_called_one_until_it_runs_steadily() -> None:
    backoff = Backoff(POLICY, Random(1))
    for _ in range(POLICY.crash_loop):
        assert not backoff.is_crash_loop
        backoff.failed(1.0)
    assert backoff.is_crash_loop
    assert backoff.failed(POLICY.steady) == POLICY.first
    assert not backoff.is_crash_loop


@given(st.lists(st.floats(0, 100), max_size=200), st.integers(0, 1000))
def test_a_pause_is_never_longer_than_the_most(ran: list[float], seed: int) -> None:
    policy = RestartPolicy()
    backoff = Backoff(policy, Random(seed))
    for seconds in ran:
        assert policy.first * (1 - policy.jitter) <= backoff.failed(seconds) <= policy.most
