"""What a Ray cluster stands on is killed, frozen and away; streams go on."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.command import MODEL, is_alive, new_home, until
from tests.e2e.control.control_client import ControlClient
from tests.e2e.control.test_hosts import HostedPlatform
from tests.faults.test_host_loss import load
from tests.regions.control.ray.cluster import (
    CHECKS,
    RayCluster,
    namespace,
    processes,
    token,
    variables,
)
from tests.regions.drivers.nats_server import NatsServer

from skerry_cli.home.shared_state import open_registry
from skerry_cli.home.state import Home
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.registry import Member

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(300)]

POOL = {"region": "fra", "role": "hybrid", "model": MODEL, "runner": "toy", "threads": 1,
        "launcher": "ray", "file_tier": "none", "kv_blocks": 256}  # fmt: skip
BACK_SECONDS = 15.0  # on a busy machine; 1 s until it is forked again, and 2.3 s in all, at load 6
AWAY_SECONDS = 60.0
NOTICE_SECONDS = 3.0  # in which edges read the registry, and streams that began before end

logger = logging.getLogger(__name__)


class RayPlatform(HostedPlatform):
    """A control plane with an edge and a pool on a Ray cluster of two machines."""

    def __init__(self, folder: Path, model: ModelFiles) -> None:
        super().__init__(folder, model)
        self._key = secrets.token_bytes(32)
        self._nats = NatsServer(folder)
        self._home(self.skerry.home)
        self.skerry = replace(self.skerry, registry=self._nats.url)
        self.registry = open_registry(Home(self.skerry.home), self.skerry.environ)
        self.cluster = RayCluster()
        for name in ("a", "b"):
            (folder / name).mkdir()
            self._home(new_home(folder / name, model).home)
            self.machine_there(name)

    def _home(self, home: Path) -> None:
        (home / "cluster.key").touch(mode=0o600)
        (home / "cluster.key").write_bytes(self._key)

    def machine_there(self, name: str) -> None:
        """Start a machine, with the home of its name."""
        home = replace(self.skerry, home=self.folder / name / "home")
        self.cluster.machine(name, home.environ)

    def start(self, *arguments: str, port: str = "0") -> None:
        self.control = self._run(
            self.skerry, "control", "control", "--port", port, "--own",
            "--ray", f"fra={self.cluster.address}", *arguments,
        )  # fmt: skip
        self.control.says("is ready at")
        self.client = ControlClient(self.skerry)
        self._clients.append(self.client)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.registry.close()
            self.cluster.close()
            self._nats.stop()

    def member(self, id: str) -> Member:
        """Return who holds a name, once somebody does."""
        found: list[Member] = until(
            lambda: [each for each in self.registry.members() if each.id == id]
        )
        return found[0]

    def scale(self, replicas: int) -> dict[str, int]:
        """Return pids of the nodes, by name, once there are so many."""
        self.client.patch("pools/fra-many", replicas=replicas)
        until(lambda: self.ready() == replicas and len(self.pids()) == replicas)
        return self.pids()

    def streams(self, machine: str, id: str) -> int:
        """How many a node has ended for edges, by its log on a machine."""
        log = (self.folder / machine / "home" / "logs" / f"{id}.log").read_text()
        ended = [line for line in log.splitlines() if "stream ended" in line]
        return sum('"request_id":"canary"' not in line for line in ended)

    def drivers(self) -> list[int]:
        return [*processes("reconcile.ray.driver", self.cluster.address)]

    def pids(self) -> dict[str, int]:
        nodes = self.client.nodes().values()
        return {node["id"]: node["pid"] for node in nodes if node["kind"] == "node"}


def machine_of(pid: int) -> str:
    """The name of a process's machine, by its home."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    [home] = [pair for pair in pairs if pair.startswith(b"SKERRY_HOME=")]
    return Path(home.decode()).parent.name


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles
) -> Iterator[RayPlatform]:
    with namespace(), variables(CHECKS | token()):
        platform = RayPlatform(tmp_path_factory.mktemp("ray"), default_model)
        try:
            platform.start()
            platform.client.make("regions", name="fra", iata="FRA")
            platform.client.make("pools", name="many", replicas=1, **POOL)
            platform.client.make("edge_nodes", name="edge", region="fra")
            until(lambda: platform.ready() == 1)
            yield platform
        finally:
            platform.close()


