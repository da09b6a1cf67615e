"""Learning how fast nodes and links are: what is found, how soon, and that routing profits."""

from __future__ import annotations

import math
import statistics
from random import Random

import pytest
from bench.routing.sim.settings import law
from msgspec.structs import replace

from skerry_core.config import EngineConfig
from skerry_regions.region.speed_learning import LagLearner, LinkLearner, SpeedBook
from skerry_regions.speeds import LinkSpeed, NodeSpeed, StepSample, attended_pairs

TRUTH = law(8000).as_speed()


def measured(truth: NodeSpeed, rng: Random, noise: float = 0.05) -> StepSample:
    """A step of a node: a prefill chunk, a decode batch, or both."""
    new = rng.choice([0, rng.randint(1, truth.chunk_tokens)])
    streams = rng.randint(1, 32) if not new else rng.choice([0, rng.randint(1, 32)])
    context = streams * rng.randint(100, 8000)
    pairs = attended_pairs(new, rng.randint(0, 30_000)) if new else 0.0
    seconds = truth.step_seconds(streams, context) + truth.per_token * new + truth.per_pair * pairs
    return StepSample(
        steps=1,
        seconds=seconds * math.exp(rng.gauss(0, noise)),
        new_tokens=new,
        attended=pairs,
        streams=streams,
        context=context,
    )


def relative_errors(learned: NodeSpeed, truth: NodeSpeed) -> list[float]:
    """Of prompts of several lengths and of decode steps of several sizes."""
    prompts = [(500, 0), (2000, 0), (8000, 0), (2000, 16_000)]
    batches = [(1, 1000), (8, 16_000), (32, 64_000)]
    return [learned.prefill_seconds(*p) / truth.prefill_seconds(*p) - 1 for p in prompts] + [
        learned.step_seconds(*b) / truth.step_seconds(*b) - 1 for b in batches
    ]


def test_pairs_are_those_of_causal_attention() -> None:
    assert attended_pairs(3, 0) == 1 + 2 + 3
    assert attended_pairs(2, 10) == 11 + 12
    split = attended_pairs(100, 50) + attended_pairs(60, 150)
    assert attended_pairs(160, 50) == split


def test_a_prefill_takes_whole_steps_and_shares_them_with_streams() -> None:
    speed = NodeSpeed(
        base=0.01, per_token=0.001, per_pair=0, per_stream=0.1, per_context=0, chunk_tokens=100
    )
    assert speed.prefill_seconds(250, 0) == pytest.approx(3 * 0.01 + 0.25)
    assert speed.prefill_seconds(250, 0, streams=2) == pytest.approx(3 * 0.21 + 0.25)
    assert speed.scaled(2).prefill_seconds(250, 0) == pytest.approx(2 * (3 * 0.01 + 0.25))


def test_steps_are_priced_by_the_limits_that_engines_have() -> None:
    speed = NodeSpeed(base=0, per_token=0, per_pair=0, per_stream=0, per_context=0)
    engine = EngineConfig()
    assert speed.chunk_tokens == engine.max_step_tokens
    assert speed.gap_seconds == engine.max_gap_seconds


def test_beside_streams_it_takes_as_many_steps_as_these_allow() -> None:
    speed = NodeSpeed(
        base=0.01, per_token=0.001, per_pair=0, per_stream=0, per_context=0, gap_seconds=0.06
    )
    assert speed.prefill_seconds(250, 0) == pytest.approx(0.01 + 0.25)
    assert speed.prefill_seconds(250, 0, streams=1) == pytest.approx(5 * 0.01 + 0.25)
    hurried = replace(speed, gap_seconds=0.0)  # steps may last twice as long as without a prompt
    assert hurried.prefill_seconds(250, 0, streams=1) == pytest.approx(16 * 0.01 + 0.25)


@pytest.mark.parametrize("wrong_by", [1 / 3, 3.0])
def test_a_prior_wrong_by_three_is_mended_by_a_few_samples(wrong_by: float) -> None:
    rng, book = Random(1), SpeedBook()
    book.add_node("n", "class", TRUTH.scaled(wrong_by))
    for _ in range(5):
        book.learn("n", measured(TRUTH, rng))
    assert max(map(abs, relative_errors(book.speed("n"), TRUTH))) < 0.5
    for _ in range(195):
        book.learn("n", measured(TRUTH, rng))
    assert max(map(abs, relative_errors(book.speed("n"), TRUTH))) < 0.1


def test_a_wrong_shape_is_learned_too() -> None:
    """Prefill thought three times too slow and decode three times too fast."""
    prior = NodeSpeed(
        base=TRUTH.base / 3,
        per_token=TRUTH.per_token * 3,
        per_pair=TRUTH.per_pair * 3,
        per_stream=TRUTH.per_stream / 3,
        per_context=TRUTH.per_context / 3,
        chunk_tokens=TRUTH.chunk_tokens,
    )
    rng, book = Random(2), SpeedBook()
    book.add_node("n", "class", prior)
    for _ in range(300):
        book.learn("n", measured(TRUTH, rng))
    assert max(map(abs, relative_errors(book.speed("n"), TRUTH))) < 0.15


