"""The router at its limits in numbers: 10,000 nodes in a region, 20 regions of 100 edges each."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import pytest
from tests.regions.routing.kernels import load_router_kernels

from skerry_regions.prefix_news import PrefixDelta
from skerry_regions.region.cluster_state import ClusterState
from skerry_regions.region.cost_placer import CostPlacer
from skerry_regions.region.region_reports import RegionReports
from skerry_regions.registry import Member
from skerry_regions.routing.fast.candidates import MAX_EDGES
from skerry_regions.routing.fast.table import MAX_REGIONS
from skerry_regions.routing.placement import Demand
from skerry_regions.routing.prefixes import PrefixDirectory
from skerry_regions.routing.region_names import AdvertisedNames, KnownNames
from skerry_regions.routing.router import Router
from skerry_regions.speeds import LinkSpeed, NodeSpeed
from skerry_regions.view import NodeLoad, NodeState, View

SPEED = NodeSpeed(
    base=0.01, per_token=1e-4, per_pair=1e-9, per_stream=3e-4, per_context=4e-8, chunk_tokens=2048
)
NODES, REGIONS, EDGES = 10_000, 20, 100
PROMPT = tuple(Random(1).randbytes(16) for _ in range(60))


def node(name: str, region: str = "r0", *, queue: float = 0.0, **changes: Any) -> NodeState:
    return NodeState(
        id=name, region=region, residency="eu", role="hybrid" if region == "r0" else "decode",
        is_region=region != "r0", takes_kv=False, model="m", numeric_build="b", kv_format="k",
        kv_bytes_per_token=1e5, speed=SPEED,
        load=NodeLoad(prefill_pairs=queue / SPEED.per_pair), **changes,
    )  # fmt: skip


def edge(region: int, number: int) -> str:
    return f"e{region}-{number}"


@pytest.fixture(scope="module")
def world() -> tuple[Router, View]:
    """All of them, the region's own nodes busy for a second."""
    load_router_kernels()
    directory = PrefixDirectory()
    router = Router(directory, Random(1))
    router.use_index()
    own = [node(f"n{i}", queue=1.0) for i in range(NODES)]
    others = [
        node(edge(region, number), f"r{region}", queue=5.0)
        for region in range(1, REGIONS)
        for number in range(EDGES)
    ]
    links = {
        ("r0", f"r{region}"): LinkSpeed(rtt=0.1, bandwidth=1e8) for region in range(1, REGIONS)
    }
    links["r0", "r0"] = LinkSpeed(rtt=0.001, bandwidth=1e10)
    return router, View([*own, *others], links)


def asked(*digests: bytes) -> Demand:
    return Demand(model="m", origin="r0", prompt_tokens=64 * 60 + 9, digests=digests)


def test_the_one_node_that_holds_a_prompt_is_found(world: tuple[Router, View]) -> None:
    router, view = world
    for number, holder in enumerate(("n0", "n7777", f"n{NODES - 1}")):
        digests = tuple(bytes([number]) + digest[1:] for digest in PROMPT)
        router._directory.apply(PrefixDelta(node=holder, incarnation=1, seq=1, sealed=digests))
        best = router.rank(view, asked(*digests), now=0.0)[0]
        assert (best.prefill, best.cached_tokens) == (holder, 64 * 60)
        # All but candidates: some tens of nodes, and one edge of each other region.
        assert best.unpriced["index"] > NODES + (REGIONS - 1) * EDGES - 256
        assert not best.unpriced.get("draining", 0)


def test_nodes_are_priced_beside_two_thousand_edges(world: tuple[Router, View]) -> None:
    """An idle node among ten thousand, and one idle region among twenty."""
    router, view = world
    view.put(node("n4321"))
    assert router.rank(view, asked(), now=0.0)[0].decode == "n4321"
    view.put(node("n4321", queue=1.0))
    idle = [node(edge(13, number), "r13") for number in range(EDGES)]
    view.put(*idle)
    chosen = {router.rank(view, asked(), now=0.0)[0].decode for _ in range(40)}
    assert chosen <= {each.id for each in idle}
    assert len(chosen) > 10  # not all requests to one of its edges
    view.put(*(node(each.id, "r13", draining=True) for each in idle[1:]))
    for _ in range(20):
        assert router.rank(view, asked(), now=0.0)[0].decode == idle[0].id
    for each in idle:
        view.remove(each.id)
    assert router.rank(view, asked(), now=0.0)[0].prefill.startswith("n")
    assert MAX_EDGES >= 2 * MAX_REGIONS


def test_one_edge_of_a_region_sends_names_and_another_one_when_it_is_gone() -> None:
    present = [
        Member(
            id=edge(region, number),
            kind="edge",
            region=f"r{region}",
            gateway="unix:/x",
            state="ready",
        )
        for region in (0, 1)
        for number in range(EDGES)
    ]
    reports = {
        each.id: RegionReports(
            each.id,
            CostPlacer(cast("Any", None), ClusterState(each.region), {}, Random(1)),
            ["m"], 1, lambda: present,
        )
        for each in present
    }  # fmt: skip

    def speaking() -> list[str]:
        sent = {id_: made()[0].region for id_, made in reports.items()}
        return sorted(id_ for id_, region in sent.items() if region and region.names is not None)

    first = speaking()
    assert [id_.split("-")[0] for id_ in first] == ["e0", "e1"]
    present[:] = [each for each in present if each.id not in first]
    for id_ in first:
        del reports[id_]
    second = speaking()
    assert [id_.split("-")[0] for id_ in second] == ["e0", "e1"]


def test_names_are_thinned_by_depth_until_they_fit_the_bytes_per_second() -> None:
    """A region that computes 2,000 new blocks a second, and may say 1,000 bytes a second."""
    rng, budget = Random(2), 1000.0
    names, known, chains, sent = AdvertisedNames(budget), KnownNames(), [], 0
    level = 0
    for tick in range(2 * 180):
        chain = [rng.randbytes(16) for _ in range(1000)]
        names.told("n", chain)
        chains.append(chain)
        if tick >= 20:
            names.forgotten("n", chains[tick - 20])
        news = names.news(tick / 2)
        level = news.level
        if not known.take(news):
            assert known.take(names.everything())
        if tick >= 240:
            sent += len(news.added) + len(news.dropped)
    assert 5 <= level <= 6  # one name for each 2,048 tokens, or 4,096
    assert sent / 60 < 1.3 * budget
    lost = [1000 - known.leading(chain) for chain in chains[-20:]]
    assert 0 < sum(lost) / len(lost) < 2 * 2**level  # blocks of a thousand
    assert not any(known.leading(chain) for chain in chains[-60:-20])
