"""The leader of several control planes is killed in the middle of an apply: it ends well."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command import until
from tests.faults.control_planes import ControlPlanes
from tests.infra.terraform.command import SECONDS, Terraform, attached, provider_block
from tests.regions.drivers.nats_server import NatsCluster

from skerry_terraform.provider.provider import SKERRY

pytestmark = pytest.mark.slow

REGIONS, POOLS = 8, 4  # of each: 40 resources
CONFIGURATION = f"""
resource "skerry_region" "r" {{
  count = {REGIONS}
  name  = "r${{count.index}}"
  iata  = "FRA"
}}
resource "skerry_pool" "p" {{
  count  = {REGIONS * POOLS}
  name   = "p${{floor(count.index / {REGIONS})}}"
  region = skerry_region.r[count.index % {REGIONS}].name
  role   = "hybrid"
}}
"""
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


@pytest.fixture
def terraform(tmp_path: Path, planes: ControlPlanes) -> Iterator[Terraform]:
    config = json.loads((planes.all[0].skerry.home / "config.json").read_text())
    block = provider_block(planes.urls, config["api_token"])
    with attached(tmp_path / "work", SKERRY, block) as terraform:
        yield terraform


@pytest.mark.timeout(600)
@pytest.mark.parametrize("loses_server", [False, True])
def test_an_apply_goes_on_with_the_successor(
    planes: ControlPlanes, cluster: NatsCluster, terraform: Terraform, loses_server: bool
) -> None:
    first, second = planes.all
    terraform.write(CONFIGURATION)
    applying = terraform.start("apply", "-auto-approve", "-parallelism=2")
    until(lambda: first.metric("skerry_control_revision") >= 8)
    if loses_server:
        cluster.kill(asyncio.run(cluster.leader("skerry-control-global")))
    first.signal(signal.SIGKILL)
    killed = time.monotonic()
    assert planes.leader() is second
    seconds = time.monotonic() - killed
    wanted = second.metric("skerry_control_revision")
    assert 8 <= wanted < 40, "in the middle of it"
    said, _ = applying.communicate(timeout=SECONDS)
    assert applying.returncode == 0, said
    logger.info(
        "a successor after %.1f s, at revision %d; applied after %.1f s", seconds, wanted,
        time.monotonic() - killed,
    )  # fmt: skip
    assert seconds < (10 if loses_server else 5)
    assert f"Apply complete! Resources: {REGIONS * (1 + POOLS)} added, 0 changed" in said
    assert terraform.is_settled(), "the second plan is empty"
    history = second.call("GET", "/history?limit=100").json()["items"]
    made = [change["id"] for each in history for change in each["changes"]]
    assert len(made) == len(set(made)) == REGIONS * (1 + POOLS), "each was made once"
    first.start()
    until(lambda: first.metric("skerry_control_revision") == len(made))
