"""What an edge makes of registry, reports and pings; messages and time by hand."""

from __future__ import annotations

from typing import Any

import pytest

from skerry_regions.prefix_news import PrefixPublisher
from skerry_regions.region.observations import PRIOR, PRIOR_HANDOVER_LAG, Observations
from skerry_regions.registry import Member
from skerry_regions.routing.block_index import CachedPrefix
from skerry_regions.speeds import LinkSpeed, StepSample
from skerry_regions.view import LOCAL_LINK, UNKNOWN_LINK, NodeLoad
from skerry_regions.wire.reports import Fetched, Report

DIGESTS = tuple(bytes([i]) * 16 for i in range(8))


def member(id: str, **changes: Any) -> Member:
    fields: dict[str, Any] = {
        "region": "here",
        "incarnation": 1,
        "model": "m",
        "runner": "toy",
        "numeric_build": "b",
        "kv_format": "k",
        "kv_bytes_per_token": 10.0,
        "cache_tokens": 640,
        "state": "ready",
        **changes,
    }
    return Member(id=id, kind="node", **fields)


def report(**changes: Any) -> Report:
    fields: dict[str, Any] = {"model": "m", "load": NodeLoad(), **changes}
    return Report(**fields)


@pytest.fixture
def seen() -> Observations:
    made = Observations("here")
    made.know([member("a"), member("b")])
    return made


def test_a_node_is_what_the_registry_and_its_reports_say(seen: Observations) -> None:
    load = NodeLoad(streams=3, free_tokens=64)
    seen.take("a", report(load=load, load_age=0.5, file_bandwidth=1e6), now=7.5)
    a, b = seen.view("m").nodes["a"], seen.view("m").nodes["b"]
    assert (a.load, a.file_bandwidth, a.observed_at) == (load, 1e6, 7.0)
    assert (a.region, a.role, a.model, a.numeric_build, a.kv_format, a.cache_tokens) == (
        "here", "hybrid", "m", "b", "k", 640,
    )  # fmt: skip
    assert (b.load, b.speed, b.draining, b.takes_kv) == (NodeLoad(), a.speed, False, False)
    assert a.speed.step_seconds(1, 0) == pytest.approx(PRIOR.step_seconds(1, 0))


def test_a_view_changes_in_place_and_only_when_something_is_new(seen: Observations) -> None:
    view = seen.view("m")
    a = view.nodes["a"]
    seen.know([member("a"), member("b")])
    seen.take("stranger", report(), now=2.0)
    seen.take("a", report(model="other"), now=2.0)
    seen.handed_over("stranger", 1.0, 0.0, 2.0)
    assert seen.view("m") is view
    assert view.nodes["a"] is a
    assert dict(seen.view("other").nodes) == {}
    seen.take("a", report(), now=2.0)
    assert view.nodes["a"].observed_at == 2.0
    assert list(view.nodes) == ["a", "b"]


def test_a_node_that_no_link_reaches_is_away(seen: Observations) -> None:
    seen.link_takes("a", frozenset())
    assert [node.away for node in seen.view("m").nodes.values()] == [True, False]
    seen.take("a", report(), now=1.0)
    assert seen.view("m").nodes["a"].away
    seen.link_takes("a", frozenset({"m"}))
    assert not seen.view("m").nodes["a"].away


def test_nodes_that_leave_are_forgotten_and_those_that_go_take_nothing_new(
    seen: Observations,
) -> None:
    publisher = PrefixPublisher("b", 1)
    publisher.sealed(DIGESTS)
    seen.take("b", report(prefixes=publisher.delta()), now=1.0)
    seen.know([member("a", state="draining"), member("starting", model="", state="starting")])
    assert {id: node.draining for id, node in seen.view("m").nodes.items()} == {"a": True}
    assert seen.prefixes.match_all(DIGESTS) == {}


def test_a_restarted_node_has_no_load_of_its_last_life(seen: Observations) -> None:
    seen.take("a", report(load=NodeLoad(streams=3)), now=1.0)
    seen.know([member("a", incarnation=2), member("b")])
    assert seen.view("m").nodes["a"].load == NodeLoad()


