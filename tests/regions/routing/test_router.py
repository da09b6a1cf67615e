"""Placements: each term by hand, what is possible at all, bookings, and the explanation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from skerry_regions.prefix_news import PrefixDelta
from skerry_regions.routing.placement import (
    MAX_EXPLANATION,
    Demand,
    Fetch,
    Placement,
    RouterConfig,
    explain,
)
from skerry_regions.routing.prefixes import PrefixDirectory
from skerry_regions.routing.router import Router
from skerry_regions.speeds import LinkSpeed, NodeSpeed
from skerry_regions.view import LOCAL_LINK, NodeLoad, NodeState, View

# One millisecond per prompt token, 10 ms per decode step, nothing else: sums fit in the head.
SPEED = NodeSpeed(
    base=0.010,
    per_token=0.001,
    per_pair=0.0,
    per_stream=0.0,
    per_context=0.0,
    chunk_tokens=100_000,
    gap_seconds=math.inf,
)
FAR = LinkSpeed(rtt=0.200, bandwidth=1e6)
DIGESTS = tuple(bytes([i]) * 16 for i in range(10))


def node(name: str, **changes: Any) -> NodeState:
    fields: dict[str, Any] = {
        "region": "here",
        "residency": "eu",
        "role": "hybrid",
        "model": "m",
        "numeric_build": "b1",
        "kv_format": "k",
        "kv_bytes_per_token": 1000.0,
        "speed": SPEED,
        **changes,
    }
    return NodeState(id=name, **fields)


def demand(**changes: Any) -> Demand:
    fields: dict[str, Any] = {
        "model": "m",
        "origin": "here",
        "prompt_tokens": 1000,
        "output_tokens": 0,
        **changes,
    }
    return Demand(**fields)


def view(*nodes: NodeState) -> View:
    return View(nodes, {("here", "there"): FAR})


@dataclass
class Setup:
    """A router with a directory that can be told who holds what."""

    directory: PrefixDirectory
    router: Router

    def hold(self, name: str, blocks: int, *, tier: str = "sealed") -> None:
        digests = {tier: DIGESTS[:blocks]}
        self.directory.apply(PrefixDelta(node=name, incarnation=1, seq=1, **digests))

    def rank(self, view: View, demand: Demand, now: float = 0.0) -> list[Placement]:
        return self.router.rank(view, demand, now=now)

    def best(self, view: View, demand: Demand, now: float = 0.0) -> Placement:
        return self.rank(view, demand, now)[0]


@pytest.fixture
def setup() -> Setup:
    return make()


def make(seed: int = 0, **config: Any) -> Setup:
    directory = PrefixDirectory()
    return Setup(directory, Router(directory, Random(seed), RouterConfig(block_size=64, **config)))


# ── terms ───────────────────────────────────────────────────────────────────────────────────────


def test_an_idle_node_costs_its_own_work(setup: Setup) -> None:
    best = setup.best(view(node("a")), demand(output_tokens=50))
    assert dict(best.terms) == pytest.approx(
        {
            "network": LOCAL_LINK.rtt,
            "queue": 0,
            "fetch": 0,
            "prefill": 0.010 + 1.0,
            "handover": 0,
            "lag": 0,
            "step_wait": 0,
            "decode": 0.05 * 0.5,  # a second of it is worth a twentieth
            "stall": 0,
            "behind": 0,
            "evict": 0,
            "affinity": 0,
        }
    )
    assert best.seconds == pytest.approx(1.0352)
    assert best.path == "a"


def test_queue_is_residual_and_ages(setup: Setup) -> None:
    busy = view(node("a", load=NodeLoad(prefill_tokens=500), observed_at=10.0))
    at_once = setup.best(busy, demand(), now=10.0).terms["queue"]
    assert at_once == pytest.approx(0.510 - LOCAL_LINK.rtt)
    assert setup.best(busy, demand(), now=10.3).terms["queue"] == pytest.approx(at_once - 0.3)
    assert setup.best(busy, demand(), now=99.0).terms["queue"] == 0


def test_a_cached_prefix_is_not_computed_but_the_last_token_always_is(setup: Setup) -> None:
    setup.hold("a", 10)
    a = view(node("a"))
    assert setup.best(a, demand(digests=DIGESTS)).cached_tokens == 640
    assert setup.best(a, demand(digests=DIGESTS)).terms["prefill"] == pytest.approx(0.370)
    full = setup.best(a, demand(digests=DIGESTS, prompt_tokens=640))
    assert full.cached_tokens == 639
    assert full.terms["prefill"] == pytest.approx(0.011)


def test_distance_counts_like_any_second(setup: Setup) -> None:
    both = view(node("near", load=NodeLoad(prefill_tokens=150)), node("far", region="there"))
    assert setup.best(both, demand()).path == "near"
    both = view(node("near", load=NodeLoad(prefill_tokens=300)), node("far", region="there"))
    best = setup.best(both, demand())
    assert (best.path, best.terms["network"]) == ("far", 0.200)


def test_streams_that_would_stand_still_push_prefill_away() -> None:
    setup = make(decode_weight=1.0)
    # The slow idle node takes 0.5 s longer; the fast one would stop two streams for 1 s each.
    slow = node("slow", speed=SPEED.scaled(1.5))
    fast = node("fast", load=NodeLoad(streams=2, context_tokens=100))
    best = setup.best(view(slow, fast), demand(output_tokens=10))
    assert best.prefill == "slow"
    alone = setup.best(view(fast), demand())
    assert alone.terms["stall"] == pytest.approx(2 * 1.0)
    assert make(decode_weight=0.0).best(view(slow, fast), demand()).prefill == "fast"


def test_joining_a_batch_waits_half_a_step_and_slows_its_streams() -> None:
    speed = NodeSpeed(base=0.010, per_token=0, per_pair=0, per_stream=0.001, per_context=1e-6)
    load = NodeLoad(streams=4, context_tokens=4000)
    busy = node("d", speed=speed, load=load)
    best = make(decode_weight=1.0).best(view(busy), demand(output_tokens=100, prompt_tokens=1))
    pace, joined = 0.010 + 0.004 + 0.004, 0.010 + 0.005 + 0.004051
    assert best.terms["step_wait"] == pytest.approx(pace / 2)
    assert best.terms["decode"] == pytest.approx(100 * joined)
    assert best.terms["stall"] == pytest.approx(4 * 100 * (joined - pace))


def test_what_does_not_fit_is_charged_as_recompute() -> None:
    roomy, full = (NodeLoad(free_tokens=tokens) for tokens in (2000, 400))
    setup = make(decode_weight=1.0)
    assert setup.best(view(node("a", load=roomy)), demand()).terms["stall"] == 0
    assert setup.best(view(node("a", load=full)), demand()).terms["stall"] == pytest.approx(0.610)


def test_handover_is_what_the_link_cannot_hide(setup: Setup) -> None:
    prefill = node("p", role="prefill")
    decode = node("d", role="decode", speed=SPEED.scaled(10))
    split = setup.best(view(prefill, decode), demand())
    assert split.path == "p>d"
    link = LOCAL_LINK
    assert split.terms["handover"] == pytest.approx(link.rtt / 2 + 1000 * 1000 / link.bandwidth)
    chunked = node("p", role="prefill", speed=SPEED.scaled(1.0))
    thin = View([chunked, decode], {("here", "here"): LinkSpeed(rtt=0.002, bandwidth=5e5)})
    late = setup.best(thin, demand())
    assert late.path == "p>d"  # 2 s on the wire, 1.01 s of it while computing, still beats 10 s
    assert late.terms["handover"] == pytest.approx(0.001 + 2.0)  # one chunk: nothing leaves early


def test_a_node_that_takes_no_kv_prefills_itself(setup: Setup) -> None:
    setup.hold("p", 10)
    prefill = node("p", role="prefill")
    decode = node("d", role="decode", takes_kv=False, speed=SPEED.scaled(10))
    (only,) = setup.rank(view(prefill, decode), demand(digests=DIGESTS))
    assert (only.path, only.fetch) == ("d", None)


def test_what_hand_overs_were_late_counts_on_split_placements_alone(setup: Setup) -> None:
    prefill, decode = node("p", role="prefill"), node("d", role="decode", speed=SPEED.scaled(10))
    late = node("d", role="decode", speed=SPEED.scaled(10), handover_lag=0.05)
    before, after = (
        setup.rank(view(prefill, decode), demand()),
        setup.rank(view(prefill, late), demand()),
    )
    assert [p.path for p in before] == [p.path for p in after] == ["p>d", "d"]
    assert after[0].terms["lag"] == 0.05
    assert after[0].seconds - before[0].seconds == pytest.approx(0.05)
    assert after[1].seconds == before[1].seconds


def test_prefill_on_the_decode_node_is_a_candidate_like_any_other(setup: Setup) -> None:
    prefill = node("p", role="prefill", load=NodeLoad(prefill_tokens=5000))
    decode = node("d", role="decode")
    assert [p.path for p in setup.rank(view(prefill, decode), demand())] == ["d", "p>d"]


def test_a_prefix_is_fetched_exactly_when_that_is_faster(setup: Setup) -> None:
    setup.hold("holder", 10)
    holder = node("holder", draining=True)  # takes no work, but still has the blocks
    best = setup.best(view(holder, node("a")), demand(digests=DIGESTS))
    assert best.fetch == Fetch(source="holder", first=0, last=10)
    assert best.terms["fetch"] == pytest.approx(LOCAL_LINK.transfer_seconds(640_000))
    assert best.terms["prefill"] == pytest.approx(0.370)
    slow = View([holder, node("a")], {("here", "here"): LinkSpeed(rtt=0.001, bandwidth=9e5)})
    assert setup.best(slow, demand(digests=DIGESTS)).fetch is None  # 0.71 s against 0.64 s


def test_blocks_that_are_only_expected_are_not_fetched(setup: Setup) -> None:
    setup.directory.expect("holder", DIGESTS, now=0)
    both = view(node("holder", draining=True), node("a"))
    assert setup.best(both, demand(digests=DIGESTS)).fetch is None


def test_the_file_tier_is_read_when_that_beats_computing(setup: Setup) -> None:
    setup.hold("a", 10, tier="filed")
    fast, slow = (view(node("a", file_bandwidth=speed)) for speed in (1e7, 1e5))
    best = setup.best(fast, demand(digests=DIGESTS))
    assert best.fetch == Fetch(source="a", first=0, last=10)
    assert best.terms["fetch"] == pytest.approx(0.064)
    assert setup.best(slow, demand(digests=DIGESTS)).fetch is None


def test_a_hot_prefix_spreads_when_waiting_costs_more_than_computing(setup: Setup) -> None:
    setup.hold("warm", 10)
    slow_links = {("here", "here"): LinkSpeed(rtt=0.0002, bandwidth=1e5)}  # no fetching
    for queued, expected in ((500, "warm"), (700, "cold")):
        warm = node("warm", load=NodeLoad(prefill_tokens=queued))
        two = View([warm, node("cold")], slow_links)
        assert setup.best(two, demand(digests=DIGESTS)).prefill == expected


def test_displacing_others_from_a_full_cache_has_a_price(setup: Setup) -> None:
    setup.hold("a", 10)
    warm_up = demand(digests=DIGESTS)
    a = view(node("a", cache_tokens=1000))
    assert setup.best(a, warm_up).terms["evict"] == 0  # nothing was found again so far
    placement = setup.best(a, warm_up)
    setup.router.release(setup.router.book(placement, warm_up, now=0))  # 640 cached, 360 new
    evict = setup.best(a, demand()).terms["evict"]
    assert evict == pytest.approx((1000 - (1000 - 640)) * 0.001 * 640 / 360)
    assert setup.best(view(node("a")), demand()).terms["evict"] == 0  # no end known


def test_what_a_hand_over_displaces_on_a_node_that_only_decodes_has_none(setup: Setup) -> None:
    """KV must go to one of those in any case."""
    setup.hold("a", 10)
    seen = demand(digests=DIGESTS)
    placement = setup.best(view(node("a")), seen)
    setup.router.release(setup.router.book(placement, seen, now=0))  # something was found again
    for role, is_priced in (("decode", False), ("hybrid", True)):
        other = node("d", role=role, cache_tokens=0, speed=SPEED.scaled(10))
        ranked = setup.rank(view(node("p", role="prefill"), other), demand())
        split = next(each for each in ranked if each.is_split)
        assert (split.terms["evict"] > 0) is is_priced


def test_more_requests_come_behind_one_on_a_fast_node(setup: Setup) -> None:
    """It computes twice as long on one half as fast, where half as many come: the harm is equal to
    that of half the time."""
    first = setup.best(view(node("a")), demand())
    setup.router.release(setup.router.book(first, demand(), now=0))
    fast, slow = node("fast"), node("slow", speed=SPEED.scaled(2))
    alike = setup.best(view(fast), demand()).terms["behind"]
    assert alike == pytest.approx(1.01**2 / 30)  # one arrival in the last 30 s
    behind = {each.path: each.terms["behind"] for each in setup.rank(view(fast, slow), demand())}
    mean = (1 + 1 / 2) / 2  # of their speeds, by that of the fast one
    assert behind["fast"] == pytest.approx(alike / 2 / mean, rel=1e-5)
    assert behind["slow"] == pytest.approx(4 * alike / 2 / (2 * mean), rel=1e-5)


# ── what is possible ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "change",
    [{"model": "other"}, {"draining": True}, {"residency": "us"}, {"role": "prefill"}],
)
def test_unfit_nodes_are_never_chosen(setup: Setup, change: dict[str, Any]) -> None:
    assert setup.rank(view(node("a", **change)), demand(residency="eu")) == []


def test_failed_nodes_are_left_out(setup: Setup) -> None:
    two = view(node("a"), node("b"))
    assert {p.path for p in setup.rank(two, demand(exclude=frozenset({"a"})))} == {"b"}


def test_residency_binds_prefill_and_fetch_too(setup: Setup) -> None:
    setup.hold("us", 10)
    nodes = view(node("us", residency="us"), node("eu", speed=SPEED.scaled(9)))
    (only,) = setup.rank(nodes, demand(digests=DIGESTS, residency="eu"))
    assert (only.path, only.fetch) == ("eu", None)


def test_suspects_come_last_whatever_they_cost(setup: Setup) -> None:
    nodes = view(node("fast", suspect=True), node("slow", speed=SPEED.scaled(5)))
    paths = [placement.path for placement in setup.rank(nodes, demand())]
    assert paths[0] == "slow"
    assert paths[-1] != "slow"


def test_a_transcript_stays_on_its_build_while_it_can(setup: Setup) -> None:
    nodes = view(node("b2", numeric_build="b2"), node("b1", speed=SPEED.scaled(5)))
    best, second = setup.rank(nodes, demand(numeric_builds=frozenset(["b1"])))
    assert (best.path, best.same_build) == ("b1", True)
    assert (second.path, second.same_build) == ("b2", False)


def test_kv_crosses_builds_only_when_the_request_says_so(setup: Setup) -> None:
    nodes = view(
        node("p", role="prefill"),
        node("d", role="decode", numeric_build="b2", speed=SPEED.scaled(9)),
    )
    assert [p.path for p in setup.rank(nodes, demand())] == ["d"]
    assert setup.best(nodes, demand(mixed_builds=True)).path == "p>d"


# ── choosing ────────────────────────────────────────────────────────────────────────────────────


def test_ties_are_broken_by_the_injected_randomness_alone() -> None:
    nodes = view(*(node(f"n{i}") for i in range(8)))
    first = [make(seed).best(nodes, demand()).path for seed in range(40)]
    assert first == [make(seed).best(nodes, demand()).path for seed in range(40)]
    assert len(set(first)) > 4


def test_a_burst_between_two_reports_spreads_over_the_nodes(setup: Setup) -> None:
    nodes = view(*(node(f"n{i}") for i in range(4)))
    bookings = []
    for _ in range(4):
        best = setup.best(nodes, demand())
        bookings.append(setup.router.book(best, demand(), now=0))
    assert {booking.decode for booking in bookings} == {"n0", "n1", "n2", "n3"}
    setup.router.release(bookings[2])
    setup.router.release(bookings[2])
    assert setup.best(nodes, demand()).path == bookings[2].decode


def test_a_booking_counts_until_a_report_can_contain_it(setup: Setup) -> None:
    a = node("a", region="there")
    setup.router.book(setup.best(view(a), demand()), demand(), now=1.0)
    queues = []
    for observed_at in (0.0, 1.15, 1.25):  # it arrives at 1.1; that report is here at 1.2
        report = view(node("a", region="there", observed_at=observed_at))
        queues.append(setup.best(report, demand(), now=1.25).terms["queue"])
    assert queues == pytest.approx([0.760, 0.760, 0.0])  # 0.25 s of it are done by then


def test_unreleased_bookings_lapse() -> None:
    setup = make(booking_seconds=60)
    a, huge = view(node("a")), demand(prompt_tokens=100_000)
    setup.router.book(setup.best(a, huge), huge, now=0)
    assert setup.best(a, huge, now=59).terms["queue"] == pytest.approx(41.010)
    assert setup.best(a, huge, now=60).terms["queue"] == 0


def test_open_bookings_are_bounded() -> None:
    setup = make(max_bookings=2)
    a = view(node("a"))
    best = setup.best(a, demand())
    for _ in range(5):
        setup.router.book(best, demand(), now=0)
    assert setup.best(a, demand()).terms["queue"] == pytest.approx(2 * 1.010)


def test_siblings_follow_the_first_before_any_event_arrives(setup: Setup) -> None:
    nodes = view(*(node(f"n{i}") for i in range(4)))
    shared = demand(digests=DIGESTS, prompt_tokens=650)
    first = setup.best(nodes, shared)
    setup.router.book(first, shared, now=0)
    early, late = setup.best(nodes, shared, now=0.01), setup.best(nodes, shared, now=0.64)
    assert (early.prefill != first.prefill, early.cached_tokens) == (True, 0)
    assert (late.prefill, late.cached_tokens) == (first.prefill, 640)  # 20 ms of waiting are left


def test_many_nodes_are_sampled_but_the_holder_is_always_looked_at() -> None:
    nodes = view(*(node(f"n{i}") for i in range(500)))
    setup = make(alternatives=1000)
    assert len(setup.rank(nodes, demand())) <= 8 * 8
    setup.hold("n321", 10)
    assert setup.best(nodes, demand(digests=DIGESTS)).prefill == "n321"


@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_rank_is_the_true_order_of_all_pairs(seed: int) -> None:
    """Pruning changes nothing: the first four of everything are the four that rank returns."""
    rng = Random(seed)
    nodes = []
    for i in range(rng.randint(1, 9)):
        load = NodeLoad(
            prefill_tokens=rng.choice([0, rng.randint(0, 5000)]),
            streams=(streams := rng.randint(0, 8)),
            context_tokens=streams * 1000,
        )
        nodes.append(
            node(
                f"n{i}",
                role=rng.choice(["prefill", "decode", "hybrid"]),
                region=rng.choice(["here", "there"]),
                numeric_build=rng.choice(["b1", "b1", "b2"]),
                speed=SPEED.scaled(rng.uniform(0.3, 3)),
                suspect=rng.random() < 0.2,
                load=load,
                cache_tokens=rng.choice([None, 500]),
            )
        )
    need = demand(
        digests=DIGESTS,
        output_tokens=rng.randint(0, 300),
        numeric_builds=frozenset(rng.choice([[], ["b1"], ["b1", "b2"]])),
        mixed_builds=rng.random() < 0.5,
    )
    holders = {n.id: rng.randint(1, 10) for n in nodes if rng.random() < 0.5}
    everything, pruned = make(alternatives=1000), make(alternatives=4)
    for setup in (everything, pruned):
        for name, blocks in holders.items():
            setup.hold(name, blocks)
    all_pairs = everything.rank(view(*nodes), need)
    assert len({p.path for p in all_pairs}) == len(all_pairs)
    for placement in all_pairs:
        assert placement.seconds == pytest.approx(sum(placement.terms.values()))
        assert all(seconds >= 0 for seconds in placement.terms.values())
    kept = pruned.rank(view(*nodes), need)
    assert [p.path for p in kept] == [p.path for p in all_pairs[:4]]


# ── explaining ──────────────────────────────────────────────────────────────────────────────────


def test_a_decision_explains_itself(setup: Setup) -> None:
    setup.hold("p", 10)
    prefill = node("p", role="prefill", load=NodeLoad(prefill_tokens=100))
    ranked = setup.rank(view(prefill, node("d", role="decode")), demand(digests=DIGESTS))
    assert explain(ranked) == (
        '"d";total=425.912;cached=640;from="p"'
        ";network=0.200;fetch=55.712;prefill=370.000, "
        '"p>d";total=480.388;cached=640'
        ";network=0.200;queue=109.800;prefill=370.000;handover=0.388"
    )


def test_an_explanation_fits_a_header_whatever_nodes_are_called() -> None:
    setup = make(alternatives=50)
    names = [
        'quo"te',
        "back\\slash",
        "line\r\nbreak",
        "ünï",
        *("x" * 250 + str(i) for i in range(9)),
    ]
    text = explain(setup.rank(view(*map(node, names)), demand()))
    assert 1000 < len(text) <= MAX_EXPLANATION
    assert text.isascii()
    assert text.isprintable()
    (odd,) = setup.rank(view(node('q"\\\n')), demand())
    assert explain([odd]).startswith('"q\\"\\\\?";total=')
