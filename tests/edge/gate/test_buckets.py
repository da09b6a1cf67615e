"""Buckets keep to their rate whatever is asked of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry_edge.gate.token_bucket import WINDOW_SECONDS, Bucket, Pace

RATES = st.floats(0.5, 1e6)
EVENTS = st.lists(
    st.tuples(st.floats(0.0, 120.0), st.floats(0.0, 200.0)), min_size=1, max_size=40
)  # (seconds since the last one, amount)


@given(rate=RATES, events=EVENTS)
def test_never_more_than_a_full_bucket_and_the_rate(
    rate: float, events: list[tuple[float, float]]
) -> None:
    bucket, now = Bucket(rate, 0.0), 0.0
    taken: list[tuple[float, float]] = []
    for pause, share in events:
        now += pause
        amount = share / 100 * rate  # up to twice what the bucket holds
        if not bucket.wait(amount, now):
            bucket.take(amount, now)
            taken.append((now, amount))
    for i, (begin, _) in enumerate(taken):
        total = 0.0
        for end, amount in taken[i:]:
            total += amount
            allowed = rate * (1 + (end - begin) / WINDOW_SECONDS) + max(0.0, amount - rate)
            assert total <= allowed + 1e-6 * rate


@given(rate=RATES, events=EVENTS)
def test_the_advice_is_exact(rate: float, events: list[tuple[float, float]]) -> None:
    bucket, now = Bucket(rate, 0.0), 0.0
    for pause, share in events:
        now += pause
        amount = share / 100 * rate
        wait = bucket.wait(amount, now)
        if wait > 1e-3:
            assert bucket.wait(amount, now + wait * 0.999) > 0.0
        assert bucket.wait(amount, now + wait) <= 1e-9 * WINDOW_SECONDS * (1 + now)
        bucket.take(amount, now)


def test_what_was_not_used_comes_back_up_to_the_brim() -> None:
    bucket = Bucket(60.0, 0.0)
    bucket.take(50.0, 0.0)
    bucket.take(-20.0, 0.0)
    assert bucket.left(0.0) == 30.0
    bucket.take(-100.0, 0.0)
    assert bucket.left(0.0) == 60.0


def test_a_request_larger_than_the_bucket_waits_for_a_full_one_and_leaves_a_debt() -> None:
    bucket = Bucket(60.0, 0.0)
    bucket.take(1.0, 0.0)
    assert bucket.wait(90.0, 0.0) == 1.0
    bucket.take(90.0, 1.0)
    assert bucket.left(1.0) == -30.0
    assert bucket.wait(1.0, 1.0) == 31.0


def test_another_rate_keeps_what_was_used() -> None:
    bucket = Bucket(60.0, 0.0)
    bucket.take(60.0, 0.0)
    bucket.set_rate(600.0, 0.0)
    assert bucket.left(0.0) == 0.0
    assert bucket.left(6.0) == 60.0
    bucket.set_rate(6.0, 6.0)
    assert bucket.left(6.0) == 6.0


def test_seconds_to_full() -> None:
    bucket = Bucket(60.0, 0.0)
    bucket.take(15.0, 0.0)
    assert bucket.seconds_to_full(0.0) == 15.0
    assert bucket.seconds_to_full(100.0) == 0.0


@pytest.mark.parametrize(
    ("freed", "advice"),
    [((), 1), ((5.0,), 1), ((0.0, 0.1), 1), ((0.0, 3.5), 4), ((0.0, 1000.0), 60)],
)
def test_the_pace_of_places(freed: tuple[float, ...], advice: float) -> None:
    pace = Pace()
    for at in freed:
        pace.append(at)
    assert pace.wait() == advice
    assert math.isfinite(pace.wait())
