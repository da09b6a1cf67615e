"""Means of round trips."""

from __future__ import annotations

import pytest

from skerry_regions.geo.measured_rtt import MIN_SAMPLES, NEWEST, MeasuredRtt


def test_a_mean_counts_once_there_are_enough_samples_and_then_follows_the_newest() -> None:
    rtt = MeasuredRtt()
    for i in range(MIN_SAMPLES):
        assert rtt.of("fra") == {}
        rtt.add("fra", "iad", 0.08 + 0.02 * (i % 2))
        rtt.add("nrt", "iad", 0.2)
    assert rtt.of("fra") == {"iad": pytest.approx((0.08 * 0.10) ** 0.5)}
    for _ in range(round(3 / NEWEST)):
        rtt.add("fra", "iad", 0.5)
    assert rtt.of("fra")["iad"] == pytest.approx(0.5, rel=0.1)
    assert rtt.of("nrt") == {"iad": pytest.approx(0.2)}


def test_a_round_trip_that_takes_long_now_and_then_is_not_what_it_usually_takes() -> None:
    rtt = MeasuredRtt()
    for i in range(1000):
        rtt.add("fra", "iad", 0.0 if i == 500 else 3.0 if i % 50 == 0 else 0.1)
    assert rtt.of("fra")["iad"] == pytest.approx(0.1, rel=0.1)
