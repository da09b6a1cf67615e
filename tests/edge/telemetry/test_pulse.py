"""What an edge tells of its last minute."""

from __future__ import annotations

import pytest
from tests.clock import Clock

from skerry_edge.api.load_report import EdgePulse, RecentLatency
from skerry_edge.telemetry.metrics import EdgeMetrics
from skerry_regions.prometheus import Histogram
from skerry_regions.registry import Member


def test_the_p95_is_that_of_the_last_minute() -> None:
    clock = Clock()
    histogram = Histogram("h", "", (0.1, 0.2, 0.4, 0.8), ("model",))
    recent = RecentLatency(histogram, clock)
    assert recent.p95() == {}
    for _ in range(100):
        histogram.observe(0.15, "a")
    assert recent.p95() == {"a": pytest.approx(0.195)}
    for _ in range(12):
        clock.now += 5.0
        recent.p95()
    for _ in range(10):
        histogram.observe(0.7, "a")
    clock.now += 5.0
    assert recent.p95() == {"a": pytest.approx(0.78)}, "what is older than a minute is forgotten"
    for _ in range(14):
        clock.now += 5.0
        recent.p95()
    assert recent.p95() == {}


def test_beyond_the_last_bound_it_is_that_bound() -> None:
    histogram = Histogram("h", "", (0.1, 0.2), ("model",))
    recent = RecentLatency(histogram, Clock())
    histogram.observe(9.0, "a")
    assert recent.p95() == {"a": 0.2}


def test_an_edges_record_has_it() -> None:
    metrics = EdgeMetrics()
    pulse = EdgePulse(metrics, None, Clock())
    metrics.time_to_first_token.observe(0.3, "m")
    metrics.inter_token_latency.observe(0.02, "m")
    told = pulse.of(Member(id="e", kind="edge", region="r"))
    assert (told.held, [*told.ttft], [*told.itl]) == ({}, ["m"], ["m"])