def test_measured_steps_are_learned_for_all_nodes_of_a_kind(seen: Observations) -> None:
    seen.know([member("a"), member("b"), member("other", numeric_build="b2")])
    for _ in range(50):
        sample = StepSample(steps=10, seconds=1.0, streams=10, context=1000.0)
        seen.take("a", report(sample=sample), now=1.0)
    nodes = seen.view("m").nodes
    assert nodes["a"].speed.step_seconds(1, 100) == pytest.approx(0.1, rel=0.05)
    assert nodes["b"].speed.step_seconds(1, 100) == pytest.approx(0.1, rel=0.3)
    assert nodes["other"].speed.step_seconds(1, 100) == pytest.approx(PRIOR.step_seconds(1, 100))


def test_a_gap_in_a_nodes_changes_asks_for_a_snapshot_now_and_then(seen: Observations) -> None:
    publisher = PrefixPublisher("a", 1)
    publisher.sealed(DIGESTS[:2])
    publisher.delta()  # lost
    publisher.sealed(DIGESTS[2:])
    assert seen.take("a", report(prefixes=publisher.delta()), now=10.0)
    assert not seen.take("a", report(), now=10.9)
    assert seen.take("a", report(), now=11.0)
    assert not seen.take("a", report(prefixes=publisher.snapshot()), now=11.1)
    assert seen.prefixes.match_all(DIGESTS) == {"a": CachedPrefix(8, 0, 8)}


def test_a_node_speaks_for_itself_only(seen: Observations) -> None:
    publisher = PrefixPublisher("b", 1)
    publisher.sealed(DIGESTS)
    seen.take("a", report(prefixes=publisher.delta()), now=1.0)
    assert seen.prefixes.match_all(DIGESTS) == {}


def test_distances_are_priors_until_pings_measure_them() -> None:
    gru = LinkSpeed(rtt=0.2, bandwidth=1e7)
    seen = Observations("here", links={("gru", "here"): gru})
    seen.know([member("near"), member("far", region="gru"), member("else", region="nrt")])
    assert seen.view("m").link("here", "gru") == gru
    assert seen.view("m").link("here", "here") == LOCAL_LINK
    seen.reached("gru", 0.19)
    seen.reached("nrt", 0.26)
    seen.reached("here", 0.001)
    view = seen.view("m")
    assert view.link("here", "gru") == LinkSpeed(rtt=0.19, bandwidth=gru.bandwidth)
    assert view.link("nrt", "here").rtt == 0.26
    assert view.link("here", "nrt").bandwidth == pytest.approx(UNKNOWN_LINK.bandwidth)
    assert view.link("here", "here").rtt == 0.001


def test_late_hand_overs_are_remembered_by_decode_node(seen: Observations) -> None:
    for _ in range(40):
        seen.handed_over("a", 0.105, 0.005, now=1.0)
    nodes = seen.view("m").nodes
    assert nodes["a"].handover_lag == pytest.approx(0.1, rel=0.05)
    assert nodes["b"].handover_lag == PRIOR_HANDOVER_LAG


def test_bandwidth_is_learned_from_what_nodes_fetched() -> None:
    far = LinkSpeed(rtt=0.1, bandwidth=1e7)
    seen = Observations("here", links={("gru", "fra"): far})
    seen.know([member("a", region="fra"), member("b", region="gru")])
    for _ in range(50):
        fetched = [
            Fetched(source="a", num_bytes=1 << 20, seconds=0.1 + (1 << 20) / 5e7),
            Fetched(source="stranger", num_bytes=1 << 30, seconds=1.0),
        ]
        seen.take("b", report(fetched=fetched), now=1.0)
    for pair in (("fra", "gru"), ("gru", "fra")):
        link = seen.view("m").link(*pair)
        assert (link.rtt, link.bandwidth) == (0.1, pytest.approx(5e7, rel=0.1))


@pytest.mark.parametrize("pair", [("here", "gru"), ("gru", "here")])
def test_a_link_is_the_same_in_either_direction(pair: tuple[str, str]) -> None:
    seen = Observations("here", links={pair: LinkSpeed(rtt=0.2, bandwidth=1e7)})
    seen.know([member("far", region="gru")])
    seen.reached("gru", 0.19)
    for source, target in (pair, pair[::-1]):
        assert seen.view("m").link(source, target) == LinkSpeed(rtt=0.19, bandwidth=1e7)
