"""`skerry up --topology`: the nodes and edges of a YAML file, as supervised processes.

    up      models ─▶ ports ─▶ nodes, all at once ─▶ edges ─▶ ready
    again   what a supervisor that died has left ─▶ adopted; what is to be another is replaced
    reload  each edge in turn: its successor ready at the same port ─▶ it accepts no more ─▶ its
            last stream ends, and so does it
    down    ports closed ─▶ edges drain ─▶ nodes drain ─▶ sockets and records removed

The supervisor owns the edges' listening sockets: while an edge is restarted, connections wait in
the backlog instead of being refused.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterable

from skerry_cli.composition.fleet.dns_server import FleetDns
from skerry_cli.composition.fleet.processes import FleetProcesses
from skerry_cli.composition.fleet.status import (
    ask_nodes,
    node_status,
    registry_trouble,
    trouble,
    without_edge,
)
from skerry_cli.home.control import EdgeStatus, Status
from skerry_cli.home.parts import reached_url, sentence
from skerry_cli.report import StartReporter
from skerry_edge.limits import Limits
from skerry_regions.process.children import LaunchedChildren, ProcessSpec
from skerry_regions.process.local_launcher import LocalLauncher
from skerry_regions.process.spawning import HeldListener
from skerry_regions.process.succession import Succession
from skerry_regions.process.supervisor import Supervised
from skerry_regions.registry import Registry
from skerry_regions.topology.spec import EdgeSpec

EDGE_STOP_SECONDS = 35.0  # more than an edge gives its streams to finish
EDGE_RETIRE_SECONDS = Limits().request_seconds + 10.0  # longer than any stream
NODE_STOP_SECONDS = 15.0  # the edges are gone: none waits for what still runs

logger = logging.getLogger(__name__)


class Fleet:
    """All processes of a topology. Lives on one event loop."""

    def __init__(
        self,
        processes: FleetProcesses,
        listeners: dict[str, HeldListener],
        launcher: LocalLauncher,
        registry: Registry,
        reporter: StartReporter,
    ) -> None:
        """What the launcher runs already is adopted."""
        self._processes = processes
        self._topology = processes.topology
        self._listeners = listeners
        self._launcher = launcher
        self._registry = registry
        self._reporter = reporter
        self._adopts = bool(launcher.list())
        self._strangers: set[str] = set()  # names of processes that are no part of it, and drain
        self._relays: list[Supervised] = []
        self._nodes: dict[str, Supervised] = {}
        self._edges = Succession(self._supervise, EDGE_RETIRE_SECONDS)
        self._dns: FleetDns | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start nodes, then edges, when those are ready. What runs already is there at once.

        Raises FirstStartFailed, `StateError`.
        """
        processes = self._processes
        processes.write()
        relays, nodes, edges = [*processes.relays()], processes.nodes(), processes.edges()
        if self._adopts:
            self._retire_strangers([*relays, *nodes, *edges, *processes.dns()])
        self._relays = [self._supervise(spec) for spec in relays]
        if not self._adopts:
            await _all_ready(self._relays)
        self._nodes = {spec.id: self._supervise(spec) for spec in nodes}
        if not self._adopts:
            await _all_ready(self._nodes.values())
        self._edges.begin(edges)
        if self._adopts:
            self._renewing = asyncio.create_task(self._renew_outdated())
        else:
            await self._edges.wait_until_ready()
        for spec in processes.dns():
            self._dns = FleetDns(spec, self._supervise)

    async def renew_edges_on(self, renew: asyncio.Event) -> None:
        """Replace every edge, one after the other, each time the event is set."""
        while True:
            await renew.wait()
            renew.clear()
            for spec in self._processes.edges():
                await self._edges.renew(spec)

    def retire_edges(self) -> None:
        self._edges.retire()

    async def stop(self) -> None:
        """Stop edges first: they finish their streams while the nodes still compute. Idempotent.

        DNS goes with them: other servers of the zone see that they are gone.
        """
        if self._renewing is not None:
            self._renewing.cancel()
        if self._dns is not None:
            await self._dns.stop()
        steer = self._topology.steer
        lingering = 0.0 if steer is None else steer.drain_seconds
        seconds = EDGE_STOP_SECONDS + lingering
        strangers = [self._end(name, seconds) for name in self._strangers]
        await asyncio.gather(self._edges.stop(seconds), *strangers)
        rest = [*self._nodes.values(), *self._relays]
        await asyncio.gather(*(process.stop(NODE_STOP_SECONDS) for process in rest))

    async def status(self) -> Status:
        """Return what runs; what nodes say of themselves needs no registry."""
        places = self._processes.places
        controls = {place.id: self._processes.control(place.id) for place in places}
        answers, away = await asyncio.gather(ask_nodes(controls), self.registry_trouble())
        edges = [
            EdgeStatus(
                id=edge.name,
                pid=self._edges[edge.name].pid,
                url=edge_url(edge, self._listeners[edge.name]),
                region=edge.region,
            )
            for edge in self._topology.edges
        ]
        nodes = [
            node_status(place, self._nodes[place.id], answers.get(place.id), controls[place.id])
            for place in places
        ]
        left_out = self._processes.left_out
        notes = [sentence(each) for each in left_out]
        notes += [trouble(each) for each in (*self._nodes.values(), *self._edges, *self._relays)]
        notes += [away, *without_edge(self._nodes, answers)]
        notes += self._edges.failures.values()
        if self._dns is not None:
            notes += [self._dns.trouble, trouble(self._dns.process)]
        return Status(
            url=edges[0].url,
            edges=edges,
            nodes=nodes,
            notes=[note for note in notes if note],
            left_out=left_out,
        )

    async def registry_trouble(self) -> str:
        """Return what a person should know of the registry; nothing while all is well."""
        ready = [id for id, node in self._nodes.items() if node.state == "ready"]
        return await asyncio.to_thread(registry_trouble, self._registry, ready)

    def _supervise(self, spec: ProcessSpec, beside: bool = False) -> Supervised:
        children = LaunchedChildren(spec, self._launcher, beside=beside)
        persists = self._adopts and not beside
        return Supervised(spec, children, persists=persists, progress=self._reporter.progress)

    # --- after a supervisor that died ------------------------------------------------------------

    def _retire_strangers(self, specs: list[ProcessSpec]) -> None:
        """Have what the file does not name drain, and all but one of each edge's processes."""
        wanted = {spec.id for spec in specs}
        kept = {LaunchedChildren(spec, self._launcher).name for spec in specs}
        for name, process in [*self._launcher.list().items()]:
            if name not in kept or process.record.owner not in wanted:
                self._strangers.add(name)
                is_edge = process.record.kind == "edge"
                self._launcher.drain(name, signal.SIGUSR2 if is_edge else signal.SIGTERM)

    async def _renew_outdated(self) -> None:
        """Replace edges that the file says other things of than when they were started."""
        for spec in self._processes.edges():
            edge = self._edges[spec.id]
            if edge.is_outdated:
                await asyncio.gather(*(node.wait_until_ready() for node in self._nodes.values()))
                await self._edges.renew(spec)

    async def _end(self, name: str, seconds: float) -> None:
        """Drain a process that is no part of the topology; kill it after `seconds`."""
        process = self._launcher.list().get(name)
        if process is None:
            return
        self._launcher.drain(name)
        try:
            await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            self._launcher.stop(name)
            await process.wait()


def edge_url(edge: EdgeSpec, listener: HeldListener) -> str:
    return edge.url or reached_url(listener.host, listener.port, tls=edge.tls is not None)


async def _all_ready(processes: Iterable[Supervised]) -> None:
    """Raises FirstStartFailed as soon as one does."""
    await asyncio.gather(*(process.wait_until_ready() for process in processes))
