"""Edges of three machines keep one rate while demand moves between them and a leader is killed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.faults.state.test_shared_caps import FOLDERS, ROOT
from tests.regions.drivers.nats_server import NatsCluster

from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.tables import RATES
from skerry_regions.zones import GLOBAL

pytestmark = pytest.mark.slow

RATE = 6_000_000.0  # tokens a minute; the clients want about 20 million
EDGES = 3
SECONDS = 45.0
KILL_AFTER, AWAY_SECONDS = 20.0, 8.0

logger = logging.getLogger(__name__)


def test_a_rate_of_three_edges_is_kept_as_by_one_bucket(tmp_path: Path) -> None:
    cluster = NatsCluster(tmp_path)
    try:
        reports = asyncio.run(show(cluster))
    finally:
        cluster.stop()
    events = sorted((at, amount) for report in reports for at, amount in report.pop("taken"))
    level = lowest = RATE  # of one bucket that begins full
    before, total = events[0][0], 0
    for at, amount in events:
        level = min(RATE, level + (at - before) * RATE / 60) - amount
        before, lowest, total = at, min(lowest, level), total + amount
    span = events[-1][0] - events[0][0]
    bound = min(RATE * (1 + span / 60), sum(report["asked"] for report in reports))
    logger.info("lowest level %.0f, used %.1f %%; %s", lowest, 100 * total / bound, reports)
    assert lowest >= 0
    assert total >= 0.7 * bound


async def show(cluster: NatsCluster) -> list[dict[str, Any]]:
    jetstream = JetStream(cluster.state)
    await jetstream.open((RATES, GLOBAL))
    while jetstream.problem:  # noqa: ASYNC110  (a cluster's first seconds)
        await asyncio.sleep(0.1)
    running = [asyncio.create_task(taken_by(number, cluster)) for number in range(EDGES)]
    await asyncio.sleep(KILL_AFTER)
    leader = await cluster.leader(KeyedStream(jetstream, RATES, GLOBAL).name)
    cluster.kill(leader)
    asyncio.get_running_loop().call_later(AWAY_SECONDS, cluster.start, leader)
    reports = await asyncio.gather(*running)
    await jetstream.close()
    return reports


async def taken_by(number: int, cluster: NatsCluster) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faults.state.rate_taker", cluster.url, str(number), str(EDGES),
        str(RATE), str(SECONDS), stdout=asyncio.subprocess.PIPE, cwd=ROOT, limit=1 << 26,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in FOLDERS)},
    )  # fmt: skip
    told, _ = await process.communicate()
    report: dict[str, Any] = json.loads(told)
    return report
