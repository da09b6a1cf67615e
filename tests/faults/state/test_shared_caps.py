"""Edges of three machines spend one cap to its end while what keeps it fails.

SKERRY_CAP_SECONDS=600 makes the run with killed leaders last that long, the others a quarter of it;
the figures are logged (`--log-cli-level=INFO`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from asyncio.subprocess import Process
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.disks import CuttableDisk
from tests.faults.state.spender import CLIENTS, LEAST, MOST, THINK_SECONDS, TOKEN
from tests.regions.drivers.nats_server import NatsCluster

from skerry_edge.money.purse import record_of
from skerry_edge.money.spending import periods_at
from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.specs import key_of
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.tables import MONEY
from skerry_regions.zones import GLOBAL

pytestmark = pytest.mark.slow

EDGES = 3
SECONDS = float(os.environ.get("SKERRY_CAP_SECONDS", "60"))  # that the longest run's cap lasts
PER_SECOND = EDGES * CLIENTS / THINK_SECONDS * (MOST + LEAST) / 2  # nano-dollars
SQLITE_CAP = int(5 * PER_SECOND / EDGES)  # for one edge alone
AWAY_SECONDS = 8.0  # that a server is not there
FREE_REQUESTS = 20  # of the largest size: while so much is free none is refused
DISK_BYTES = 64 << 20  # of a server
ROOT = Path(__file__).parents[3]
FOLDERS = ("edge", "core", "regions", "sdk", ".")

logger = logging.getLogger(__name__)


@dataclass
class CapRun:
    """A cap that edges spend, each a process of its own."""

    cluster: NatsCluster
    stream: KeyedStream
    seconds: float  # that the cap lasts, about
    processes: list[Process] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)  # of those that were not killed
    last_fault_at: float = 0.0  # monotonic
    began: float = field(default_factory=time.monotonic)

    @property
    def cap(self) -> int:
        return int(self.seconds * PER_SECOND)

    @property
    def paid(self) -> int:
        return sum(report["paid"] for report in self.reports)

    @property
    def refused_at(self) -> list[float]:
        return sorted(at for report in self.reports for at in report["refused_at"])

    def most(self, name: str) -> float:
        """The largest of a figure."""
        return float(max(report[name] for report in self.reports))

    def sum(self, name: str) -> int:
        return int(sum(report[name] for report in self.reports))

    def most_free_when_refused(self) -> float:
        """Requests of the largest size that were free then: neither spent nor set aside."""
        return (
            max(
                self.cap - sum(committed_at(report["committed"], at) for report in self.reports)
                for at in self.refused_at
            )
            / MOST
        )

    def struck(self, what: str) -> None:
        self.last_fault_at = time.monotonic()
        logger.info("%s after %.1f s", what, self.last_fault_at - self.began)

    async def recorded(self) -> set[int]:
        """What the record has as spent: of this day, and of the one that the run began on."""
        record, _ = record_of(await self.stream.last(key_of(TOKEN)))
        ago = time.time() - (time.monotonic() - self.began)
        return {record.used(periods_at(at)[0].name) for at in (ago, time.time())}


Fault = Callable[[CapRun], Awaitable[None]]


def run_to_the_end(cluster: NatsCluster, seconds: float, fault: Fault, check: Fault) -> None:
    """Have a cap spent to its end while a fault strikes, and check what came of it."""

    async def spent(jetstream: JetStream) -> None:
        while jetstream.problem:  # noqa: ASYNC110  (a cluster's first seconds)
            await asyncio.sleep(0.1)
        run = CapRun(cluster, KeyedStream(jetstream, MONEY, GLOBAL), seconds)
        run.processes = [
            await spender(f"edge-{i}", cluster.url, run.cap, EDGES) for i in range(EDGES)
        ]
        reports = [asyncio.create_task(each.communicate()) for each in run.processes]
        await fault(run)
        run.reports = [json.loads(told) for told, _ in await asyncio.gather(*reports) if told]
        logger.info("left %.4f %%", 100 * (run.cap - run.paid) / run.cap)
        assert run.refused_at[0] > run.last_fault_at, "it was spent too fast to be struck"
        await check(run)

    async def run() -> None:
        jetstream = JetStream(cluster.state)
        await jetstream.open((MONEY, GLOBAL))
        try:
            await spent(jetstream)
        finally:  # else a test that fails has the next one fail, too, for its connection
            await jetstream.close()

    try:
        asyncio.run(run())
    finally:
        cluster.stop()


async def is_spent(run: CapRun) -> None:
    """Nobody spent more, and none was refused while money was there."""
    assert 0.995 * run.cap <= run.paid <= run.cap
    assert run.most_free_when_refused() < FREE_REQUESTS
    assert run.paid in await run.recorded(), "what is paid is what the record says"


def test_a_cap_is_spent_to_its_end_and_never_exceeded(tmp_path: Path) -> None:
    """While the leader of its stream is killed, twice; and no slower than with SQLite."""

    async def kill_leaders(run: CapRun) -> None:
        for part in (0.15, 0.25):
            await asyncio.sleep(part * run.seconds)
            leader = await run.cluster.leader(run.stream.name)
            run.cluster.kill(leader)
            run.struck(f"killed {leader}")
            asyncio.get_running_loop().call_later(AWAY_SECONDS, run.cluster.start, leader)

    async def check(run: CapRun) -> None:
        alone = await spender("sqlite", str(tmp_path / "spending.db"), SQLITE_CAP, 1)
        sqlite = json.loads((await alone.communicate())[0])
        figures = {
            "seconds": run.refused_at[-1] - run.began,
            "requests": run.sum("requests"),
            "left_percent": 100 * (run.cap - run.paid) / run.cap,
            "refused": len(run.refused_at),
            "most_free_when_refused": run.most_free_when_refused(),
            "unavailable": run.sum("unavailable"),
            **{name: run.most(name) for name in ("p50_ms", "p99_ms", "max_ms")},
            "sqlite_p50_ms": sqlite["p50_ms"],
        }
        logger.info("%s", json.dumps(figures))
        await is_spent(run)
        assert figures["unavailable"] <= 0.01 * figures["requests"]
        assert figures["p50_ms"] <= figures["sqlite_p50_ms"]

    run_to_the_end(NatsCluster(tmp_path / "nats"), SECONDS, kill_leaders, check)


def test_what_was_not_synced_is_lost_when_the_power_is_cut(tmp_path: Path) -> None:
    """Or the next test would show nothing."""
    disk = CuttableDisk(tmp_path / "disk", DISK_BYTES)
    try:
        with (disk.folder / "file").open("wb", buffering=0) as file:
            file.write(b"synced")
            os.fsync(file)
            file.write(b", and more")
            disk.cut()
        disk.back()
        assert (disk.folder / "file").read_bytes() == b"synced"
    finally:
        disk.close()


def test_a_power_cut_at_all_servers_gives_no_money_back(tmp_path: Path) -> None:
    """Each loses what it has not synced, all at once."""
    (tmp_path / "disks").mkdir()
    names = [f"n{number}" for number in range(1, 4)]
    disks = [CuttableDisk(tmp_path / "disks" / name, DISK_BYTES) for name in names]

    async def cut(run: CapRun) -> None:
        await asyncio.sleep(0.4 * run.seconds)
        for disk in disks:
            disk.cut()
        for name, disk in zip(run.cluster.names, disks, strict=True):
            run.cluster.kill(name)
            disk.back()
            run.cluster.start(name)
        run.struck("cut the power")

    try:
        cluster = NatsCluster(tmp_path / "nats", stores=tmp_path / "disks")
        run_to_the_end(cluster, SECONDS / 4, cut, is_spent)
    finally:
        for disk in disks:
            disk.close()


def test_a_store_that_forgot_all_is_told_again(tmp_path: Path) -> None:
    async def forget(run: CapRun) -> None:
        await asyncio.sleep(0.4 * run.seconds)
        for name in run.cluster.names:
            run.cluster.kill(name)
        for name in run.cluster.names:
            run.cluster.forget(name)
            run.cluster.start(name)
        run.struck("lost all that was stored")

    run_to_the_end(NatsCluster(tmp_path / "nats"), SECONDS / 4, forget, is_spent)


def test_an_edge_that_dies_keeps_its_part_and_the_others_spend_the_rest(tmp_path: Path) -> None:
    async def kill_edge(run: CapRun) -> None:
        await asyncio.sleep(0.4 * run.seconds)
        run.processes[0].kill()
        run.struck("killed an edge")

    async def check(run: CapRun) -> None:
        assert len(run.reports) == EDGES - 1
        [used] = await run.recorded()
        assert used <= run.cap
        left = used - run.paid
        logger.info("the dead edge has %.1f %%", 100 * left / run.cap)
        assert 0 < left < run.cap / 2
        assert run.paid >= 0.995 * (run.cap - left)

    run_to_the_end(NatsCluster(tmp_path / "nats"), SECONDS / 4, kill_edge, check)


def committed_at(changes: list[tuple[float, int]], at: float) -> int:
    """Nano-dollars that an edge's requests had spent, or set aside, at a time."""
    number = bisect_right(changes, at, key=lambda change: change[0])
    assert number > 0, "what an edge has kept of it goes back far enough"
    return changes[number - 1][1]


async def spender(edge: str, state: str, cap: int, edges: int) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faults.state.spender", state, edge, str(cap), str(edges),
        stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in FOLDERS)},
    )  # fmt: skip
