"""The day of `bench.day`: its requests, its samples, and its rules."""

from __future__ import annotations

import numpy as np
import pytest
from bench.sim.cells import OURS, RULES, SKYWALKER, Part, play
from bench.sim.day_load import HOUR, LONGEST_SYSTEM, Load
from bench.sim.sampling import estimate, quantile, student
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
    """Skewed cells, in strata that differ, by a population that is known."""
    rng, cells, covered, draws = np.random.default_rng(7), 16, 0, 300
    whole: list[list[dict[str, float]]] = []
    truth = 0.0
    for _ in range(draws):
        levels = rng.uniform(1, 5, 24)
        whole = [
            [{"n": n, "y": n * float(rng.lognormal(level / 5, 0.4))}
             for n in rng.uniform(80, 120, cells)] for level in levels
        ]  # fmt: skip
        truth = sum(u["y"] for s in whole for u in s) / sum(u["n"] for s in whole for u in s)
        drawn = [[s[i] for i in rng.choice(cells, 3, replace=False)] for s in whole]
        covered += estimate(drawn, cells, ["y"], ["n"]).covers(truth)
    assert 0.91 <= covered / draws <= 0.985
    assert estimate(whole, cells, ["y"], ["n"]).low == pytest.approx(truth)  # nothing is left out


def test_quantiles_are_those_of_tables() -> None:
    """Student's t at 97.5 %, by degrees of freedom."""
    for freedom, t in ((5, 2.571), (10, 2.228), (24, 2.064), (120, 1.980)):
        assert student(freedom) == pytest.approx(t, rel=0.01)
    cells = [np.bincount(np.full(100, 3), minlength=9).astype(float) for _ in range(3)]
    assert quantile([cells], 0.5) == (3.0, 3.0, 3.0)


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
