"""What each process of a topology is started as."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from skerry_cli.composition.fleet.dns_server import ID as DNS_ID
from skerry_cli.composition.fleet.dns_server import dns_command
from skerry_cli.composition.fleet.status import NodePlace
from skerry_cli.home.machine import default_threads, share_threads
from skerry_cli.home.parts import LOOPBACK, Installation
from skerry_cli.home.state import Home, replace_private
from skerry_regions.address import Address
from skerry_regions.process.children import ProcessSpec
from skerry_regions.process.emulation import relays_command
from skerry_regions.process.launch_folder import LaunchedKind
from skerry_regions.process.pages import is_healthy
from skerry_regions.process.socket_paths import SocketPaths
from skerry_regions.process.spawning import HeldListener
from skerry_regions.registry import Member
from skerry_regions.topology.spec import EdgeSpec, Topology

NODE_DRAIN_SECONDS = 30.0  # of one node alone, while edges live
RELAYS_ID = "relays"


class FleetProcesses:
    """Command lines, sockets and files. Pure, but for the files that processes read."""

    def __init__(
        self,
        topology: Topology,
        source: bytes,
        installed: Installation,
        home: Home,
        sockets: SocketPaths,
        listeners: dict[str, HeldListener],
    ) -> None:
        """`source` is the topology's text; `listeners` are by name of their edge."""
        self.topology = topology
        self.left_out = installed.left_out
        self._source = source
        self._home = home
        self._sockets = sockets
        self._listeners = listeners
        catalog, gone = installed.catalog, {each.model for each in installed.left_out}
        self.places = [
            NodePlace(id, pool, catalog.resolve(pool.model).id)
            for pool in topology.pools
            for id in pool.node_names()
            if catalog.resolve(pool.model).id not in gone
        ]
        self._threads = share_threads([place.pool for place in self.places], default_threads())
        self._warm_up = {
            catalog.resolve(warm_up.model).id: warm_up.system_prompts
            for warm_up in topology.warm_up
        }

    def write(self) -> None:
        """Write what processes read, whenever they are started again. Raises `StateError`."""
        replace_private(self._file("topology", "yaml"), self._source)
        replace_private(self._file("placed", "json"), self._placed())
        replace_private(self._file(RELAYS_ID, "json"), self._relayed())
        for place in self.places:
            if prompts := self._warm_up.get(place.model):
                replace_private(self._file(place.id, "prompts"), msgspec.json.encode(prompts))

    def control(self, node: str) -> str:
        """Return the address of a node's control API."""
        return self._sockets.address(node, "control")

    def nodes(self) -> list[ProcessSpec]:
        """Return those of `places`, in their order."""
        pairs = zip(self.places, self._threads, strict=True)
        return [self._node(place, threads) for place, threads in pairs]

    def edges(self) -> list[ProcessSpec]:
        return [self._edge(edge) for edge in self.topology.edges]

    def dns(self) -> Iterable[ProcessSpec]:
        """Yield the DNS server, where the topology has a zone."""
        if self.topology.dns is not None:
            command = dns_command(
                str(self._file("topology", "yaml")), self._sockets.address(DNS_ID, "metrics")
            )
            yield self._process(DNS_ID, "dns", command, inputs=self._source)

    def relays(self) -> Iterable[ProcessSpec]:
        """Yield what holds bytes up between regions, where distances are emulated."""
        if self.topology.emulate is not None:
            command = relays_command(self._file("topology", "yaml"), self._file(RELAYS_ID, "json"))
            inputs = self._source + self._relayed()
            yield self._process(RELAYS_ID, "relays", command, inputs=inputs)

    # --- one of them -----------------------------------------------------------------------------

    def _node(self, place: NodePlace, threads: int) -> ProcessSpec:
        address, transfer = (self._sockets.address(place.id, kind) for kind in ("node", "kv"))
        pool, control = place.pool, self.control(place.id)
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
        inputs = b""
        if prompts := self._warm_up.get(place.model):
            command += ["--warm-up", str(self._file(place.id, "prompts"))]
            inputs = msgspec.json.encode(prompts)
        return self._process(
            place.id, "node", _skerry(command), region=pool.region, control=control, inputs=inputs
        )

    def _edge(self, edge: EdgeSpec) -> ProcessSpec:
        listener = self._listeners[edge.name]
        reached = LOOPBACK.get(listener.host, listener.host)
        models = list(dict.fromkeys(place.model for place in self.places))
        command = ["edge", "--id", edge.name, *self._where(edge.region)]
        command += ["--placement", edge.placement]
        command += ["--topology", str(self._file("topology", "yaml"))]
        command += ["--placed", str(self._file("placed", "json"))]
        for model in models:
            command += ["--model", model]
        if len(self.topology.edges) > 1:
            command += ["--gateway", self._sockets.address(edge.name, "gateway")]
        if self.left_out:
            command += ["--left-out", msgspec.json.encode(self.left_out).decode()]
        if edge.tls is not None:
            command += ["--tls-cert", edge.tls.cert, "--tls-key", edge.tls.key]
        return self._process(
            edge.name,
            "edge",
            _skerry(command),
            region=edge.region,
            control=str(replace(listener.address, host=reached)),
            inputs=self._source + self._placed(),
            listener=listener,
            tls=edge.tls is not None,
        )

    def _process(
        self,
        id: str,
        kind: LaunchedKind,
        command: Sequence[str],
        *,
        region: str = "",
        control: str = "",
        inputs: bytes = b"",
        listener: HeldListener | None = None,
        tls: bool = False,
    ) -> ProcessSpec:
        health = Address.parse(control) if control else None
        return ProcessSpec(
            id=id,
            kind=kind,
            command=[*command, "--lifeline-fd"],
            environ=os.environ | {"SKERRY_HOME": str(self._home.root)},
            log=self._home.logs / f"{id}.log",
            healthy=None if health is None else lambda: is_healthy(health, tls=tls),
            listener=listener,
            region=region,
            control=control,
            inputs=inputs,
        )

    def _where(self, region: str) -> list[str]:
        return ["--region", region, "--residency", self.topology.region(region).residency]

    def _file(self, id: str, kind: str) -> Path:
        return self._sockets.path(id, kind)

    # --- what the files say ----------------------------------------------------------------------

    def _placed(self) -> bytes:
        """Return where all processes are, for edges without a registry."""
        nodes = [
            Member(
                id=place.id,
                kind="node",
                region=place.pool.region,
                residency=self.topology.region(place.pool.region).residency,
                address=self._sockets.address(place.id, "node"),
                model=place.model,
            )
            for place in self.places
        ]
        edges = [
            Member(
                id=edge.name,
                kind="edge",
                region=edge.region,
                residency=self.topology.region(edge.region).residency,
                gateway=self._sockets.address(edge.name, "gateway"),
            )
            for edge in self.topology.edges
        ]
        return msgspec.json.encode(nodes + edges if len(edges) > 1 else nodes)

    def _relayed(self) -> bytes:
        """Return what other regions reach, with the region that it is in."""
        nodes = [
            (self._sockets.address(place.id, kind), place.pool.region)
            for place in self.places
            for kind in ("node", "kv")
        ]
        edges = [
            (self._sockets.address(edge.name, "gateway"), edge.region)
            for edge in self.topology.edges
        ]
        return msgspec.json.encode(nodes + edges)


def _skerry(command: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "skerry", *command]
