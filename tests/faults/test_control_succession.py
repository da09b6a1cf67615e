"""Control planes over one log: one is killed, one is frozen, and what is wanted is wanted once."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.command import until
from tests.faults.control_planes import ControlPlanes
from tests.regions.drivers.nats_server import NatsCluster

pytestmark = pytest.mark.slow
FRA, IAD = {"name": "fra", "iata": "FRA"}, {"name": "iad", "iata": "IAD"}
logger = logging.getLogger(__name__)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path / "nats")
    yield cluster
    cluster.stop()


@pytest.fixture
def planes(tmp_path: Path, cluster: NatsCluster) -> Iterator[ControlPlanes]:
    planes = ControlPlanes(tmp_path, cluster)
    planes.start()
    yield planes
    planes.stop()


def test_a_successor_leads_within_five_seconds(planes: ControlPlanes) -> None:
    first, second = planes.all
    made = first.call("POST", "/regions", FRA)
    assert made.status_code == 201, made.text
    until(lambda: first.url in second.call("GET", "/regions").text)
    refused = second.call("POST", "/regions", IAD)
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert f"{first.url} leads" in refused.json()["error"]["message"]
    until(lambda: second.metric("skerry_control_revision") == 1)
    assert second.call("GET", "/history").json() == first.call("GET", "/history").json()
    assert second.call("GET", "/regions/fra").status_code == 503
    assert [each.metric("skerry_control_term") for each in planes.all] == [1, 0]

    killed = time.monotonic()
    first.signal(signal.SIGKILL)
    assert planes.leader() is second
    seconds = time.monotonic() - killed
    logger.info("a successor after %.1f s", seconds)
    assert seconds < 5
    found = second.call("GET", "/regions/fra").json()
    assert found["meta"] == made.json()["meta"]
    assert second.metric("skerry_control_term") == 2
    first.start()
    until(lambda: first.metric("skerry_control_log_sequence") >= 3)
    assert first.metric("skerry_control_leader") == 0


def test_who_was_frozen_writes_nothing(planes: ControlPlanes) -> None:
    first, second = planes.all
    assert first.call("POST", "/regions", FRA).status_code == 201
    first.signal(signal.SIGSTOP)
    frozen = time.monotonic()
    with ThreadPoolExecutor() as pool:
        late = pool.submit(first.call, "POST", "/regions", {"name": "late", "iata": "GRU"})
        assert planes.leader(but=first) is second
        assert second.call("POST", "/regions", IAD).status_code == 201
        time.sleep(max(0.0, 6 - (time.monotonic() - frozen)))
        first.signal(signal.SIGCONT)
        assert late.result().status_code == 503, late.result().text
    names = [each["name"] for each in second.call("GET", "/regions").json()["items"]]
    assert names == ["fra", "iad"]
    until(lambda: first.metric("skerry_control_revision") == 2)
    assert [each.metric("skerry_control_leader") for each in planes.all] == [0, 1]
    assert [each.metric("skerry_control_term") for each in planes.all] == [0, 2]
    history = [each.call("GET", "/history").json() for each in planes.all]
    assert history[0] == history[1]


def test_who_ends_leaves_the_lead_at_once_and_a_copy_is_put_back_for_all(
    planes: ControlPlanes, tmp_path: Path
) -> None:
    first, second = planes.all
    assert first.call("POST", "/regions", FRA).status_code == 201
    copied = first.skerry("control", "backup", str(tmp_path / "copy.db"))
    assert copied.returncode == 0, copied.stderr
    assert first.call("POST", "/regions", IAD).status_code == 201
    first.signal(signal.SIGTERM)
    ended = time.monotonic()
    assert first.process.wait(60) == 0
    assert planes.leader() is second
    logger.info("a successor %.1f s after SIGTERM", time.monotonic() - ended)
    restored = second.skerry("control", "restore", str(tmp_path / "copy.db"))
    assert restored.returncode == 0, restored.stderr
    until(lambda: second.metric("skerry_control_revision") == 1)
    until(lambda: second.call("GET", "/regions/fra").status_code == 200)
    assert second.call("GET", "/regions/iad").status_code == 404
    assert second.metric("skerry_control_term") == 4, "the command's own was the third"
    first.start()
