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
import contextlib
import os
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from skerry_cli.composition.control_child import control_listener, control_plane
from skerry_cli.composition.fleet_dns import ID as DNS_ID
from skerry_cli.composition.fleet_dns import FleetDns, dns_command
from skerry_cli.home.control import EdgeStatus, NodeStatus, Status, answer_status
from skerry_cli.home.machine import default_threads
from skerry_cli.home.parts import (
    CannotStart,
    credentials,
    install_models,
    listen_at,
    reachable,
    read_topology,
    url_of,
)
from skerry_cli.home.registries import open_registry
from skerry_cli.home.sockets import SocketFolder
from skerry_cli.home.state import Home, Instance, announce
from skerry_cli.report import Reporter
from skerry_edge.gate.auth import TokenStore
from skerry_edge.limits import Limits
from skerry_regions.address import Address
from skerry_regions.models.catalog import Catalog
from skerry_regions.process.emulation import relays
from skerry_regions.process.health import is_healthy
from skerry_regions.process.startup import on_sighup, on_thread, stop_on_signals, unless
from skerry_regions.process.succession import Succession
from skerry_regions.process.supervisor import FirstStartFailed, ProcessSpec, Supervised
from skerry_regions.registry import Member, Registry, RegistryUnavailable
from skerry_regions.topology.spec import EdgeSpec, Pool, Topology

EDGE_STOP_SECONDS = 35.0  # more than an edge gives its streams to finish
EDGE_RETIRE_SECONDS = Limits().request_seconds + 10.0  # longer than any stream
NODE_STOP_SECONDS = 15.0  # the edges are gone: nobody waits for what still runs
NODE_DRAIN_SECONDS = 30.0  # of one node alone, while edges live


def serve_topology(path: Path, home: Home, control: str, reporter: Reporter) -> None:
    """Start what the file describes and keep it alive until SIGINT or SIGTERM.

    Raises `CannotStart`, or `Interrupted` when the signal comes before all are ready.
    """
    topology = _load(path)
    with SocketFolder.create(home.run) as sockets:
        keep_topology(path, sockets)
        asyncio.run(_serve(topology, home, sockets, control, reporter))


def keep_topology(path: Path, sockets: SocketFolder) -> None:
    """For edges, which read it whenever they are started again."""
    shutil.copyfile(path, _topology_file(sockets))


def _topology_file(sockets: SocketFolder) -> Path:
    return sockets.path("topology", "yaml")


def _load(path: Path) -> Topology:
    topology = read_topology(path)
    if not topology.edges:
        raise CannotStart(f"{path}: `edges` is empty: nobody could reach the nodes")
    return topology


