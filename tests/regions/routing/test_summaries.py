"""Summaries of regions: whatever is lost, doubled or late, the newest word counts; a region priced
as one node waits as long as its best node does."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry_regions.registry import Member
from skerry_regions.routing.block_index import CachedPrefix
from skerry_regions.routing.bookings import Bookings, CurrentLoad
from skerry_regions.routing.placement import Demand
from skerry_regions.routing.prefixes import PrefixDirectory
from skerry_regions.routing.region_names import AdvertisedNames, NameNews
from skerry_regions.routing.router import Router
from skerry_regions.routing.summaries import RegionSummary, Summaries, summarise
from skerry_regions.speeds import LinkSpeed, NodeSpeed
from skerry_regions.view import NodeLoad, NodeState, Role, View

SPEED = NodeSpeed(base=0.01, per_token=1e-4, per_pair=1e-9, per_stream=1e-3, per_context=1e-7)
EDGE = Member(id="edge-fra", kind="edge", region="fra", residency="eu", gateway="unix:/x")

HELD = NameNews(seq=1, level=0, added=b"xxxx", is_whole=True)

names = st.binary(min_size=16, max_size=16)
seconds = st.floats(0.0, 1e4)


def node(id: str, *, role: Role = "hybrid", draining: bool = False, build: str = "b") -> NodeState:
    return NodeState(
        id=id, region="fra", residency="eu", role=role, model="m", numeric_build=build,
        kv_format="f", kv_bytes_per_token=1.0, speed=SPEED, draining=draining,
    )  # fmt: skip


def load(queue: float, streams: int = 0, free: float | None = None) -> CurrentLoad:
    return CurrentLoad(
        queue_seconds=queue, streams=streams, context=100.0 * streams, free_tokens=free
    )


# --- summaries -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.tuples(seconds, st.integers(0, 50)), min_size=1, max_size=40))
def test_a_region_waits_as_its_best_nodes_do(queues: list[tuple[float, int]]) -> None:
    nodes = [(node(f"n{i}"), load(queue, streams)) for i, (queue, streams) in enumerate(queues)]
    summary = summarise(nodes, incarnation=1, seq=1)
    ascending = sorted(queue for queue, _ in queues)
    assert summary.num_nodes == len(queues)
    assert summary.residual[0] == ascending[len(queues) // 10]
    assert summary.residual == tuple(sorted(summary.residual))
    region = summary.as_node(EDGE, "m", at=5.0, unmeasured=SPEED)
    assert (region.id, region.region, region.residency) == ("edge-fra", "fra", "eu")
    now = Bookings(10.0, 10).load(region, 0.0, 5.0)
    assert now.queue_seconds == pytest.approx(summary.residual[0])
    assert now.streams == min(nodes, key=lambda pair: pair[1].queue_seconds)[1].streams


def test_only_nodes_that_take_streams_count() -> None:
    nodes = [
        (node("a", draining=True), load(0.0)),
        (node("b", role="prefill"), load(0.0)),
        (node("c"), load(2.0, 3, free=50.5)),
    ]
    summary = summarise(nodes, names=HELD, incarnation=1, seq=1)
    assert (summary.num_nodes, summary.residual, summary.streams) == (1, (2.0, 2.0, 2.0), 3)
    assert (summary.free_tokens, summary.numeric_build) == (50, "b")
    assert summary.names is HELD
    assert summarise(nodes[:2], incarnation=1, seq=2).num_nodes == 0


def test_a_full_cache_and_an_unmeasured_speed_are_told_as_such() -> None:
    nodes = [(replace(node("a"), cache_tokens=6400), load(0.0))]
    told = summarise(
        nodes, names=HELD, incarnation=1, seq=1, stored_tokens={"a": 6000}, is_measured=False
    )
    region = told.as_node(EDGE, "m", at=0.0, unmeasured=SPEED.scaled(3))
    assert (region.cache_tokens, region.speed) == (400, SPEED.scaled(3))
    full = summarise(nodes, names=HELD, incarnation=1, seq=1, stored_tokens={"a": 9000})
    assert full.as_node(EDGE, "m", at=0.0, unmeasured=SPEED.scaled(3)).cache_tokens == 0
    assert full.as_node(EDGE, "m", at=0.0, unmeasured=SPEED.scaled(3)).speed == SPEED


def test_nodes_of_two_builds_promise_neither() -> None:
    nodes = [(node("a", build="x"), load(0.0)), (node("b", build="y"), load(0.0))]
    assert summarise(nodes, incarnation=1, seq=1).numeric_build == ""


versions = st.tuples(st.integers(0, 3), st.integers(0, 5))  # incarnation, seq


@settings(deadline=None)
@given(st.lists(versions, min_size=1, max_size=30))
def test_the_newest_word_counts_in_whatever_order_they_come(told: list[tuple[int, int]]) -> None:
    summaries, newest = Summaries(), (-1, -1)
    summaries.know({"edge-fra": EDGE})
    for incarnation, seq in told:
        summary = RegionSummary(incarnation=incarnation, seq=seq, num_nodes=1)
        taken = summaries.take("edge-fra", "m", summary, 0.0, SPEED)
        assert (taken is not None) == ((incarnation, seq) > newest)
        newest = max(newest, (incarnation, seq))
        assert summaries.take("stranger", "m", summary, 0.0, SPEED) is None


def test_names_are_a_regions_by_model_until_their_edge_goes() -> None:
    summaries = Summaries()
    beside = Member(id="edge-2", kind="edge", region="fra", residency="eu", gateway="unix:/y")
    summaries.know({"edge-fra": EDGE, "edge-2": beside})
    assert summaries.learn_names("edge-fra", "m", HELD)
    assert summaries.learn_names("stranger", "m", HELD)  # who is not asked for more
    held = CachedPrefix(blocks=1, resident=1)
    assert summaries.cached("m", [b"x" * 16, b"y" * 16]) == {"edge-fra": held, "edge-2": held}
    assert summaries.cached("m", [b"y" * 16]) == summaries.cached("other", [b"x" * 16]) == {}
    changes = NameNews(seq=7, level=0, added=b"yyyy")
    assert not summaries.learn_names("edge-2", "m", changes)  # it tells now: what came before?
    assert summaries.cached("m", [b"x" * 16]) == {}
    summaries.know({"edge-fra": EDGE})
    assert summaries.cached("m", [b"x" * 16]) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"residual": (-1.0, 0.0, 0.0)},
        {"residual": (float("nan"), 0.0, 0.0)},
        {"speed": (1e9, 0.0, 0.0, 0.0, 0.0)},
        {"num_nodes": -1},
        {"names": {"seq": 1, "level": 99}},
        {"names": {"seq": 1, "level": 0, "added": bytes(1 << 22)}},
    ],
)
def test_a_hostile_summary_is_refused(wrong: dict[str, object]) -> None:
    plain = msgspec.to_builtins(RegionSummary(incarnation=1, seq=1), builtin_types=(bytes,))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(plain | wrong), type=RegionSummary)


# --- routing by summaries ------------------------------------------------------------------------


@settings(deadline=None)
@given(seconds, st.floats(0.001, 1.0), seconds)
def test_a_queue_sends_requests_away_when_it_costs_more_than_the_way(
    queue: float, rtt: float, queue_there: float
) -> None:
    there = summarise([(node("n"), load(queue_there))], incarnation=1, seq=1)
    own = replace(node("own"), region="gru", load=NodeLoad(prefill_pairs=queue / SPEED.per_pair))
    view = View(
        [own, there.as_node(EDGE, "m", at=0.0, unmeasured=SPEED)],
        {("gru", "fra"): LinkSpeed(rtt=rtt, bandwidth=1e9)},
    )
    demand = Demand(model="m", origin="gru", prompt_tokens=100)
    best = Router(PrefixDirectory(), Random(1)).rank(view, demand, now=0.0)[0]
    less = queue - view.link("gru", "gru").rtt
    more = max(queue_there, rtt)  # it goes on working while the request is on its way
    if abs(less - more) > 0.001:
        assert best.decode == ("edge-fra" if less > more else "own")


@settings(deadline=None)
@given(st.lists(names, min_size=4, max_size=20, unique=True))
def test_a_prefix_that_a_region_holds_draws_its_prompts(prompt: list[bytes]) -> None:
    there = summarise([(node("n"), load(0.0))], incarnation=1, seq=1)
    summaries, telling = Summaries(), AdvertisedNames()
    summaries.know({EDGE.id: EDGE})
    telling.told("n", prompt)
    summaries.learn_names(EDGE.id, "m", telling.everything())
    region = summaries.take(EDGE.id, "m", there, 0.0, SPEED)
    assert region is not None
    own = replace(node("own"), region="gru")
    view = View([own, region], {("gru", "fra"): LinkSpeed(rtt=0.005, bandwidth=1e9)})
    demand = Demand(
        model="m", origin="gru", prompt_tokens=64 * len(prompt) + 1, digests=tuple(prompt)
    )
    router = Router(PrefixDirectory(), Random(1))
    told = summaries.cached("m", prompt)
    best = router.rank(view, demand, now=0.0, told=told)[0]
    assert (best.decode, best.cached_tokens) == ("edge-fra", 64 * len(prompt))
    assert router.rank(view, demand, now=0.0)[0].decode == "own"


def test_among_many_nodes_no_other_region_is_overlooked() -> None:
    there = summarise([(node("n"), load(0.0))], incarnation=1, seq=1)
    busy = NodeLoad(prefill_pairs=100.0 / SPEED.per_pair)
    own = [replace(node(f"own-{i}", role="decode"), region="gru", load=busy) for i in range(200)]
    view = View([*own, there.as_node(EDGE, "m", at=0.0, unmeasured=SPEED)])
    demand = Demand(model="m", origin="gru", prompt_tokens=100)
    for seed in range(20):
        router = Router(PrefixDirectory(), Random(seed))
        assert router.rank(view, demand, now=0.0)[0].decode == "edge-fra"
