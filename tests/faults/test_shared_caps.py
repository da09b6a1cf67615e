"""Edges of three machines spend one cap to its end while leaders of its stream are killed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.faults.spender import TOKEN
from tests.regions.drivers.nats_server import NatsCluster

from skerry_edge.money.purse import record_of
from skerry_edge.money.spending import periods_at
from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.specs import key_of
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.tables import MONEY
from skerry_regions.zones import GLOBAL

pytestmark = pytest.mark.slow

CAP = 300_000_000  # nano-dollars: about 14,000 requests
EDGES = 3
KILLS_AFTER = (8.0, 14.0)  # seconds
AWAY_SECONDS = 8.0  # that a server is not there
ROOT = Path(__file__).parents[2]
FOLDERS = ("edge", "core", "regions", "sdk", ".")

logger = logging.getLogger(__name__)


def test_a_cap_is_spent_to_its_end_and_never_exceeded(tmp_path: Path) -> None:
    cluster = NatsCluster(tmp_path)
    try:
        asyncio.run(show(cluster))
    finally:
        cluster.stop()


async def show(cluster: NatsCluster) -> None:
    jetstream = JetStream(cluster.state)
    await jetstream.open((MONEY, GLOBAL))
    while jetstream.problem:  # noqa: ASYNC110  (a cluster's first seconds)
        await asyncio.sleep(0.1)
    stream = KeyedStream(jetstream, MONEY, GLOBAL)
    days = {today()}
    running = [asyncio.create_task(spent_by(f"edge-{i}", cluster)) for i in range(EDGES)]
    for after in KILLS_AFTER:
        await asyncio.sleep(after)
        leader = await cluster.leader(stream.name)
        cluster.kill(leader)
        logger.info("killed %s", leader)
        asyncio.get_running_loop().call_later(AWAY_SECONDS, cluster.start, leader)
    reports = await asyncio.gather(*running)
    paid = sum(report["paid"] for report in reports)
    logger.info("left %.4f %%; %s", 100 * (CAP - paid) / CAP, reports)
    assert 0.995 * CAP <= paid <= CAP
    unavailable = sum(report["unavailable"] for report in reports)
    assert unavailable <= 0.01 * sum(report["requests"] for report in reports)
    assert min(report["refused_after"] for report in reports) > sum(KILLS_AFTER)
    record, _ = record_of(await stream.last(key_of(TOKEN)))
    days.add(today())
    assert paid in {record.used(day) for day in days}, "what is paid is what the record says"
    await jetstream.close()


def today() -> str:
    return periods_at(time.time())[0].name


async def spent_by(edge: str, cluster: NatsCluster) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faults.spender", cluster.url, edge, str(CAP), str(EDGES),
        stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in FOLDERS)},
    )  # fmt: skip
    told, _ = await process.communicate()
    report: dict[str, Any] = json.loads(told)
    return report
