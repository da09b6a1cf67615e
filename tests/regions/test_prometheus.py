"""Metrics as text, read back by Prometheus' own client."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from skerry_regions.prometheus import (
    TOKEN_BOUNDS,
    Counter,
    Gauge,
    Histogram,
    ReadCounter,
    ReadGauge,
    exposition,
)

AWKWARD = 'a "quoted" \\ name\nof two lines'


def test_every_kind_is_read_back() -> None:
    counter = Counter("skerry_things_total", "Things \\ so far.\nReally.", ("name",))
    counter.add(2, AWKWARD)
    counter.add(0.5, AWKWARD)
    histogram = Histogram("skerry_wait_seconds", "Waits.", (0.1, 1), ("name",))
    for seconds in (0.1, 0.2, 5.0):
        histogram.observe(seconds, "m")
    metrics = [
        counter,
        histogram,
        Gauge("skerry_level", "Level.", lambda: 3.5),
        ReadGauge("skerry_rtt", "Distance.", ("node",), lambda: {("n",): 0.25}),
        ReadCounter("skerry_steps_total", "Steps.", ("name",), lambda: {("m",): 7}),
    ]
    families = {
        family.name: family
        for family in text_string_to_metric_families(exposition(metrics).decode())
    }
    kinds = {name: family.type for name, family in families.items()}
    assert kinds == {
        "skerry_things": "counter",
        "skerry_wait_seconds": "histogram",
        "skerry_level": "gauge",
        "skerry_rtt": "gauge",
        "skerry_steps": "counter",
    }
    assert families["skerry_things"].documentation == "Things \\ so far.\nReally."
    [sample] = families["skerry_things"].samples
    assert (sample.labels, sample.value) == ({"name": AWKWARD}, 2.5)
    samples = {
        (s.name, s.labels.get("le")): s.value for s in families["skerry_wait_seconds"].samples
    }
    assert samples == {
        ("skerry_wait_seconds_bucket", "0.1"): 1,
        ("skerry_wait_seconds_bucket", "1"): 2,
        ("skerry_wait_seconds_bucket", "+Inf"): 3,
        ("skerry_wait_seconds_count", None): 3,
        ("skerry_wait_seconds_sum", None): pytest.approx(5.3),
    }


def test_a_name_comes_once() -> None:
    first, second = Counter("skerry_a_total", "First."), Counter("skerry_a_total", "Second.")
    first.add(1)
    assert exposition([first, second]).decode().splitlines() == [
        "# HELP skerry_a_total First.",
        "# TYPE skerry_a_total counter",
        "skerry_a_total 1",
    ]


def test_bounds_of_token_counts() -> None:
    assert TOKEN_BOUNDS[:5] == (1, 2, 5, 10, 20)
    assert TOKEN_BOUNDS[-1] == 200_000
