"""The rules that the router is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.regions.region.test_residency import platform
from tests.regions.toy_nodes import MODEL, submit

from skerry_regions.region.placer import EarlierAttempts, Route
from skerry_regions.region.plain_placers import Nearest, RoundRobin, by_rule

pytestmark = pytest.mark.anyio


async def test_the_nearest_comes_first_and_others_when_it_fails(tmp_path: Path) -> None:
    async with platform(tmp_path, "fra", "ams", "iad") as p:
        placer = Nearest(p.directory)
        for node, rtt in (("fra", 0.5), ("ams", 0.02), ("iad", 0.01)):
            link = p.directory.link(node)
            assert link is not None
            link.rtt = rtt
        assert order(placer.place(submit(), EarlierAttempts())) == ["fra", "iad", "ams"]
        failed = EarlierAttempts(failed=frozenset({"fra"}))
        assert order(placer.place(submit(), failed)) == ["iad", "ams", "fra"]
        assert order(placer.place(submit(residency="eu"), EarlierAttempts())) == ["fra", "ams"]
        assert order(placer.place(submit(model="@cf/other"), EarlierAttempts())) == []


async def test_each_in_turn(tmp_path: Path) -> None:
    async with platform(tmp_path, "fra", "ams", "iad") as p:
        placer = RoundRobin(p.directory)
        firsts = [order(placer.place(submit(), EarlierAttempts()))[0] for _ in range(4)]
        assert firsts == ["ams", "fra", "iad", "ams"]
        assert order(placer.place(submit(residency="us"), EarlierAttempts())) == ["iad"]
        assert order(placer.place(submit(model=MODEL + "x"), EarlierAttempts())) == []


async def test_rules_by_name(tmp_path: Path) -> None:
    async with platform(tmp_path, "fra") as p:
        router = p.region.placer
        assert by_rule("cost", router, p.directory) is router
        assert isinstance(by_rule("nearest", router, p.directory), Nearest)
        assert isinstance(by_rule("round-robin", router, p.directory), RoundRobin)


def order(routes: Iterator[Route]) -> list[str]:
    """Nodes, first choice first."""
    return [route.decode.node for route in routes]
