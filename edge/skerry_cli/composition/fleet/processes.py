"""What each process of a topology is started as."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import structs

from skerry_cli.composition.fleet.dns_server import ID as DNS_ID
from skerry_cli.composition.fleet.status import NodePlace
from skerry_cli.home.machine import default_threads
from skerry_cli.home.parts import Installation
from skerry_cli.home.state import Home, replace_private
from skerry_regions.address import Address
from skerry_regions.control.desired.manifest import desired_of
from skerry_regions.control.planning.launcher import CoreShare, EdgeSettings, NodeSettings
from skerry_regions.control.planning.wanted import ModelState, wanted
from skerry_regions.control.reconcile.commands import dns_command, edge_command, node_command
from skerry_regions.process.children import ProcessSpec
from skerry_regions.process.emulation import RelayPlan, relays_command
from skerry_regions.process.launch_folder import LaunchedKind
from skerry_regions.process.pages import is_healthy
from skerry_regions.process.socket_paths import SocketPaths
from skerry_regions.process.spawning import HeldListener
from skerry_regions.registry import Member
from skerry_regions.topology.spec import EdgeSpec, Topology, TopologyPool, WarmUp

RELAYS_ID = "relays"
NamesModel = TypeVar("NamesModel", TopologyPool, WarmUp)


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
        models = _KnownModels(installed)
        self._groups = wanted(desired_of(models.named(topology)), models.state)
        self.places = [
            NodePlace(launch.id, group.settings)
            for pool in topology.pools
            if (group := self._groups[f"{pool.region}-{pool.name}"]) and not group.is_unknown
            for launch in map(group.launch, range(group.replicas))
            if isinstance(group.settings, NodeSettings)
        ]
        self._threads = CoreShare.of((place.settings.threads, 1) for place in self.places)

    def write(self) -> None:
        """Write what processes read, whenever they are started again. Raises `StateError`."""
        replace_private(self._file("topology", "yaml"), self._source)
        replace_private(self._file("placed", "json"), self._placed())
        replace_private(self._file(RELAYS_ID, "json"), self._relayed())
        for place in self.places:
            if prompts := place.settings.system_prompts:
                replace_private(self._file(place.id, "prompts"), msgspec.json.encode(prompts))

    def control(self, node: str) -> str:
        """Return the address of a node's control API."""
        return self._sockets.address(node, "control")

    def nodes(self) -> list[ProcessSpec]:
        """Return those of `places`, in their order."""
        return [*map(self._node, self.places)]

    def edges(self) -> list[ProcessSpec]:
        return [self._edge(edge) for edge in self.topology.edges]

    def dns(self) -> Iterable[ProcessSpec]:
        """Yield the DNS server, where the topology has a zone."""
        if self.topology.dns is not None and self.topology.dns.serve:
            source = "--topology", str(self._file("topology", "yaml"))
            command = dns_command(source, self._sockets.address(DNS_ID, "metrics"))
            yield self._process(DNS_ID, "dns", command, inputs=self._source)

    def relays(self) -> Iterable[ProcessSpec]:
        """Yield what holds bytes up between regions, where distances are emulated."""
        if self.topology.emulate is not None:
            command = relays_command(self._file(RELAYS_ID, "json"))  # which they follow
            yield self._process(RELAYS_ID, "relays", command)

    # --- one of them -----------------------------------------------------------------------------

    def _node(self, place: NodePlace) -> ProcessSpec:
        settings, prompts = place.settings, place.settings.system_prompts
        command = node_command(
            place.id,
            settings,
            address=partial(self._sockets.address, place.id),
            threads=settings.threads or self._threads.threads(default_threads()),
            prompts=self._file(place.id, "prompts") if prompts else None,
        )
        return self._process(
            place.id,
            "node",
            command,
            region=settings.region,
            control=self.control(place.id),
            inputs=msgspec.json.encode(prompts),
        )

    def _edge(self, edge: EdgeSpec) -> ProcessSpec:
        listener, settings = self._listeners[edge.name], self._groups[edge.name].settings
        assert isinstance(settings, EdgeSettings)
        command = edge_command(
            edge.name,
            settings,
            gateway=self._sockets.address(edge.name, "gateway"),
            topology=self._file("topology", "yaml"),
            holds=False,
        )
        command += ["--placed", str(self._file("placed", "json"))]
        if self.left_out:
            command += ["--left-out", msgspec.json.encode(self.left_out).decode()]
        return self._process(
            edge.name,
            "edge",
            command,
            region=edge.region,
            control=str(listener.reached),
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

    def _file(self, id: str, kind: str) -> Path:
        return self._sockets.path(id, kind)

    # --- what the files say ----------------------------------------------------------------------

    def _placed(self) -> bytes:
        """Return where all processes are, for edges without a registry."""
        nodes = [
            Member(
                id=place.id,
                kind="node",
                region=place.settings.region,
                residency=place.settings.residency,
                address=self._sockets.address(place.id, "node"),
                model=place.settings.model,
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
        return msgspec.json.encode(nodes + edges)

    def _relayed(self) -> bytes:
        """Return how far what other regions reach is."""
        nodes = [
            (self._sockets.address(place.id, kind), place.settings.region)
            for place in self.places
            for kind in ("node", "kv")
        ]
        edges = [
            (self._sockets.address(edge.name, "gateway"), edge.region)
            for edge in self.topology.edges
        ]
        plan = RelayPlan.of(self.topology)
        return msgspec.json.encode(structs.replace(plan, sockets=tuple(nodes + edges)))


class _KnownModels:
    """Models by any of their names; those that were left out are none."""

    def __init__(self, installed: Installation) -> None:
        self._catalog = installed.catalog
        self._gone = {each.model for each in installed.left_out}

    def state(self, name: str) -> ModelState:
        id = self._catalog.resolve(name).id
        return ModelState(id="" if id in self._gone else id)

    def named(self, topology: Topology) -> Topology:
        """Return the topology with each model by its one id."""
        return structs.replace(
            topology, pools=self._resolved(topology.pools), warm_up=self._resolved(topology.warm_up)
        )

    def _resolved(self, entries: tuple[NamesModel, ...]) -> tuple[NamesModel, ...]:
        return tuple(
            structs.replace(each, model=self._catalog.resolve(each.model).id) for each in entries
        )
