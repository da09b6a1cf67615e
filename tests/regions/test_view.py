"""Views never change; each change makes a newer one."""

from __future__ import annotations

import pytest

from skerry_regions.speeds import LinkSpeed, NodeSpeed
from skerry_regions.view import LOCAL_LINK, UNKNOWN_LINK, NodeLoad, NodeState, Role, View

SPEED = NodeSpeed(base=1, per_token=1, per_pair=1, per_stream=1, per_context=1)


def node(name: str, role: Role = "hybrid") -> NodeState:
    return NodeState(
        id=name,
        region="fra",
        residency="eu",
        role=role,
        model="m",
        numeric_build="b",
        kv_format="k",
        kv_bytes_per_token=1.0,
        speed=SPEED,
    )


def test_a_change_makes_a_newer_view_and_leaves_the_old_one() -> None:
    old = View([node("a")])
    new = old.with_nodes(node("b")).with_load("a", NodeLoad(streams=3), observed_at=7.0)
    assert (old.version, new.version) == (0, 2)
    assert list(old.nodes) == ["a"]
    assert old.nodes["a"].load.streams == 0
    assert (new.nodes["a"].load.streams, new.nodes["a"].observed_at) == (3, 7.0)
    assert list(new.without_node("a").without_node("stranger").nodes) == ["b"]
    with pytest.raises(KeyError):
        old.with_load("b", NodeLoad(), observed_at=0.0)
    with pytest.raises(TypeError):
        old.nodes["c"] = node("c")  # type: ignore[index]


def test_links_hold_both_ways_and_have_defaults() -> None:
    first, second = LinkSpeed(rtt=0.1, bandwidth=1e6), LinkSpeed(rtt=0.2, bandwidth=1e6)
    view = View(links={("fra", "gru"): first})
    assert view.link("gru", "fra") == view.link("fra", "gru") == first
    assert view.link("fra", "fra") == LOCAL_LINK
    assert view.link("fra", "nrt") == UNKNOWN_LINK
    assert view.with_link("gru", "fra", second).link("fra", "gru") == second


@pytest.mark.parametrize(
    ("role", "decodes", "prefills"),
    [("prefill", False, True), ("decode", True, False), ("hybrid", True, True)],
)
def test_roles(role: Role, decodes: bool, prefills: bool) -> None:
    assert (node("a", role).can_decode, node("a", role).offers_prefill) == (decodes, prefills)