async def _serve(
    topology: Topology, home: Home, sockets: SocketFolder, control: str, reporter: Reporter
) -> None:
    stop = stop_on_signals()
    renew = asyncio.Event()
    on_sighup(renew.set)
    _forget_registry(home)
    with contextlib.ExitStack() as listening:
        listeners = {
            edge.name: listening.enter_context(listen_at(edge.host, edge.port, Limits()))
            for edge in topology.edges
        }
        control_socket = listening.enter_context(control_listener(home))
        names = list(dict.fromkeys(pool.model for pool in topology.pools))
        catalog, _ = await unless(
            stop, on_thread(lambda: install_models(names, home, reporter.progress))
        )
        config = credentials(
            home,
            TokenStore(home.tokens),
            edge_url(topology.edges[0], listeners[topology.edges[0].name]),
            control_url=url_of(control_socket),
        )
        registry = open_registry(home, os.environ)
        listening.callback(registry.close)
        fleet = Fleet(topology, catalog, home, sockets, listeners, registry, reporter)
        try:
            await unless(stop, asyncio.ensure_future(fleet.start()))
            async with (
                answer_status(control, fleet.status),
                control_plane(home, control_socket),
            ):
                announce(home, Instance(os.getpid(), control, ready=True, url=config.url))
                reporter.ready(
                    {
                        "url": config.url,
                        "account_id": config.account_id,
                        "api_token": config.api_token,
                        "models": list(dict.fromkeys(catalog.resolve(name).id for name in names)),
                    }
                )
                renewing = asyncio.create_task(fleet.renew_edges_on(renew))
                await stop.wait()
                renewing.cancel()
                fleet.retire_edges()  # they could not inherit what is closed now
                for listener in listeners.values():
                    listener.close()  # once the edges have closed theirs, callers are refused
                await fleet.stop()
        except FirstStartFailed as error:
            raise CannotStart(str(error)) from None
        finally:
            await fleet.stop()
            _forget_registry(home)


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One node of a topology."""

    id: str
    pool: Pool
    model: str  # catalog id


class Fleet:
    """All processes of a topology. Lives on one event loop."""

    def __init__(
        self,
        topology: Topology,
        catalog: Catalog,
        home: Home,
        sockets: SocketFolder,
        listeners: dict[str, socket.socket],
        registry: Registry,
        reporter: Reporter,
    ) -> None:
        self._topology = topology
        self._home = home
        self._sockets = sockets
        self._listeners = listeners
        self._registry = registry
        self._reporter = reporter
        self._places = [
            NodePlace(id, pool, catalog.resolve(pool.model).id)
            for pool in topology.pools
            for id in pool.node_names()
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
        """Nodes first, then edges, each ready before the next. Raises FirstStartFailed."""
        for relay in self._relays:
            await relay.listen()
        for place, threads in zip(self._places, self._threads, strict=True):
            self._nodes[place.id] = self._supervise(self._node(place, threads))
        await _all_ready(self._nodes)
        await self._edges.start([self._edge(edge) for edge in self._topology.edges])
        if self._topology.dns is not None:
            self._dns = FleetDns(self._dns_server(), self._supervise)

    async def renew_edges_on(self, renew: asyncio.Event) -> None:
        """Each time the event is set, replace every edge, one after the other."""
        while True:
            await renew.wait()
            renew.clear()
            for edge in self._topology.edges:
                await self._edges.renew(self._edge(edge))

    def retire_edges(self) -> None:
        self._edges.retire()

    async def stop(self) -> None:
        """Edges first: they finish their streams while the nodes still compute. Idempotent.

        DNS goes with them: other servers of the zone see that they are gone.
        """
        if self._dns is not None:
            await self._dns.stop()
        steer = self._topology.steer
        lingering = 0.0 if steer is None else steer.drain_seconds
        await self._edges.stop(EDGE_STOP_SECONDS + lingering)
        await asyncio.gather(*(node.stop(NODE_STOP_SECONDS) for node in self._nodes.values()))
        await asyncio.gather(*(relay.close() for relay in self._relays))

    def status(self) -> Status:
        members = self._members()
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
            _node_status(place, self._nodes[place.id], members, self._address(place.id, "control"))
            for place in self._places
        ]
        notes = [_trouble(each) for each in (*self._nodes.values(), *self._edges)]
        notes += self._edges.failures.values()
        if self._dns is not None:
            notes += [self._dns.trouble, _trouble(self._dns.process)]
        return Status(
            url=edges[0].url, edges=edges, nodes=nodes, notes=[note for note in notes if note]
        )

    def _members(self) -> dict[str, Member]:
        try:
            return {member.id: member for member in self._registry.members()}
        except RegistryUnavailable:
            return {}

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
        if prompts := self._warm_up.get(place.model):
            path = self._sockets.path(place.id, "prompts")
            path.write_bytes(msgspec.json.encode(prompts))
            command += ["--warm-up", str(path)]
        return self._process(place.id, command, Address.parse(control))

    def _sockets_between(self) -> list[tuple[str, str]]:
        """What other regions reach, with the region that it is in."""
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
        for model in models:
            command += ["--model", model]
        if len(self._topology.regions) > 1:
            command += ["--gateway", self._address(edge.name, "gateway")]
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


def share_threads(pools: list[Pool], cores: int) -> list[int]:
    """Threads of each node of one machine: as written, and of what is left an equal share.

    Never more than there are cores, unless the file says so or nodes outnumber cores.
    """
    left = cores - sum(pool.threads for pool in pools if pool.threads is not None)
    sharing = sum(pool.threads is None for pool in pools)
    return [pool.threads or max(1, left // sharing) for pool in pools]


def edge_url(edge: EdgeSpec, listener: socket.socket) -> str:
    return edge.url or url_of(listener, tls=edge.tls is not None)


async def _all_ready(processes: dict[str, Supervised]) -> None:
    """Raises FirstStartFailed as soon as one does."""
    await asyncio.gather(*(process.wait_until_ready() for process in processes.values()))


def _node_status(
    place: NodePlace, process: Supervised, members: dict[str, Member], control: str
) -> NodeStatus:
    """The supervisor knows whether it lives; the node itself what it does."""
    member = members.get(place.id)
    known = member if member is not None and member.pid == process.pid else None
    draining = process.state == "ready" and known is not None and known.state == "draining"
    return NodeStatus(
        id=place.id,
        pid=process.pid,
        role=place.pool.role,
        region=place.pool.region,
        model=place.model,
        state="draining" if draining else process.state,
        streams=known.streams if known is not None else 0,
        control=control,
    )


def _trouble(process: Supervised) -> str:
    """What a person should know of a process; nothing when all is well."""
    if not process.restarts and process.state != "failed":
        return ""
    what = f"{process.spec.id}: restarted {process.restarts} times, last exit {process.last_exit}"
    if process.is_crash_loop:
        what += ", in a crash loop"
    return f"{what}; see {process.spec.log}"


def _forget_registry(home: Home) -> None:
    """What an earlier run wrote tells nothing about this one."""
    for path in home.run.glob(f"{home.registry.name}*"):
        path.unlink(missing_ok=True)
