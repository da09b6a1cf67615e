"""The time of an answer does not depend on other tenants' prompts, with the real model."""

from __future__ import annotations

import random

import pytest
from bench.measuring.rank_test import mann_whitney
from bench.server import skerry_server
from bench.serving.isolation import judge, measure, of_another_account

from skerry_regions.models.model_files import ModelFiles

PAIRS = 200


@pytest.mark.slow
@pytest.mark.model
def test_another_tenants_prompt_is_not_faster_and_ones_own_is(
    default_model: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKERRY_HOME", str(default_model.directory.parents[1]))
    chance = random.Random(1)
    with skerry_server() as first:
        verdict = judge(measure(first, of_another_account(first), PAIRS, chance))
    assert verdict.is_faster_again
    assert verdict.own < 0.01 < verdict.others


def test_the_rank_test_knows_equal_from_different() -> None:
    chance = random.Random(7)
    same = [[chance.gauss(0, 1) for _ in range(200)] for _ in range(2)]
    assert mann_whitney(*same) > 0.05
    assert mann_whitney(same[0], [each + 0.5 for each in same[1]]) < 1e-4
    assert mann_whitney([1.0] * 30, [1.0] * 30) == 1.0


def test_the_rank_test_agrees_with_permutations() -> None:
    chance = random.Random(3)
    values = [round(chance.gauss(0, 1) + (number >= 20) * 0.7, 1) for number in range(40)]
    told = mann_whitney(values[:20], values[20:])
    as_extreme = 0
    for _ in range(4000):
        shuffled = chance.sample(values, 40)
        as_extreme += mann_whitney(shuffled[:20], shuffled[20:]) <= told
    assert as_extreme / 4000 == pytest.approx(told, abs=0.015)


def test_the_rank_test_wants_enough() -> None:
    with pytest.raises(ValueError, match="at least 20"):
        mann_whitney([1.0] * 19, [1.0] * 20)
