"""What a placement costs: each term by hand."""

from __future__ import annotations

import pytest
from tests.regions.routing.placements import DIGESTS, SPEED, Setup, demand, make, node, view

from skerry_regions.routing.placement import (
    Fetch,
)
from skerry_regions.speeds import LinkSpeed, NodeSpeed
from skerry_regions.view import LOCAL_LINK, NodeLoad, View

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
