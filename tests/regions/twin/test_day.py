"""The day of `bench.routing.day`: its requests, its samples, and its rules."""

from __future__ import annotations

import numpy as np
import pytest
from bench.routing.sim.cells import OURS, RULES, SKYWALKER, Part, play
from bench.routing.sim.day_load import HOUR, LONGEST_SYSTEM, Load
from bench.routing.sim.sampling import estimate, quantile, student
from tests.regions.twin.worlds import load_kernels

LOAD = Load(rate=2.0, seed=5)


def test_a_part_of_a_day_is_what_the_whole_day_has_there() -> None:
    whole, part = LOAD.window(3, 0.0, 6 * HOUR), LOAD.window(3, 4 * HOUR, 5 * HOUR)
    inside = (whole.arrivals >= 4 * HOUR) & (whole.arrivals < 5 * HOUR)
    late = np.isin(whole.arrivals[inside].round(6), (part.arrivals + 4 * HOUR).round(6))
    assert late.mean() > 0.99  # the others' sessions are over an hour old
    names = {tuple(part.names[f : f + b]) for f, b in zip(part.firsts, part.blocks, strict=True)}
    picked = np.flatnonzero(inside)[late]
    assert {
        tuple(whole.names[whole.firsts[x] : whole.firsts[x] + whole.blocks[x]]) for x in picked
    } <= names


def test_a_turn_has_all_that_was_said_before() -> None:
    load = LOAD.window(0, 0.0, HOUR)
    chains = [load.names[f : f + b].tolist() for f, b in zip(load.firsts, load.blocks, strict=True)]
    seen: dict[int, list[int]] = {}
    longer = 0
    for chain in chains:
        owner = seen.get(chain[-1]) if chain else None
        for depth in range(len(chain), 0, -1):
            if chain[depth - 1] in seen:
                assert seen[chain[depth - 1]][:depth] == chain[:depth]
                longer += depth > LONGEST_SYSTEM
                break
        seen.update(dict.fromkeys(chain, chain))
        assert owner is None or len(owner) >= len(chain)
    assert longer > 0.2 * len(chains)


def test_the_load_follows_the_sun() -> None:
    load = LOAD.window(1, 0.0, 24 * HOUR)
    assert len(load) / (24 * HOUR) == pytest.approx(LOAD.rate, rel=0.05)
    nights = {0: (5.0, 7.0), 1: (23.0, 24.0), 2: (15.0, 17.0)}  # UTC
    for region, (begin, end) in nights.items():
        at = load.arrivals[load.regions == region] / HOUR
        share = ((at >= begin) & (at < end)).mean() * 24 / (end - begin)
        assert share < 0.5


def test_intervals_cover_the_whole_as_often_as_they_say() -> None:
    """Skewed cells of a population that is known, each of several hours that depend on another."""
    rng, cells, covered, draws = np.random.default_rng(7), 64, 0, 600
    for _ in range(draws):
        level = rng.lognormal(0.0, 0.3, (cells, 1))  # of a cell, in all of its hours
        n = rng.uniform(80, 120, (cells, 24))
        y = n * level * rng.lognormal(0.0, 0.4, n.shape)
        whole = [{"n": a, "y": b} for a, b in zip(n.sum(1), y.sum(1), strict=True)]
        truth = y.sum() / n.sum()
        drawn = [whole[i] for i in rng.choice(cells, 6, replace=False)]
        covered += estimate(drawn, cells, ["y"], ["n"]).covers(truth)
        assert estimate(whole, cells, ["y"], ["n"]).low == pytest.approx(truth)  # none is left out
    assert 0.92 <= covered / draws <= 0.975


def test_quantiles_of_cells_that_differ_have_their_intervals() -> None:
    """Of lognormal values, more in some cells than in others, against a sort of all of them."""
    rng, cells, draws = np.random.default_rng(3), 64, 300
    edges = 0.01 * 1.02 ** np.arange(500)
    covered = dict.fromkeys((0.5, 0.95, 0.99), 0)
    for _ in range(draws):
        values = [
            rng.lognormal(level, 0.5, rng.integers(300, 900))
            for level in rng.normal(0.0, 0.1, cells)
        ]
        counts = [np.histogram(each, edges)[0].astype(float) for each in values]
        drawn = rng.choice(cells, 6, replace=False)
        for share in covered:
            truth = np.quantile(np.concatenate(values), share)
            found = quantile([counts[each] for each in drawn], cells, share)
            low, high = (edges[0] * 1.02**place for place in (found.low, found.high))
            covered[share] += low <= truth <= high
            if share == 0.5:
                whole = quantile(counts, cells, share)
                assert edges[0] * 1.02**whole.value == pytest.approx(truth, rel=0.01)
                assert whole.low == pytest.approx(whole.high)
    assert {
        share: count for share, count in covered.items() if not 0.9 <= count / draws <= 0.98
    } == {}


def test_quantiles_of_student_are_those_of_tables() -> None:
    """At 97.5 %, by degrees of freedom."""
    for freedom, t in ((3, 3.182), (5, 2.571), (10, 2.228), (24, 2.064), (120, 1.980)):
        assert student(freedom) == pytest.approx(t, rel=0.01)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_serves_a_cell_through_the_outage(rule: str) -> None:
    load_kernels()
    part = Part(Load(rate=3.0, seed=5), cell=1, hour=14)
    played = play(part, rule)
    assert played.sums["requests"] == pytest.approx(3.0 * HOUR, rel=0.5)
    assert played.sums["failed"] < 0.02 * played.sums["requests"]
    assert 0 < played.sums["first"] < played.sums["whole"]
    assert played.sums["cost"] > 0
    assert played.sums["abroad"] > 0
    assert played.first_tokens.sum() == played.sums["requests"]
    if rule in (OURS, SKYWALKER):
        again = play(part, rule)
        assert (again.sums, again.simulated) == (played.sums, played.simulated)
