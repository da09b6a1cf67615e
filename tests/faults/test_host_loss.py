"""Machines are killed and frozen under load: what ran there runs elsewhere, and nobody notices."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
from tests.e2e.command import MODEL, SECONDS, until
from tests.e2e.control.test_hosts import HostedPlatform, hosted_platform, nodes_of
from tests.e2e.control.test_join import ASKED, Process

from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow]

logger = logging.getLogger(__name__)

ELSEWHERE_SECONDS = 15.0  # in which a machine's nodes run on others
REVOKED_SECONDS = 2.0  # in which a revoked machine's end


def signal_machine(host: Process, number: signal.Signals) -> None:
    """Send all of a machine a signal: the host first, which must not see what happens."""
    pids = nodes_of(host).values()
    host.process.send_signal(number)
    for pid in pids:
        os.kill(pid, number)


@contextmanager
def load(platform: HostedPlatform) -> Generator[list[str]]:
    """Ask all the time; each answer is that of an undisturbed platform."""
    answers, failures, over = list[str](), list[str](), threading.Event()
    with platform.ai() as ai:
        undisturbed: str = ai.run(MODEL, ASKED)["response"]

        def ask() -> None:
            while not over.is_set():
                try:
                    answers.append(ai.run(MODEL, ASKED)["response"])
                except Exception as error:
                    failures.append(str(error))

        asking = [threading.Thread(target=ask) for _ in range(4)]
        for thread in asking:
            thread.start()
        try:
            yield answers
            until(lambda: len(answers) > 100)
        finally:
            over.set()
            for thread in asking:
                thread.join()
    logger.info("%d answers", len(answers))
    assert (failures, set(answers)) == ([], {undisturbed})


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles
) -> Iterator[HostedPlatform]:
    with hosted_platform(tmp_path_factory.mktemp("hosts"), default_model) as platform:
        yield platform


@pytest.fixture(scope="module")
def hosts(platform: HostedPlatform) -> list[Process]:
    hosts = [platform.host(name) for name in ("one", "two", "three")]
    until(lambda: platform.ready() == 1)
    return hosts


def scale(platform: HostedPlatform, replicas: int) -> None:
    platform.client.patch("pools/fra-many", replicas=replicas)
    until(lambda: platform.ready() == replicas)


def names(hosts: list[Process]) -> list[str]:
    return sorted(name for host in hosts for name in nodes_of(host))


@pytest.mark.timeout(300)
def test_a_pool_grows_and_shrinks_over_machines(
    platform: HostedPlatform, hosts: list[Process]
) -> None:
    with load(platform):
        scale(platform, 4)
        assert sorted(len(nodes_of(host)) for host in hosts) == [1, 1, 2]
        scale(platform, 1)
        until(lambda: len(names(hosts)) == 1)


@pytest.mark.timeout(300)
def test_a_frozen_machine_is_replaced_and_no_name_is_there_twice(
    platform: HostedPlatform, hosts: list[Process]
) -> None:
    scale(platform, 3)
    victim, *others = hosts
    [name] = nodes_of(victim)
    with load(platform):
        signal_machine(victim, signal.SIGSTOP)
        frozen_at = time.monotonic()
        until(lambda: name in names(others) and platform.ready() == 3)
        took = time.monotonic() - frozen_at
        address = platform.client.nodes()[name]["address"]
        signal_machine(victim, signal.SIGCONT)
        until(lambda: not nodes_of(victim))
        assert platform.client.nodes()[name]["address"] == address
    logger.info("elsewhere after %.1f s", took)
    assert took < ELSEWHERE_SECONDS
    assert len(names(hosts)) == len({*names(hosts)}) == 3


@pytest.mark.timeout(300)
def test_a_control_plane_that_is_killed_starts_nothing_twice(
    platform: HostedPlatform, hosts: list[Process]
) -> None:
    before = [nodes_of(host) for host in hosts]
    with load(platform):
        platform.control.end(signal.SIGKILL)
        platform.start(port=platform.url.rpartition(":")[2])
        until(lambda: platform.ready() == 3)
    assert [nodes_of(host) for host in hosts] == before


@pytest.mark.timeout(300)
def test_a_host_that_is_killed_alone_finds_its_nodes_again(
    platform: HostedPlatform, hosts: list[Process]
) -> None:
    host = next(each for each in hosts if nodes_of(each))
    before = nodes_of(host)
    with load(platform):
        host.end(signal.SIGKILL)
        host.start()
        host.says("is ready: it offers")
        until(lambda: platform.ready() == 3)
    assert nodes_of(host) == before


@pytest.mark.timeout(300)
def test_an_autoscaled_pool_sleeps_and_wakes_on_hosts(
    platform: HostedPlatform, hosts: list[Process]
) -> None:
    auto = {"replicas": None, "min_replicas": 0, "max_replicas": 3, "idle_seconds": 1.0}
    platform.client.patch("pools/fra-many", **auto)
    until(lambda: names(hosts) == [])
    with platform.ai() as ai:
        assert ai.run(MODEL, ASKED)["usage"]["completion_tokens"] > 0, "it waited for a node"
    platform.client.patch("pools/fra-many", replicas=3, min_replicas=None, max_replicas=None)
    until(lambda: platform.ready() == 3)


@pytest.mark.timeout(300)
def test_a_killed_machine_is_replaced_within_seconds(
    platform: HostedPlatform, hosts: list[Process]
) -> None:
    scale(platform, 3)
    victim = max(hosts, key=lambda each: len(nodes_of(each)))
    others = [host for host in hosts if host is not victim]
    with load(platform):
        signal_machine(victim, signal.SIGKILL)
        killed_at = time.monotonic()
        until(lambda: len(names(others)) == 3 == platform.ready())
        took = time.monotonic() - killed_at
    logger.info("elsewhere after %.1f s", took)
    assert took < ELSEWHERE_SECONDS


@pytest.mark.timeout(300)
def test_a_revoked_machine_ends_its_nodes(platform: HostedPlatform, hosts: list[Process]) -> None:
    victim = platform.host("revoked")
    id = victim.says(r"The host (fra-host-[0-9a-f]{8}) is ready")[1]
    scale(platform, 4)
    until(lambda: nodes_of(victim))
    listed = platform.skerry("control", "machine", "list").stdout
    assert re.search(rf"{id} .* 1/4 +0\.0/8\.0 +0/0 +1 +joined\n", listed), listed
    with load(platform):
        platform.client.http.delete(f"/machines/{id}").raise_for_status()
        revoked_at = time.monotonic()
        until(lambda: not nodes_of(victim))
        took = time.monotonic() - revoked_at
        until(lambda: platform.ready() == 4)
    victim.process.wait(SECONDS)
    assert (victim.process.returncode, id in victim.end()) == (0, True)
    logger.info("ended after %.1f s", took)
    assert took < REVOKED_SECONDS
    assert len(names(hosts)) == 4
