"""Which placements are possible at all, in which order, how bookings count, and the explanation."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples
from tests.regions.routing.placements import DIGESTS, SPEED, Setup, demand, make, node, view

from skerry_regions.routing.placement import (
    MAX_EXPLANATION,
    explain,
)
from skerry_regions.view import NodeLoad

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
