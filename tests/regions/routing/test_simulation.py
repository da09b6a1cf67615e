"""The simulator: queueing theory, steps, caches and traces that can be checked by hand."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from random import Random

import pytest
from bench.sim.block_cache import BlockCache
from bench.sim.cluster import ClusterConfig, Outcome, simulate
from bench.sim.events import Events
from bench.sim.node import SimNode
from bench.sim.own_router import Skerry
from bench.sim.policies import RULES, RoundRobin
from bench.sim.traces import TraceRequest, azure, chats, mooncake, reusable_share
from bench.sim.work import Prefill

from skerry_regions.prefix_news import PrefixPublisher
from skerry_regions.speeds import LinkSpeed, NodeSpeed, StepSample

INSTANT = LinkSpeed(rtt=0.0, bandwidth=1e18)
TOKEN = NodeSpeed(
    base=0.0, per_token=0.001, per_pair=0, per_stream=0, per_context=0, chunk_tokens=1 << 30
)


def one_node(truth: NodeSpeed, **changes: object) -> tuple[Events, SimNode, list[StepSample]]:
    events, samples = Events(), list[StepSample]()
    node = SimNode(
        "n",
        "hybrid",
        truth,
        events,
        block_size=64,
        cache_blocks=10,
        rng=Random(0),
        measured=samples.append,
        **changes,  # type: ignore[arg-type]
    )
    return events, node, samples


def note(name: str, times: dict[str, float], events: Events) -> Callable[[], None]:
    """What notes under `name` when it is called."""

    def call() -> None:
        times[name] = events.now

    return call


def test_waiting_times_are_those_of_queueing_theory() -> None:
    """One server, Poisson arrivals, constant service: M/D/1, mean wait = rho·S / (2·(1 - rho))."""
    rng, now, trace = Random(5), 0.0, []
    for _ in range(20_000):
        now += rng.expovariate(7.0)
        trace.append(TraceRequest(arrival=now, prompt_tokens=100, output_tokens=1))
    one_by_one = NodeSpeed(
        base=0.0, per_token=0.001, per_pair=0, per_stream=0, per_context=0, chunk_tokens=100
    )
    config = ClusterConfig(roles=("hybrid",), truth=one_by_one, link=INSTANT)
    outcome = simulate(config, RoundRobin(Random(0)), trace)
    wait = statistics.mean(outcome.ttft) - 0.1
    assert wait == pytest.approx(0.7 * 0.1 / (2 * 0.3), rel=0.05)


def test_a_burst_of_decode_steps_cut_short_equals_single_steps() -> None:
    """Two streams, the second joins in mid-step: it waits for the boundary, then both share."""
    truth = NodeSpeed(
        base=1.0, per_token=0, per_pair=0, per_stream=0.25, per_context=0.001, chunk_tokens=100
    )
    events, node, samples = one_node(truth)
    finished: dict[str, float] = {}
    events.at(0, lambda: node.decode(100, 5, note("first", finished, events)))
    events.at(3, lambda: node.decode(50, 2, note("second", finished, events)))
    events.run()
    alone = [1.25 + 0.001 * context for context in (100, 101, 102)]  # the third runs at t = 3
    shared = [1.5 + 0.001 * context for context in (103 + 50, 104 + 51)]
    assert finished["second"] == pytest.approx(sum(alone) + sum(shared))
    assert finished["first"] == pytest.approx(sum(alone) + sum(shared))
    assert sum(sample.steps for sample in samples) == 5
    assert sum(sample.seconds for sample in samples) == pytest.approx(finished["first"])
    assert node.context_tokens == 0


def test_prefill_runs_in_chunks_first_come_first_served_and_stops_streams() -> None:
    truth = NodeSpeed(
        base=0.1, per_token=0.01, per_pair=0, per_stream=0.1, per_context=0, chunk_tokens=100,
        gap_seconds=0.6,
    )  # fmt: skip
    events, node, _ = one_node(truth)
    done: dict[str, float] = {}

    def prompt(name: str, tokens: int) -> Prefill:
        return Prefill((), tokens, tokens, note(name, done, events))

    events.at(0, lambda: node.prefill(prompt("long", 150)))
    events.at(0, lambda: node.prefill(prompt("short", 30)))
    events.at(0, lambda: node.decode(10, 1, note("stream", done, events)))
    events.run()
    # 100 tokens of the first alone; 40 of it beside the stream's token; the rest of both alone.
    first, beside, rest = 0.1 + 1.0, 0.1 + 0.1 + 0.4, 0.1 + 0.4
    assert done["stream"] == pytest.approx(first + beside)
    assert done["long"] == done["short"] == pytest.approx(first + beside + rest)


def test_the_reported_queue_is_what_is_left_of_it() -> None:
    events, node, _ = one_node(TOKEN)
    seen = []
    events.at(0, lambda: node.prefill(Prefill((), 1000, 1000, lambda: None)))
    events.at(0.25, lambda: seen.append(node.load().prefill_tokens))
    events.at(0.25, lambda: seen.append(node.outstanding_tokens()))
    events.run()
    assert seen == pytest.approx([750, 1000])


def test_the_cache_forgets_the_end_of_the_oldest_chain_first() -> None:
    publisher = PrefixPublisher("n", 0)
    cache = BlockCache(4, publisher)
    old, new = [b"a", b"ab", b"abc"], [b"x", b"xy"]
    cache.insert(old)
    cache.insert(new)
    assert cache.match(old) == 2
    assert cache.match(new) == 2
    delta = publisher.delta()
    assert delta is not None
    assert (set(delta.sealed), set(delta.evicted)) == ({b"a", b"ab", b"x", b"xy"}, {b"abc"})


def test_a_cached_prefix_is_skipped_and_a_handover_moves_what_is_missing() -> None:
    link = LinkSpeed(rtt=0.2, bandwidth=1000.0)
    blocks = (b"a", b"b")
    trace = [
        TraceRequest(0.0, 1200, 1, blocks),
        TraceRequest(100.0, 1200, 1, blocks),
    ]
    config = ClusterConfig(
        roles=("prefill", "decode"), truth=TOKEN, kv_bytes_per_token=1.0, link=link
    )
    outcome = simulate(config, RoundRobin(Random(0)), trace)
    first, second = outcome.ttft
    assert first == pytest.approx(1.2 + 1.2 + 0.1 + 0.2)  # prefill, bytes, half an RTT, the edge
    assert second == pytest.approx(0.176 + 0.176 + 0.1 + 0.2)  # 1,024 tokens are everywhere
    assert outcome.hit_share == pytest.approx(1024 / 2400)


def run(name: str) -> Outcome:
    trace = chats(Random(9), requests=120, rate=6, groups=6)
    rng = Random(1)
    policy = Skerry(rng) if name == "Skerry" else RULES[name](rng)
    return simulate(ClusterConfig(roles=("hybrid",) * 4, cache_blocks=200), policy, trace)


@pytest.mark.parametrize("name", [*RULES, "Skerry"])
def test_every_policy_serves_every_request_and_repeats_bit_for_bit(name: str) -> None:
    outcome = run(name)
    assert all(
        0 < ttft <= latency for ttft, latency in zip(outcome.ttft, outcome.latency, strict=True)
    )
    assert 0 <= outcome.hit_share < 1
    assert run(name).ttft == outcome.ttft


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
