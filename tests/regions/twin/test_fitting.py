"""Calibration: coefficients that are known are found, and what was seen becomes a scenario."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from random import Random

import numpy as np
import pytest
from msgspec.structs import astuple

from skerry_edge.ledger.usage_tables import SCHEMA
from skerry_regions.speeds import StepSample
from skerry_regions.twin.calibrated import (
    CalibratedPlatform,
    SeenPool,
    as_yaml,
    journaled,
    scenario_of,
    trace_of,
)
from skerry_regions.twin.fitting import FitError, StepDifference, fit, nonnegative, readings
from skerry_regions.twin.scenario import Law, load_scenario
from skerry_regions.twin.traces import read_trace

TRUTH = Law(base=0.01, per_token=1e-4, per_pair=2e-9, per_stream=3e-4, per_context=4e-8)
GAP = 0.002


def measured(node: str, slower: float, rng: Random, noise: float = 0.0) -> StepDifference:
    """A second of a node that computes prompts of up to 8,000 tokens beside up to 20 streams."""
    steps, share = 40, rng.random()
    new = int(steps * 400 * share)
    streams = rng.randrange(1, 20) * steps
    features = (
        steps,
        new,
        new * rng.uniform(100, 8000),
        streams,
        streams * rng.randrange(99, 9999),
    )
    coefficients = astuple(TRUTH)[:5]
    seconds = sum(a * b for a, b in zip(coefficients, features, strict=True))
    seconds *= slower * (1 + rng.gauss(0, noise))
    sample = StepSample(
        steps=steps, seconds=seconds, new_tokens=new, attended=features[2], streams=streams,
        context=features[4],
    )  # fmt: skip
    return StepDifference(node=node, seconds=seconds + steps * GAP, sample=sample, worked=True)


def test_the_coefficients_of_made_up_steps_are_found() -> None:
    rng = Random(1)
    rows = [measured(node, 1.0, rng, 0.02) for _ in range(200) for node in ("a", "b")]
    found = fit(rows, chunk_tokens=2048, gap_seconds=0.3)
    assert found.gap == pytest.approx(GAP)
    assert found.law.base - found.gap == pytest.approx(TRUTH.base, rel=0.05)
    for name in ("per_token", "per_stream", "per_context"):
        assert getattr(found.law, name) == pytest.approx(getattr(TRUTH, name), rel=0.05)
    assert found.has_pairs
    assert found.law.per_pair == pytest.approx(TRUTH.per_pair, rel=0.1)
    assert found.factors == pytest.approx({"a": 1.0, "b": 1.0}, rel=0.01)
    assert found.noise == pytest.approx(0.02 * 40**0.5, rel=0.2)
    truth = (TRUTH.base, TRUTH.per_token, TRUTH.per_pair, TRUTH.per_stream, TRUTH.per_context)
    law = found.law
    got = (law.base - GAP, law.per_token, law.per_pair, law.per_stream, law.per_context)
    assert all(abs(a - b) < 4 * e for a, b, e in zip(got, truth, found.errors, strict=True))


def test_a_slower_node_has_a_factor_of_its_own() -> None:
    rng = Random(2)
    rows = [measured(n, f, rng) for _ in range(60) for n, f in (("a", 1.0), ("b", 1.0), ("c", 2.0))]
    factors = fit(rows, chunk_tokens=512, gap_seconds=0.03).factors
    assert factors["c"] / factors["a"] == pytest.approx(2.0, rel=0.02)


def test_prompts_that_are_all_alike_do_not_show_what_a_pair_costs() -> None:
    rows = []
    for number in range(40):
        new, streams = 100 * (1 + number % 7), number % 5
        sample = StepSample(
            steps=10, seconds=0.1 + 1e-4 * new + 3e-4 * streams, new_tokens=new,
            attended=50.0 * new, streams=streams, context=0.0,
        )  # fmt: skip
        rows.append(StepDifference(node="a", seconds=1.0, sample=sample, worked=False))
    found = fit(rows, chunk_tokens=512, gap_seconds=0.03)
    assert not found.has_pairs
    assert found.gap == found.law.per_pair == 0
    assert found.law.per_token == pytest.approx(1e-4)
    assert found.law.per_stream == pytest.approx(3e-4)


def test_too_little_is_an_error_that_says_what_to_do() -> None:
    rng = Random(3)
    with pytest.raises(FitError, match=r"19 readings .* at least 20"):
        fit([measured("a", 1.0, rng) for _ in range(19)], chunk_tokens=512, gap_seconds=0.03)


def test_no_coefficient_is_negative() -> None:
    """Without the bound the second would be -1: the first alone is then the mean of 3 and 1."""
    matrix, target = np.array([[1.0, 0.0], [1.0, 2.0]]), np.array([3.0, 1.0])
    assert nonnegative(matrix, target, np.array([True, True])) == pytest.approx([2.0, 0.0])


def test_looks_become_differences_and_a_restarted_node_is_left_out() -> None:
    def sums(steps: int) -> StepSample:
        return StepSample(steps=steps, seconds=steps / 10, new_tokens=7 * steps)

    looks = [
        (0.0, {"a": (sums(5), 1), "b": (sums(9), 0)}),
        (1.5, {"a": (sums(8), 2), "b": (sums(2), 0)}),
    ]
    [found] = readings(looks)
    assert (found.node, found.seconds, found.worked) == ("a", 1.5, True)
    assert (found.sample.steps, found.sample.new_tokens) == (3, 21)
    assert found.sample.seconds == pytest.approx(0.3)


def journal(path: Path) -> None:
    """A journal with two completed requests, a failed one, and one that still runs."""
    with sqlite3.connect(path) as database:
        database.executescript(SCHEMA)
        for number, (admitted, settled, outcome, output) in enumerate(
            [
                (1000.0, 1001.0, "completed", 20),
                (1002.5, 1004.0, "completed", 30),
                (1003.0, 1004.0, "failed", 3),
                (1005.0, None, "running", 5),
            ]
        ):
            database.execute(
                "INSERT INTO usage (id, edge, life, tenant, token, model, admitted, settled,"
                " outcome, prompt_tokens, output_tokens, queue_seconds, prefill_seconds,"
                " decode_seconds, prompt_price, cached_price, output_price)"
                " VALUES (?, 'e1', 'l', 't', 'k', 'm', ?, ?, ?, ?, ?, 0.1, 0.2, 0.6, 0, 0, 0)",
                (str(number), admitted, settled, outcome, 100 + number, output),
            )


def test_a_journal_is_a_trace(tmp_path: Path) -> None:
    journal(tmp_path / "usage.db")
    requests = read_trace(tmp_path / "usage.db").requests
    assert [(r.arrival, r.prompt_tokens, r.output_tokens, r.blocks) for r in requests] == [
        (0.0, 100, 20, ()), (2.5, 101, 30, ()), (3.0, 102, 3, ()), (5.0, 103, 5, ()),
    ]  # fmt: skip
    found = journaled(tmp_path / "usage.db", 1001.0)
    assert [(r.admitted, r.prompt_tokens, r.edge) for r in found] == [(1002.5, 101, "e1")]
    assert found[0].overhead == pytest.approx(1.5 - 0.9)


def test_what_was_seen_is_a_scenario_that_can_be_read_back(tmp_path: Path) -> None:
    journal(tmp_path / "usage.db")
    requests = journaled(tmp_path / "usage.db", 0.0)
    rng = Random(4)
    law = fit([measured("n0", 1.0, rng) for _ in range(40)], chunk_tokens=512, gap_seconds=0.05)
    seen = CalibratedPlatform(
        pools=[
            SeenPool(region="fra", role="hybrid", nodes=["n0"], cache_tokens=6400, law=law),
        ],
        edges={"e1": "fra", "e2": "iad"},
        rtts={("fra", "iad"): 0.09},
    )
    file = tmp_path / "seen.yaml"
    given = scenario_of(seen, requests, "seen.csv", "seen")
    file.write_text(as_yaml(given, seen.pools))
    assert load_scenario(file) == given
    assert [region.name for region in given.regions] == ["fra", "iad"]
    assert given.traffic[0].regions == {"fra": 2}
    (tmp_path / "seen.csv").write_text(trace_of(requests))
    found = read_trace(tmp_path / "seen.csv").requests
    assert [(r.arrival, r.prompt_tokens, r.output_tokens) for r in found] == [
        (0.0, 100, 20), (2.5, 101, 30),
    ]  # fmt: skip
