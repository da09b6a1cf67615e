"""The control plane is killed again and again under load: nobody notices, and all is adopted."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

import pytest
from tests.e2e.command import Skerry, until
from tests.faults.test_supervisor_loss import (
    NUM_KILLS,
    NUM_STREAMS,
    TOPOLOGY,
    Supervisor,
    kill_under_load,
)

from skerry_regions.process.launch_folder import LaunchFolder

pytestmark = [pytest.mark.model, pytest.mark.slow]

logger = logging.getLogger(__name__)

FILE = TOPOLOGY.partition("emulate")[0]
NAMES = ["edge-fra-0", "edge-iad-0", "fra-decode-0", "fra-prefill-0", "iad-hybrid-0"]


def view(skerry: Skerry) -> dict[str, Any]:
    """What the control plane says; nothing while it does not."""
    found: dict[str, Any] = skerry.status().get("control", {"nodes": []})
    return found


def ready(skerry: Skerry) -> bool:
    nodes = view(skerry)["nodes"]
    return len(nodes) == 5 and all(node["state"] == "ready" for node in nodes)


def pids(skerry: Skerry) -> dict[str, int]:
    return {r.id: pid for r, pid in LaunchFolder.of_control(skerry.home).running()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_of_the_control_plane_fails_no_request(skerry: Skerry, seed: int) -> None:
    control = Supervisor(skerry, "control", "--port", "0", text=FILE)
    try:
        until(lambda: ready(skerry))
        before = pids(skerry)
        assert sorted(before) == NAMES
        urls = [each["status"]["url"] for each in view(skerry)["edge_nodes"]]
        revision = view(skerry)["revision"]
        load = asyncio.run(kill_under_load(skerry, control, urls, Random(seed)))
        logger.info("%d answers over %d kills", load.num_answers, NUM_KILLS)
        assert load.failed == []
        assert load.num_answers > NUM_STREAMS
        until(lambda: ready(skerry))
        assert pids(skerry) == before
        assert {node["id"]: node["pid"] for node in view(skerry)["nodes"]} == before
        assert all(node["updated"] for node in view(skerry)["nodes"])
        assert view(skerry)["revision"] == revision
    finally:
        control.end()
