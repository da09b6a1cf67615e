"""`skerry host`: machines that offer slots, over which the control plane places nodes."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.command import MODEL, new_home, until
from tests.e2e.control.test_join import ASKED, Platform, Process

from skerry_regions.models.model_files import ModelFiles
from skerry_regions.process.launch_folder import LaunchFolder

pytestmark = pytest.mark.model

POOL = {"region": "fra", "role": "hybrid", "model": MODEL, "runner": "toy", "threads": 1,
        "launcher": "machines", "file_tier": "none", "kv_blocks": 256}  # fmt: skip


class HostedPlatform(Platform):
    """A control plane with an edge and a pool on hosts."""

    def host(self, name: str, *arguments: str) -> Process:
        """A host with a home of its own, which is known by its name."""
        (self.folder / name).mkdir()
        skerry = new_home(self.folder / name, self.model)
        token = self.token("--region", "fra", "--role", "host")
        host = self._run(
            skerry, "host", "host", "--join", self.url, "--token", token, "--cpus", "4",
            "--memory", "8G", "--gpus", "none", *arguments,
        )  # fmt: skip
        return host

    def close(self) -> None:
        """The control plane first: it owns what runs on hosts, and ends it."""
        self.control.end()
        for process in self._processes:
            process.end(signal.SIGKILL)
        super().close()

    def ready(self) -> int:
        status = self.client.get("pools/fra-many")["status"]
        return status["ready_replicas"] if status["phase"] == "ready" else -1


def nodes_of(host: Process) -> dict[str, int]:
    """Nodes that run on a host, with their pids."""
    return {r.id: pid for r, pid in LaunchFolder.of_control(host.skerry.home).running()}


@contextmanager
def hosted_platform(folder: Path, model: ModelFiles) -> Generator[HostedPlatform]:
    platform = HostedPlatform(folder, model)
    try:
        platform.start()
        platform.client.make("regions", name="fra", iata="FRA")
        platform.client.make("pools", name="many", replicas=1, **POOL)
        platform.client.make("edge_nodes", name="edge", region="fra")
        yield platform
    finally:
        platform.close()


@pytest.fixture
def platform(
    tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles
) -> Iterator[HostedPlatform]:
    with hosted_platform(tmp_path_factory.mktemp("hosts"), default_model) as platform:
        yield platform


@pytest.mark.slow
def test_a_host_that_leaves_hands_its_nodes_on(platform: HostedPlatform) -> None:
    hosts = [platform.host(name) for name in ("one", "other")]
    for host in hosts:
        host.says(r"The host fra-host-[0-9a-f]{8} is ready: it offers 4 CPUs, 8\.0 GiB and 0 GPUs")
    until(lambda: platform.ready() == 1)
    one, other = sorted(hosts, key=lambda each: -len(nodes_of(each)))
    [before] = nodes_of(one)
    with platform.ai() as ai:
        answer = ai.run(MODEL, ASKED)["response"]
        assert "Stopped." in one.end()
        assert (one.process.returncode, nodes_of(one)) == (0, {})
        assert ai.run(MODEL, ASKED)["response"] == answer
    [after] = nodes_of(other)
    assert {before, after} == {"fra-many-0", "fra-many-1"}
    assert platform.client.nodes()[after]["address"].startswith("tcp:127.0.0.1:")
