"""A prefix that another region holds is computed here once going there has cost as much."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from skerry_regions.prefix_news import PrefixDelta
from skerry_regions.routing.block_index import CachedPrefix
from skerry_regions.routing.placement import Demand, RouterConfig
from skerry_regions.routing.prefixes import PrefixDirectory
from skerry_regions.routing.rental import MAX_PAID, Rental
from skerry_regions.routing.router import Router
from skerry_regions.speeds import LinkSpeed, NodeSpeed
from skerry_regions.view import LOCAL_LINK, NodeState, View

SPEED = NodeSpeed(
    base=0.0, per_token=0.001, per_pair=0.0, per_stream=0.0, per_context=0.0, chunk_tokens=100_000
)
PREFIX = tuple(bytes([i]) * 16 for i in range(10))  # 640 tokens: 0.64 s
HELD = {"far": CachedPrefix(10, 0, 10)}


def node(name: str, region: str) -> NodeState:
    return NodeState(
        id=name, region=region, is_region=region != "here", residency="eu", role="decode",
        model="m", numeric_build="b", kv_format="k", kv_bytes_per_token=1.0, speed=SPEED,
        takes_kv=False,
    )  # fmt: skip


def ask(own: bytes) -> Demand:
    return Demand(
        model="m", origin="here", prompt_tokens=641 + 63, output_tokens=0, digests=(*PREFIX, own)
    )


def went(rtt: float, requests: int) -> list[str]:
    """Where so many requests with the prefix go, one after the other; far, there are ten edges."""
    view = View(
        [node("own", "here"), *(node(f"far-{i}", "there") for i in range(10))],
        {("here", "there"): LinkSpeed(rtt=rtt, bandwidth=1e9)},
    )
    directory, rental = PrefixDirectory(), Rental(64)
    router = Router(directory, Random(1), RouterConfig(behind_weight=0.0))
    told = {f"far-{i}": CachedPrefix(10, 0, 10) for i in range(10)}
    taken = []
    for number in range(requests):
        demand = ask(number.to_bytes(16, "big"))
        best = router.rank(view, demand, now=0.0, told=told)[0]
        if rental.goes_far(best, demand, view.nodes):
            near = replace(demand, only_region="here")
            (here,) = router.rank(view, near, now=0.0)
            if rental.has_paid(best, here, demand, view.nodes):
                best = here
        taken.append(view.nodes[best.decode].region)
        if taken[-1] == "here":
            directory.apply(PrefixDelta(node="own", incarnation=1, seq=1, sealed=PREFIX))
    return taken


@pytest.mark.parametrize(("rtt", "rents"), [(0.15, 5), (0.3, 3), (0.6, 2)])
def test_rents_add_up_to_the_price_and_then_it_is_here(rtt: float, rents: int) -> None:
    assert rents == -(-0.64 // (rtt - LOCAL_LINK.rtt))  # the last of them is not paid: it buys
    assert went(rtt, 9) == ["there"] * (rents - 1) + ["here"] * (10 - rents)


def test_a_prefix_that_costs_less_than_the_way_is_computed_at_once() -> None:
    assert went(0.7, 3) == ["here"] * 3


def test_what_is_paid_is_bounded() -> None:
    view = View([node("own", "here"), node("far", "there")])
    router, rental = Router(PrefixDirectory(), Random(1)), Rental(64)
    for number in range(MAX_PAID + 10):
        demand = Demand(
            model="m", origin="here", prompt_tokens=704, output_tokens=0,
            digests=(*PREFIX[:9], number.to_bytes(16, "big")),
        )  # fmt: skip
        far, here = router.rank(view, demand, now=0.0, told=HELD)
        assert not rental.has_paid(far, here, demand, view.nodes)
    assert len(rental._paid) == MAX_PAID