def test_a_node_that_is_killed_is_back_within_seconds(platform: RayPlatform) -> None:
    before = platform.scale(2)
    with load(platform):
        [name, *_] = before
        killed_at = time.monotonic()
        os.kill(before[name], signal.SIGKILL)
        until(lambda: platform.pids().get(name, 0) not in (0, before[name]))
        began = time.monotonic() - killed_at
        until(lambda: platform.member(name).pid == platform.pids()[name])
        until(lambda: platform.member(name).state == "ready")
        took = time.monotonic() - killed_at
        until(lambda: platform.ready() == 2)
    logger.info("started again after %.1f s, ready after %.1f s", began, took)
    assert began < BACK_SECONDS, "it waits for nothing but the plan and Ray"


def test_a_pool_grows_and_shrinks(platform: RayPlatform) -> None:
    platform.scale(1)
    with load(platform):
        grown = platform.scale(4)
        assert {machine_of(pid) for pid in grown.values()} == {"a", "b"}
        shrunk = platform.scale(1)
    gone = set(grown.values()) - set(shrunk.values())
    until(lambda: not any(map(is_alive, gone)))


def test_a_driver_that_is_killed_changes_nothing(platform: RayPlatform) -> None:
    before = platform.scale(2)
    [driver] = platform.drivers()
    with load(platform):
        os.kill(driver, signal.SIGKILL)
        until(lambda: platform.drivers() not in ([], [driver]))
        grown = platform.scale(3)
    assert before.items() < grown.items()


def test_a_control_plane_that_is_killed_starts_nothing_twice(platform: RayPlatform) -> None:
    before = platform.scale(2)
    platform.control.end(signal.SIGKILL)
    platform.start()
    until(lambda: platform.pids() == before)
    assert platform.scale(2) == before


def test_a_raylet_that_is_killed_takes_its_nodes_along_and_streams_go_on(
    platform: RayPlatform,
) -> None:
    before = platform.scale(2)
    name, pid = min(before.items())
    victim = machine_of(pid)
    lost = [each for each in before.values() if machine_of(each) == victim]
    with load(platform):
        killed_at = time.monotonic()
        os.kill(platform.cluster.raylet(victim), signal.SIGKILL)
        until(lambda: not any(map(is_alive, lost)))
        died = time.monotonic() - killed_at
        until(lambda: platform.ready() == 2 and not set(lost) & set(platform.pids().values()))
        took = time.monotonic() - killed_at
    logger.info("its nodes died after %.1f s, elsewhere after %.1f s", died, took)
    assert name in platform.pids()
    platform.machine_there(victim)


def test_of_a_name_whose_raylet_is_frozen_never_two_are_routed_to(platform: RayPlatform) -> None:
    before = platform.scale(2)
    name, pid = min(before.items())
    victim = machine_of(pid)
    frozen = platform.cluster.raylet(victim)
    held = platform.member(name)
    with load(platform) as answers:
        os.kill(frozen, signal.SIGSTOP)
        frozen_at = time.monotonic()
        until(lambda: platform.member(name).pid != pid)
        took = time.monotonic() - frozen_at
        successor = platform.member(name)
        both_run = is_alive(pid)
        assert successor.incarnation > held.incarnation
        time.sleep(NOTICE_SECONDS)
        num_answers, num_streams = len(answers), platform.streams(victim, name)
        until(lambda: len(answers) > num_answers + 20)
        assert platform.streams(victim, name) == num_streams, "it is sent none any more"
        os.kill(frozen, signal.SIGCONT)
        until(lambda: not is_alive(pid))
        until(lambda: platform.ready() == 2)
    logger.info("replaced after %.1f s; the one before ran on: %s", took, both_run)
    assert platform.member(name).pid == successor.pid
    platform.machine_there(victim)


def test_while_the_head_is_away_serving_is_unchanged(platform: RayPlatform) -> None:
    before = platform.scale(2)
    drivers = set[int]()
    with load(platform):
        start = platform.cluster.kill_head()
        until_at = time.monotonic() + AWAY_SECONDS + 10
        while time.monotonic() < until_at:
            drivers |= {*platform.drivers()}
            assert platform.pids() == before
            assert all(map(is_alive, before.values()))
            time.sleep(0.5)
        start()
        grown = platform.scale(3)
    logger.info("drivers meanwhile: %d", len(drivers))
    assert before.items() < grown.items(), "the new head knows what ran"
    platform.scale(1)
