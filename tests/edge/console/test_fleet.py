"""Rows of regions and nodes: rates between looks, what changes, what is gone, who may see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from tests.edge.support import ACCOUNT, deployed

from skerry_edge.console.fleet import GONE_SECONDS, FleetChannel
from skerry_edge.limits import Limits
from skerry_regions.region.region_figures import SeenFleet, SeenNode, SeenRegion
from skerry_regions.wire.reports import EngineWork

OTHER = "f" * 32  # an account
WORK = EngineWork(
    busy_seconds=10.0, looked_up_tokens=400, hit_tokens=100, blocks=64, blocks_used=16
)
NODE = SeenNode(
    id="fra-0", region="fra", role="hybrid", model="m", state="ready", streams=3,
    queue_seconds=0.01234, work=WORK,
)  # fmt: skip
FRA = SeenRegion(name="fra", place=(50.1, 8.6), rtt=0.0, queue_seconds=0.01234, nodes=1)
IAD = SeenRegion(name="iad", rtt=0.0841, queue_seconds=None, nodes=7)
FLEET = SeenFleet(region="fra", regions=[FRA, IAD], nodes=[NODE])


class World:
    """What an edge sees, and when."""

    def __init__(self) -> None:
        self.fleet, self.now = FLEET, 100.0
        self.channel = FleetChannel(lambda: self.fleet, lambda: self.now)

    def later(self, seconds: float, *nodes: SeenNode) -> Any:
        self.now += seconds
        self.fleet = replace(FLEET, nodes=list(nodes))
        return self.channel.news()


def test_a_snapshot_has_all_of_it() -> None:
    snapshot: Any = World().channel.snapshot()
    [node], [fra, iad] = snapshot["nodes"], snapshot["regions"]
    assert snapshot["region"] == "fra"
    assert (node.id, node.queue, node.kv, node.hits, node.streams) == ("fra-0", 12.3, 25, 25, 3)
    assert node.busy is None  # it takes two looks
    assert (fra.place, fra.rtt, fra.state) == ((50.1, 8.6), 0.0, "ready")
    assert (iad.place, iad.rtt, iad.queue, iad.nodes) == (None, 84.1, None, 7)


def test_what_does_not_change_on_a_screen_is_not_sent() -> None:
    world = World()
    world.channel.snapshot()
    world.later(1.0, NODE)  # busy is known from now on
    assert world.later(1.0, NODE) == {}
    assert world.later(1.0, replace(NODE, queue_seconds=0.01231)) == {}
    [row] = world.later(1.0, replace(NODE, streams=4))["nodes"]
    assert row.streams == 4


def test_busy_is_of_the_time_between_two_looks() -> None:
    world = World()
    world.channel.snapshot()
    [row] = world.later(2.0, replace(NODE, work=replace(WORK, busy_seconds=11.0)))["nodes"]
    assert row.busy == 50
    [row] = world.later(2.0, replace(NODE, work=replace(WORK, busy_seconds=0.5)))["nodes"]
    assert row.busy is None  # it was started again


def test_a_node_that_is_gone_is_down_for_a_minute() -> None:
    world = World()
    world.channel.snapshot()
    [row] = world.later(1.0)["nodes"]
    assert (row.id, row.state, row.busy) == ("fra-0", "down", None)
    assert world.later(GONE_SECONDS - 1) == {}
    assert world.later(1.0) == {"gone_nodes": ["fra-0"]}
    assert world.later(1.0) == {}


def test_a_node_that_comes_back_is_no_longer_down() -> None:
    world = World()
    world.channel.snapshot()
    world.later(1.0)
    [row] = world.later(1.0, NODE)["nodes"]
    assert row.state == "ready"
    [row] = world.later(GONE_SECONDS)["nodes"]  # lost again: a minute from now
    assert row.state == "down"


CONTROL = "http://127.0.0.1:8788"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("fleet")
    with deployed(
        folder, Limits(), console="loopback", fleet=lambda: FLEET, platform=ACCOUNT,
        control=lambda: CONTROL,
    ) as edge:  # fmt: skip
        yield f"http://127.0.0.1:{edge.port}", edge.edge.tokens


@pytest.mark.parametrize(
    ("account", "role", "may"),
    [
        (ACCOUNT, "operator", True),
        (ACCOUNT, "viewer", True),
        (ACCOUNT, None, False),
        (OTHER, "developer", False),
        (OTHER, "viewer", False),
    ],
)
def test_it_is_for_roles_of_the_platform(
    base: tuple[str, Any], account: str, role: Any, may: bool
) -> None:
    url, tokens = base
    token, _ = tokens.create(account_id=account, role=role, now=0)
    own = {"x-skerry-console": "1"}
    with httpx.Client(base_url=url, trust_env=False, headers=own, timeout=60.0) as client:
        told = client.post("/console/login", json={"token": token}).json()
        assert told["sees_platform"] is may
        assert told["elsewhere"] == (CONTROL if may else "")
        with client.stream("GET", "/console/live?view=regions") as reply:
            assert reply.status_code == (200 if may else 403)
            if may:
                lines = reply.iter_lines()
                assert next(lines) == "event: snapshot"
                frame = json.loads(next(lines)[6:])
                assert [each["name"] for each in frame["regions"]] == ["fra", "iad"]