@pytest.mark.parametrize("bias", [0.5, 2.0])
def test_the_bias_of_one_node_is_found_and_the_others_keep_theirs(bias: float) -> None:
    rng, book = Random(3), SpeedBook()
    truths = {f"n{i}": TRUTH.scaled(bias if i == 0 else 1.0) for i in range(8)}
    for name in truths:
        book.add_node(name, "class", TRUTH.scaled(3))
    for _ in range(60):
        for name, truth in truths.items():
            book.learn(name, measured(truth, rng))
    for name, truth in truths.items():
        assert max(map(abs, relative_errors(book.speed(name), truth))) < 0.12


def test_a_node_that_slows_down_is_followed() -> None:
    rng, book = Random(4), SpeedBook()
    for name in ("a", "b"):
        book.add_node(name, "class", TRUTH)
    for round_ in range(150):
        throttled = TRUTH.scaled(2.5 if round_ >= 100 else 1.0)
        book.learn("a", measured(throttled, rng))
        book.learn("b", measured(TRUTH, rng))
    assert statistics.mean(relative_errors(book.speed("a"), TRUTH.scaled(2.5))) == pytest.approx(
        0, abs=0.1
    )
    assert statistics.mean(relative_errors(book.speed("b"), TRUTH)) == pytest.approx(0, abs=0.1)


def test_outliers_hardly_count() -> None:
    rng, book = Random(5), SpeedBook()
    book.add_node("n", "class", TRUTH)
    for i in range(300):
        sample = measured(TRUTH, rng)
        stuck = 50.0 if i % 20 == 19 else 1.0  # a page fault, a paused machine
        book.learn(
            "n",
            StepSample(
                steps=1,
                seconds=sample.seconds * stuck,
                new_tokens=sample.new_tokens,
                attended=sample.attended,
                streams=sample.streams,
                context=sample.context,
            ),
        )
    assert max(map(abs, relative_errors(book.speed("n"), TRUTH))) < 0.15


@pytest.mark.parametrize("samples", [5, 20, 200])
@pytest.mark.parametrize("nodes", [1, 8])
def test_a_node_that_froze_costs_what_it_did_before(samples: int, nodes: int) -> None:
    """Stopped for 5 s in mid-step: at once, not after the dozen seconds that an average takes."""
    rng, book = Random(8), SpeedBook()
    names = [f"n{i}" for i in range(nodes)]
    for name in names:
        book.add_node(name, "class", TRUTH.scaled(3))
    for _ in range(samples):
        for name in names:
            book.learn(name, measured(TRUTH, rng))
    before = {name: book.speed(name).prefill_seconds(2000, 0) for name in names}
    stopped = measured(TRUTH, rng)
    book.learn("n0", replace(stopped, seconds=stopped.seconds + 5.0))
    for name in names:
        assert book.speed(name).prefill_seconds(2000, 0) == before[name]
    for _ in range(30):  # but what lasts is followed: ten times slower from here on
        book.learn("n0", measured(TRUTH.scaled(10), rng))
    assert book.speed("n0").step_seconds(8, 16_000) > 5 * TRUTH.step_seconds(8, 16_000)


def test_nonsense_is_ignored_and_unknown_nodes_raise() -> None:
    book = SpeedBook()
    book.add_node("n", "class", TRUTH)
    before = book.speed("n")
    book.learn("n", StepSample(steps=0, seconds=1.0))
    book.learn("n", StepSample(steps=1, seconds=0.0))
    book.learn("n", StepSample(steps=1, seconds=math.nan))
    book.learn("n", StepSample(steps=1, seconds=math.inf))
    book.learn("stranger", measured(TRUTH, Random(0)))
    assert book.speed("n") == before
    book.remove_node("n")
    with pytest.raises(KeyError):
        book.speed("n")


def test_a_new_node_starts_from_what_its_class_has_learned() -> None:
    rng, book = Random(6), SpeedBook()
    book.add_node("old", "class", TRUTH.scaled(3))
    for _ in range(100):
        book.learn("old", measured(TRUTH, rng))
    book.add_node("new", "class", TRUTH.scaled(3))
    assert max(map(abs, relative_errors(book.speed("new"), TRUTH))) < 0.1


def test_a_link_is_measured_from_a_wrong_prior() -> None:
    rng, link = Random(7), LinkLearner(LinkSpeed(rtt=0.3, bandwidth=1e7))
    for _ in range(40):
        link.learn_rtt(0.080 * rng.uniform(0.95, 1.1))
        num_bytes = rng.randint(1 << 20, 1 << 24)
        link.learn_transfer(num_bytes, 0.080 + num_bytes / 3e7)
    assert link.speed().rtt == pytest.approx(0.082, rel=0.05)
    assert link.speed().bandwidth == pytest.approx(3e7, rel=0.10)
    link.learn_rtt(30.0)  # one lost packet
    assert link.speed().rtt < 0.120
    link.learn_transfer(10, 0.08)  # says nothing of bandwidth
    assert link.speed().bandwidth == pytest.approx(3e7, rel=0.10)


def test_lateness_is_an_average_that_fades() -> None:
    lag = LagLearner(0.005)
    assert lag.seconds(1e6) == 0.005
    for second in range(100):
        lag.learn(0.130, 0.100, float(second) / 100)
    assert lag.seconds(1.0) == pytest.approx(0.030, rel=0.05)
    assert lag.seconds(61.0) == pytest.approx(0.015, rel=0.05)
    lag.learn(1000.0, 0.0, 61.0)  # somebody closed the laptop
    assert lag.seconds(61.0) < 0.1
    lag.learn(0.0, 1.0, 61.0)  # early is in time
    assert lag.seconds(61.0) > 0
