"""What an edge sees of the platform: its own nodes one by one, other regions by their edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.regions.region.test_observations import member, report

from skerry_regions.region.cluster_state import ClusterState
from skerry_regions.region.region_figures import seen_fleet
from skerry_regions.registry import Member
from skerry_regions.routing.summaries import RegionSummary
from skerry_regions.speeds import StepSample
from skerry_regions.view import NodeLoad
from skerry_regions.wire.reports import EngineWork

WORK = EngineWork(busy_seconds=1.5, looked_up_tokens=10, hit_tokens=5, blocks=8, blocks_used=2)
EDGE = Member(id="iad-edge", kind="edge", region="iad", gateway="tcp:x:1", state="ready")
PLACES = {"here": (50.0, 8.0), "gru": (-23.0, -46.0)}


@dataclass
class Wire:
    """A link, as far as a directory shows it."""

    node: str
    is_up: bool = True
    rtt: float | None = 0.001
    models: frozenset[str] = frozenset({"m"})

    def want_snapshot(self, model: str) -> None:
        """Nothing more is wanted."""


@dataclass
class Known:
    """A directory, as far as it is looked at."""

    members: Mapping[str, Member]
    wires: dict[str, Wire] = field(default_factory=dict)

    def link(self, id_: str) -> Wire | None:
        return self.wires.get(id_)

    def rtts(self) -> dict[str, float]:
        return {id_: wire.rtt for id_, wire in self.wires.items() if wire.rtt is not None}


def world() -> tuple[Any, ClusterState]:
    members = {"a": member("a"), "b": member("b", state="draining"), EDGE.id: EDGE}
    known: Any = Known(members, {id_: Wire(id_) for id_ in members})
    known.wires[EDGE.id].rtt = 0.09
    state = ClusterState("here", clock=lambda: 1.0)
    state.members_changed(members)
    return known, state


def test_nodes_are_what_they_reported_last() -> None:
    known, state = world()
    load = NodeLoad(streams=3, prefill_tokens=1000.0)
    sample = StepSample(
        steps=1, seconds=0.1, new_tokens=0, attended=0.0, streams=1, context=1
    )  # fmt: skip
    state.reported(
        known.wires["a"], known.members["a"], report(load=load, work=WORK, sample=sample)
    )
    seen = seen_fleet(known, state, PLACES)
    a, b = seen.nodes
    assert (a.id, a.state, a.streams, a.work) == ("a", "ready", 3, WORK)
    speed = state.observations.view("m").nodes["a"].speed
    assert a.queue_seconds == 1000.0 * speed.per_token
    assert (b.id, b.state, b.streams, b.work) == ("b", "draining", 0, None)
    here = next(each for each in seen.regions if each.name == "here")
    assert (here.nodes, here.is_up, here.rtt, here.place) == (1, True, 0.001, (50.0, 8.0))
    assert here.queue_seconds == a.queue_seconds
    known.wires["a"].is_up = False
    seen = seen_fleet(known, state, PLACES)
    assert seen.nodes[0].state == "down"
    assert [each.is_up for each in seen.regions if each.name == "here"] == [False]


def test_other_regions_are_what_their_edges_say() -> None:
    known, state = world()
    summary = RegionSummary(incarnation=1, seq=1, num_nodes=7, residual=(0.1, 0.2, 0.3))
    state.reported(known.wires[EDGE.id], EDGE, report(region=summary))
    regions = {each.name: each for each in seen_fleet(known, state, PLACES).regions}
    assert set(regions) == {"here", "iad", "gru"}
    iad, gru = regions["iad"], regions["gru"]
    assert (iad.nodes, iad.queue_seconds, iad.rtt, iad.is_up) == (7, 0.2, 0.09, True)
    assert (gru.nodes, gru.queue_seconds, gru.rtt, gru.is_up) == (0, None, None, False)
    known.wires[EDGE.id].is_up = False
    regions = {each.name: each for each in seen_fleet(known, state, PLACES).regions}
    assert regions["iad"].is_up is False


def test_a_region_with_this_edge_alone_is_up() -> None:
    known, state = world()
    known.members, known.wires = {EDGE.id: EDGE}, {EDGE.id: Wire(EDGE.id)}
    regions = {each.name: each for each in seen_fleet(known, state, PLACES).regions}
    assert (regions["here"].nodes, regions["here"].is_up) == (0, True)


def test_who_is_gone_is_forgotten() -> None:
    known, state = world()
    state.reported(known.wires["a"], known.members["a"], report(work=WORK))
    summary = RegionSummary(incarnation=1, seq=1, num_nodes=7)
    state.reported(known.wires[EDGE.id], EDGE, report(region=summary))
    state.members_changed({"b": known.members["b"]})
    assert (state.work, state.summarised) == ({}, {})
