"""Views change in place, and tell of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

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


class Heard:
    """`ViewWatcher` that writes down what it hears."""

    def __init__(self) -> None:
        self.all: list[tuple[str, ...]] = []

    def node_changed(self, node_id: str) -> None:
        self.all.append(("changed", node_id))

    def node_removed(self, node_id: str) -> None:
        self.all.append(("removed", node_id))

    def link_changed(self, source: str, target: str) -> None:
        self.all.append(("link", source, target))


def test_whoever_watches_hears_what_changed_and_nothing_else() -> None:
    view, heard = View([node("a")]), Heard()
    view.watch(heard)
    view.put(node("b"), node("a"))  # a is as it was
    loaded = replace(node("a"), load=NodeLoad(streams=3), observed_at=7.0)
    view.put(loaded)
    view.put(loaded)
    assert (view.nodes["a"].load.streams, view.nodes["a"].observed_at) == (3, 7.0)
    view.remove("a")
    view.remove("stranger")
    assert list(view.nodes) == ["b"]
    speed = LinkSpeed(rtt=0.1, bandwidth=1e6)
    view.put_link("gru", "fra", speed)
    view.put_link("fra", "gru", speed)
    assert heard.all == [
        ("changed", "b"), ("changed", "a"), ("removed", "a"), ("link", "gru", "fra"),
    ]  # fmt: skip
    with pytest.raises(TypeError):
        view.nodes["c"] = node("c")  # type: ignore[index]


def test_links_hold_both_ways_and_have_defaults() -> None:
    first, second = LinkSpeed(rtt=0.1, bandwidth=1e6), LinkSpeed(rtt=0.2, bandwidth=1e6)
    view = View(links={("fra", "gru"): first})
    assert view.link("gru", "fra") == view.link("fra", "gru") == first
    assert view.link("fra", "fra") == LOCAL_LINK
    assert view.link("fra", "nrt") == UNKNOWN_LINK
    view.put_link("gru", "fra", second)
    assert view.link("fra", "gru") == second


@pytest.mark.parametrize(
    ("role", "decodes", "prefills"),
    [("prefill", False, True), ("decode", True, False), ("hybrid", True, True)],
)
def test_roles(role: Role, decodes: bool, prefills: bool) -> None:
    assert (node("a", role).can_decode, node("a", role).offers_prefill) == (decodes, prefills)
