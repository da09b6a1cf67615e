"""Rules of other systems on the twin, and what ours learns there."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import pytest
from bench.routing.sim.peers import RULES
from bench.routing.sim.play import KNOWN, NARROW, OURS, SPLIT, play, run_of
from bench.routing.sim.rules import dynamo_cost
from bench.routing.sim.settings import Setting
from bench.routing.sim.traces import TraceRequest, azure, chats, mooncake, reusable_share
from tests.regions.twin.worlds import load_kernels

from skerry_regions.routing.placement import RouterConfig
from skerry_regions.twin import tables

FEW = Setting(
    "few", partial(chats, requests=120, rate=6, groups=6), hybrid=4, cache_blocks=200
)  # fmt: skip
APART = Setting(
    "apart", partial(chats, requests=120, rate=4, groups=6), prefill=3, decode=2, hybrid=0
)  # fmt: skip


def test_dynamos_cost_is_that_of_its_own_test() -> None:
    """Upstream's numbers: block 16, 16 active tokens, 96 cached, 6 blocks held, 2 + 3 to decode."""
    cost = dynamo_cost(16, 0, 96, 6, 2, 3, block=16, scale=2.0)
    assert cost == 2 * (7 - 6) + 5


def test_the_traces_are_those_that_are_published() -> None:
    conversation, synthetic = mooncake("conversation"), mooncake("synthetic")
    assert (len(conversation), len(synthetic)) == (12_031, 3_993)
    assert statistics.mean(r.prompt_tokens for r in conversation) == pytest.approx(12_035, abs=1)
    assert reusable_share(conversation) == pytest.approx(0.373, abs=0.001)
    assert reusable_share(synthetic) == pytest.approx(0.650, abs=0.001)
    code = azure("code")
    assert len(code) == 8_819
    assert code[0] == TraceRequest(0.0, 4808, 10)
    assert statistics.mean(r.prompt_tokens for r in code) == pytest.approx(2048, abs=1)
    assert len(azure("conv")) == 19_366


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("setting", [FEW, APART], ids=["hybrid", "apart"])
@pytest.mark.parametrize("name", [*RULES, *(name + SPLIT for name in RULES), NARROW, OURS])
def test_every_rule_serves_every_request_and_repeats_bit_for_bit(
    name: str, setting: Setting
) -> None:
    load_kernels()
    found = play(setting, name, 1)
    assert (found.requests, found.failed) == (120, 0)
    assert 0 < found.ttft_mean <= found.e2e_mean
    assert 0 < found.hit_share < 1
    assert play(setting, name, 1) == found
    if setting is FEW and SPLIT not in name and name != OURS:
        assert found.split_share == 0
    if setting is APART and SPLIT not in name and name in RULES:
        assert found.split_share == 1


SEEDS = range(8)  # one trace more or less moves a mean by 3 %, even between two that know all
LEARNING = 50  # requests


def mean_first_token(policy: str, slower: float, learn_from: float | None = None) -> float:
    """Mean over seeds of all but the first requests; one of six nodes is so many times as slow."""
    setting = Setting(
        "unlike", partial(chats, requests=250, rate=5.5, groups=8), hybrid=6,
        factors=(1.0,) * 5 + (slower,), noise=0.05, cache_blocks=300,
    )  # fmt: skip
    router: dict[str, Any] = {"learn_from": learn_from} if learn_from else {}
    runs = [run_of(setting, policy, seed, **router) for seed in SEEDS]
    return statistics.mean(
        float(run.built.world.requests.first_token[LEARNING:].mean()) for run in runs
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("slower", [0.5, 1.0, 2.0])
def test_a_learner_routes_like_one_that_knows(slower: float) -> None:
    """Whatever it believes at first and one node does."""
    load_kernels()
    knows = mean_first_token(KNOWN, slower)
    for wrong_by in (1 / 3, 3.0):
        assert mean_first_token(OURS, slower, wrong_by) <= 1.1 * knows
    if slower == 2.0:  # the yardstick can tell good from bad
        assert mean_first_token("round robin", slower) > 1.5 * knows


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("factors", [(), (0.5, 0.5, 1, 1, 1, 1, 2, 3) * 25], ids=["like", "unlike"])
@pytest.mark.parametrize("groups", [8, 400])
def test_a_few_candidates_serve_two_hundred_nodes_as_well_as_all(
    groups: int, factors: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In closed loop, where each choice changes what the next one finds."""
    load_kernels()
    setting = Setting(
        "large", partial(chats, requests=12_000, rate=110.0, groups=groups), hybrid=200,
        factors=factors, noise=0.1, cache_blocks=400,
    )  # fmt: skip
    few = play(setting, KNOWN, 1)
    monkeypatch.setattr(tables, "CONFIG", RouterConfig(exhaustive_nodes=1000))
    every = play(setting, KNOWN, 1)
    assert few != every
    assert few.ttft_mean <= 1.01 * every.ttft_mean
    assert few.e2e_mean <= 1.02 * every.e2e_mean
