"""The launcher `ray`, at the control plane: a driver for each cluster, and orders and reports."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import msgspec

from skerry_regions.control.planning.launcher import (
    Ended,
    Launch,
    LaunchFailed,
    NodeSettings,
    Observation,
    RunningProcess,
)
from skerry_regions.control.reconcile.ray.cluster_picture import ClusterPicture
from skerry_regions.control.reconcile.ray.ray_messages import (
    MAX_LINE,
    VERSION,
    RayOrders,
    RayReport,
)
from skerry_regions.node.announcer import new_incarnation
from skerry_regions.process.backoff import Backoff, RestartPolicy
from skerry_regions.process.cancellation import cancel_tasks
from skerry_regions.process.children import ProcessSpec, signal_child, start_child
from skerry_regions.process.local_launcher import Deposed
from skerry_regions.process.pauses import until_set
from skerry_regions.registry import Member

DRIVER = (sys.executable, "-m", "skerry_regions.control.reconcile.ray.driver")
REPORT_SECONDS = 0.25  # between two reports …
ORDER_SECONDS = 0.05  # … while orders have not been followed …
AWAY_SECONDS = 2.0  # … and while the cluster is away
CONNECT_SECONDS = 60.0  # in which a driver reports for the first time …
ANSWER_SECONDS = 10.0  # … and from then on
FIRST_SECONDS = 10.0  # that clusters have to report for the first time
RESTARTS = RestartPolicy(first=0.5, most=10.0)  # of a driver

logger = logging.getLogger(__name__)


class RayLauncher:
    """See `Launcher`. Lives on one event loop; one driver for each region with a cluster."""

    def __init__(
        self,
        clusters: Mapping[str, str],
        home: Path,
        members: Callable[[], Iterable[Member]],
        changed: Callable[[], None],
        *,
        term: int,
        environ: Mapping[str, str] = os.environ,
        driver: Sequence[str] = DRIVER,
    ) -> None:
        """`clusters` are addresses of heads, by region. `changed` is called when a report says that
        something has ended, or is there."""
        self._clusters = {region: ClusterPicture(region, term) for region in clusters}
        self._home = home
        self._environ = dict(environ) | {"RAY_USAGE_STATS_ENABLED": "0"}
        self._members = members
        self._changed = changed
        self._driver = driver
        self._highest: dict[str, int] = {}  # incarnation of each name
        self._wakes = {region: asyncio.Event() for region in clusters}
        self._reported = {region: asyncio.Event() for region in clusters}
        self._first_until = asyncio.get_running_loop().time() + FIRST_SECONDS
        self._tasks = [
            asyncio.create_task(self._follow(region, address), name=f"Ray of {region}")
            for region, address in clusters.items()
        ]

    async def list(self) -> Observation:
        with contextlib.suppress(TimeoutError):  # what is not known yet would seem gone
            async with asyncio.timeout_at(self._first_until):
                for reported in self._reported.values():
                    await reported.wait()
        members, now = {each.id: each for each in self._members()}, time.monotonic()
        running, ended = dict[str, RunningProcess](), list[Ended]()
        for cluster in self._clusters.values():
            running |= {each.id: each for each in cluster.running(members, now)}
            ended += cluster.ended
            cluster.ended = []
        return Observation(running, tuple(ended))

    async def start(self, launch: Launch) -> int:
        assert isinstance(launch.settings, NodeSettings)
        region = launch.settings.region
        cluster = self._clusters.get(region)
        if cluster is None:
            raise LaunchFailed(
                f"{region} has no Ray cluster: give `skerry control --ray {region}=HOST:PORT`"
            )
        self._fence(cluster)
        if cluster.away:
            raise LaunchFailed(f"the Ray cluster of {region} is away: {cluster.away}")
        if cluster.has(launch.id):
            return 0
        above = max(self._highest.get(launch.id, 0), cluster.incarnation(launch.id))
        incarnation = self._highest[launch.id] = new_incarnation(above=above)
        ordered = dataclasses.replace(launch, incarnation=incarnation, topology=b"")
        cluster.launches[launch.id] = ordered, time.monotonic()
        self._wakes[region].set()
        return 0

    async def drain(self, id: str, *, patiently: bool) -> None:
        for cluster in self._with(id):
            (cluster.drains if id in cluster.kept else cluster.stops).add(id)

    async def stop(self, id: str) -> None:
        for cluster in self._with(id):
            cluster.stops.add(id)

    async def close(self) -> None:
        """Let go of what runs; it goes on."""
        await cancel_tasks(*self._tasks)

    # --- drivers ---------------------------------------------------------------------------------

    async def _follow(self, region: str, address: str) -> None:
        """Keep a driver of this cluster, which Ray may abort at any time."""
        backoff, cluster = Backoff(RESTARTS, Random()), self._clusters[region]
        while True:
            began = time.monotonic()
            try:
                await self._drive(cluster, address)
            except (OSError, EOFError, ValueError, msgspec.DecodeError) as error:
                cluster.away = f"its driver ended: {str(error) or type(error).__name__}"
                logger.warning("Ray of %s: %s", region, cluster.away)
            await asyncio.sleep(backoff.failed(time.monotonic() - began))

    async def _drive(self, cluster: ClusterPicture, address: str) -> None:
        """Start a driver, and exchange orders and reports with it until it ends. Raises OSError,
        EOFError, ValueError or DecodeError."""
        id = f"ray-{cluster.region}"
        log = self._home / "logs" / f"{id}.log"
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [*self._driver, address, f"skerry-{cluster.region}"]
        ours, theirs = socket.socketpair()
        with theirs:
            spec = ProcessSpec(id=id, command=command, environ=self._environ, log=log)
            child = await start_child(spec, theirs.fileno())
        try:
            reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE)
            with contextlib.closing(writer):
                patience = CONNECT_SECONDS
                while True:
                    await self._exchange(cluster, reader, writer, patience)
                    patience = ANSWER_SECONDS
        finally:
            signal_child(child, signal.SIGKILL)
            await child.wait()

    async def _exchange(
        self,
        cluster: ClusterPicture,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        patience: float,
    ) -> None:
        wake, away, before = self._wakes[cluster.region], cluster.away, cluster.names
        wake.clear()
        writer.write(msgspec.json.encode(cluster.orders()) + b"\n")
        async with asyncio.timeout(patience):
            line = await reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError("its line was closed")
        report = msgspec.json.decode(line, type=RayReport)
        if report.version != VERSION:
            raise ValueError(f"it reports in version {report.version}, not {VERSION}")
        cluster.take(report, time.monotonic())
        if cluster.away != away:
            logger.warning("Ray of %s: %s", cluster.region, cluster.away or "it is there")
        self._reported[cluster.region].set()
        if cluster.ended or cluster.names != before:
            self._changed()
        is_idle = cluster.orders() == RayOrders(term=cluster.term)
        pause = REPORT_SECONDS if is_idle else ORDER_SECONDS
        await until_set(wake, AWAY_SECONDS if cluster.away else pause)

    def _with(self, id: str) -> Iterator[ClusterPicture]:
        """Yield the clusters that have a name, as something is to end. Raises Deposed."""
        for region, cluster in self._clusters.items():
            if cluster.has(id):
                self._fence(cluster)
                yield cluster
                cluster.launches.pop(id, None)
                self._wakes[region].set()

    def _fence(self, cluster: ClusterPicture) -> None:
        if cluster.deposed_by:
            raise Deposed(
                f"another has taken over the Ray cluster of {cluster.region} (its term is "
                f"{cluster.deposed_by}, ours {cluster.term})"
            )
