"""`skerry up --topology`: the nodes and edges of a YAML file, as supervised processes.

    up      models ─▶ ports ─▶ nodes, all at once ─▶ edges ─▶ ready
    reload  each edge in turn: its successor ready at the same port ─▶ it accepts no more ─▶ its
            last stream ends, and so does it
    down    ports closed ─▶ edges drain ─▶ nodes drain ─▶ sockets and records removed

The supervisor owns the edges' listening sockets: while an edge is restarted, connections wait in
the backlog instead of being refused.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import msgspec

from skerry_cli.composition.fleet_dns import ID as DNS_ID
from skerry_cli.composition.fleet_dns import FleetDns, dns_command
from skerry_cli.composition.fleet_status import (
    NodePlace,
    ask_nodes,
    node_status,
    registry_trouble,
    trouble,
    without_edge,
)
from skerry_cli.home.control import EdgeStatus, Status
from skerry_cli.home.machine import default_threads, share_threads
from skerry_cli.home.parts import (
    Installation,
    reachable,
    sentence,
    url_of,
)
from skerry_cli.home.sockets import SocketFolder
from skerry_cli.home.state import Home, replace_private
from skerry_cli.report import StartReporter
from skerry_edge.limits import Limits
from skerry_regions.address import Address
from skerry_regions.process.emulation import relays
from skerry_regions.process.health import is_healthy
from skerry_regions.process.succession import Succession
from skerry_regions.process.supervisor import ProcessSpec, Supervised
from skerry_regions.registry import Member, Registry
from skerry_regions.topology.spec import EdgeSpec, Topology

EDGE_STOP_SECONDS = 35.0  # more than an edge gives its streams to finish
EDGE_RETIRE_SECONDS = Limits().request_seconds + 10.0  # longer than any stream
NODE_STOP_SECONDS = 15.0  # the edges are gone: none waits for what still runs
NODE_DRAIN_SECONDS = 30.0  # of one node alone, while edges live


def keep_topology(path: Path, sockets: SocketFolder) -> None:
    """Keep it for edges, which read it whenever they are started again."""
    replace_private(_topology_file(sockets), path.read_bytes())


def _topology_file(sockets: SocketFolder) -> Path:
    return sockets.path("topology", "yaml")


class Fleet:
    """All processes of a topology. Lives on one event loop."""

    def __init__(
        self,
        topology: Topology,
        installed: Installation,
        home: Home,
        sockets: SocketFolder,
        listeners: dict[str, socket.socket],
        registry: Registry,
        reporter: StartReporter,
    ) -> None:
        self._topology = topology
        self._left_out = installed.left_out
        self._home = home
        catalog, gone = installed.catalog, {each.model for each in installed.left_out}
        self._sockets = sockets
        self._listeners = listeners
        self._registry = registry
        self._reporter = reporter
        self._places = [
            NodePlace(id, pool, catalog.resolve(pool.model).id)
            for pool in topology.pools
            for id in pool.node_names()
            if catalog.resolve(pool.model).id not in gone
        ]
        self._threads = share_threads([place.pool for place in self._places], default_threads())
        self._warm_up = {
            catalog.resolve(warm_up.model).id: warm_up.system_prompts
            for warm_up in topology.warm_up
        }
        self._relays = relays(topology, self._sockets_between()) if topology.emulate else []
        self._nodes: dict[str, Supervised] = {}
        self._edges = Succession(self._supervise, EDGE_RETIRE_SECONDS)
        self._dns: FleetDns | None = None

    async def start(self) -> None:
        """Start nodes, then edges, when those are ready. Raises FirstStartFailed, `StateError`."""
        for relay in self._relays:
            await relay.listen()
        replace_private(self._placed_file(), msgspec.json.encode(self._placed()))
        for place, threads in zip(self._places, self._threads, strict=True):
            self._nodes[place.id] = self._supervise(self._node(place, threads))
        await _all_ready(self._nodes)
        await self._edges.start([self._edge(edge) for edge in self._topology.edges])
        if self._topology.dns is not None:
            self._dns = FleetDns(self._dns_server(), self._supervise)

    async def renew_edges_on(self, renew: asyncio.Event) -> None:
        """Replace every edge, one after the other, each time the event is set."""
        while True:
            await renew.wait()
            renew.clear()
            for edge in self._topology.edges:
                await self._edges.renew(self._edge(edge))

    def retire_edges(self) -> None:
        self._edges.retire()

    async def stop(self) -> None:
        """Stop edges first: they finish their streams while the nodes still compute. Idempotent.

        DNS goes with them: other servers of the zone see that they are gone.
        """
        if self._dns is not None:
            await self._dns.stop()
        steer = self._topology.steer
        lingering = 0.0 if steer is None else steer.drain_seconds
        await self._edges.stop(EDGE_STOP_SECONDS + lingering)
        await asyncio.gather(*(node.stop(NODE_STOP_SECONDS) for node in self._nodes.values()))
        await asyncio.gather(*(relay.close() for relay in self._relays))

    async def status(self) -> Status:
        """Return what runs; what nodes say of themselves needs no registry."""
        controls = {place.id: self._address(place.id, "control") for place in self._places}
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
            for place in self._places
        ]
        notes = [sentence(each) for each in self._left_out]
        notes += [trouble(each) for each in (*self._nodes.values(), *self._edges)]
        notes += [away, *without_edge(self._nodes, answers)]
        notes += self._edges.failures.values()
        if self._dns is not None:
            notes += [self._dns.trouble, trouble(self._dns.process)]
        return Status(
            url=edges[0].url,
            edges=edges,
            nodes=nodes,
            notes=[note for note in notes if note],
            left_out=self._left_out,
        )

    async def registry_trouble(self) -> str:
        """Return what a person should know of the registry; nothing while all is well."""
        ready = [id for id, node in self._nodes.items() if node.state == "ready"]
        return await asyncio.to_thread(registry_trouble, self._registry, ready)

    def _supervise(self, spec: ProcessSpec) -> Supervised:
        return Supervised(spec, progress=self._reporter.progress)

    def _node(self, place: NodePlace, threads: int) -> ProcessSpec:
        address, transfer, control = (
            self._address(place.id, kind) for kind in ("node", "kv", "control")
        )
        pool = place.pool
        command = [
            "node", "--id", place.id, "--role", pool.role, *self._where(pool.region),
            "--model", place.model, "--runner", pool.runner, "--threads", str(threads),
            "--address", address, "--transfer", transfer, "--control", control,
            "--drain-seconds", str(NODE_DRAIN_SECONDS),
        ]  # fmt: skip
        if pool.kv_blocks is not None:
            command += ["--kv-blocks", str(pool.kv_blocks)]
        if pool.file_tier is not None:
            command += ["--file-tier", pool.file_tier]
        if pool.weights is not None:
            command += ["--weights", pool.weights]
        if prompts := self._warm_up.get(place.model):
            path = self._sockets.path(place.id, "prompts")
            replace_private(path, msgspec.json.encode(prompts))
            command += ["--warm-up", str(path)]
        return self._process(place.id, command, Address.parse(control))

    def _placed(self) -> list[Member]:
        """Return where all processes are, for edges without a registry."""
        nodes = [
            Member(
                id=place.id,
                kind="node",
                region=place.pool.region,
                residency=self._topology.region(place.pool.region).residency,
                address=self._address(place.id, "node"),
                model=place.model,
            )
            for place in self._places
        ]
        edges = [
            Member(
                id=edge.name,
                kind="edge",
                region=edge.region,
                residency=self._topology.region(edge.region).residency,
                gateway=self._address(edge.name, "gateway"),
            )
            for edge in self._topology.edges
        ]
        return nodes + edges if len(edges) > 1 else nodes

    def _placed_file(self) -> Path:
        return self._sockets.path("placed", "json")

    def _sockets_between(self) -> list[tuple[str, str]]:
        """Return what other regions reach, with the region that it is in."""
        return [
            (self._address(place.id, kind), place.pool.region)
            for place in self._places
            for kind in ("node", "kv")
        ] + [(self._address(edge.name, "gateway"), edge.region) for edge in self._topology.edges]

    def _where(self, region: str) -> list[str]:
        return ["--region", region, "--residency", self._topology.region(region).residency]

    def _address(self, node: str, kind: str) -> str:
        return f"unix:{self._sockets.path(node, kind)}"

    def _edge(self, edge: EdgeSpec) -> ProcessSpec:
        listener = self._listeners[edge.name]
        models = list(dict.fromkeys(place.model for place in self._places))
        command = ["edge", "--id", edge.name, *self._where(edge.region)]
        command += ["--placement", edge.placement]
        command += ["--topology", str(_topology_file(self._sockets))]
        command += ["--placed", str(self._placed_file())]
        for model in models:
            command += ["--model", model]
        if len(self._topology.edges) > 1:
            command += ["--gateway", self._address(edge.name, "gateway")]
        if self._left_out:
            command += ["--left-out", msgspec.json.encode(self._left_out).decode()]
        command += ["--listener-fd", str(listener.fileno())]
        host, port = reachable(listener)
        if edge.tls is not None:
            command += ["--tls-cert", edge.tls.cert, "--tls-key", edge.tls.key]
        return self._process(
            edge.name,
            command,
            Address(host=host, port=port),
            listener.fileno(),
            tls=edge.tls is not None,
        )

    def _dns_server(self) -> ProcessSpec:
        return ProcessSpec(
            id=DNS_ID,
            command=dns_command(
                str(_topology_file(self._sockets)), self._address(DNS_ID, "metrics")
            ),
            environ=os.environ | {"SKERRY_HOME": str(self._home.root)},
            log=self._home.logs / f"{DNS_ID}.log",
        )

    def _process(
        self, id: str, command: list[str], health: Address, *descriptors: int, tls: bool = False
    ) -> ProcessSpec:
        return ProcessSpec(
            id=id,
            command=[sys.executable, "-m", "skerry", *command, "--lifeline-fd"],
            environ=os.environ | {"SKERRY_HOME": str(self._home.root)},
            log=self._home.logs / f"{id}.log",
            descriptors=descriptors,
            healthy=lambda: is_healthy(health, tls=tls),
        )


def edge_url(edge: EdgeSpec, listener: socket.socket) -> str:
    return edge.url or url_of(listener, tls=edge.tls is not None)


async def _all_ready(processes: dict[str, Supervised]) -> None:
    """Raises FirstStartFailed as soon as one does."""
    await asyncio.gather(*(process.wait_until_ready() for process in processes.values()))
