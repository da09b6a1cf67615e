"""From a launch to a process on this machine: what is written of it, and its command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from skerry_regions.address import Address
from skerry_regions.control.planning.launcher import (
    DnsSettings,
    EdgeSettings,
    Launch,
    NodeSettings,
    RelaySettings,
    fingerprint,
)
from skerry_regions.control.reconcile.commands import dns_command, edge_command, node_command
from skerry_regions.process.emulation import RelayPlan, relays_command
from skerry_regions.process.launch_folder import LaunchFolder, LaunchRecord, Slot
from skerry_regions.process.local_launcher import Program, boot_time
from skerry_regions.process.socket_paths import SocketPaths
from skerry_regions.process.spawning import HeldListener


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPrograms:
    """Of one home. Its files are written where processes are started."""

    home: Path
    files: LaunchFolder
    sockets: SocketPaths
    cores: int
    environ: dict[str, str]
    host: str = ""  # where nodes listen for other machines; none do
    port: int = 0  # at which a node listens, and at the next one for KV; 0: at free ones
    advertise: str = ""  # where those reach them, where that is not it

    def log(self, id: str) -> Path:
        """Return where a process logs."""
        return self.home / "logs" / f"{id}.log"

    def record(self, launch: Launch, listener: HeldListener | None) -> LaunchRecord:
        """Return what is to be known of a process. An edge has a listener."""
        settings = launch.settings
        record = LaunchRecord(
            id=launch.id,
            owner=launch.owner,
            kind="node",
            region=settings.region,
            fingerprint=fingerprint(settings),
            address=self._address(launch.id, "node"),
            control=self.sockets.address(launch.id, "control"),
            started=boot_time(),
            incarnation=launch.incarnation,
            slot=launch.slot,
        )
        match settings:
            case NodeSettings(residency=residency, model=model):
                return msgspec.structs.replace(record, residency=residency, model=model)
            case EdgeSettings():
                assert listener is not None
                return msgspec.structs.replace(
                    record,
                    kind="edge",
                    residency=settings.residency,
                    address=str(listener.address),
                    control=str(listener.reached),
                    gateway=self.sockets.address(launch.id, "gateway"),
                    tls=settings.tls is not None,
                )
            case RelaySettings():
                return msgspec.structs.replace(record, kind="relays", address="", control="")
            case DnsSettings():
                return msgspec.structs.replace(record, kind="dns", address="", control="")

    def program(self, launch: Launch, listener: HeldListener | None, lifeline: int) -> Program:
        """Return what to execute; it inherits the descriptor `lifeline`. Raises OSError."""
        command, descriptors = [*self._command(launch)], [lifeline]
        if listener is not None:
            descriptors.append(listener.fileno())
            command += ["--listener-fd", str(listener.fileno())]
        return Program(
            command=[*command, "--lifeline-fd", str(lifeline)],
            environ=self.environ | _visible(launch.slot),
            log=self.log(launch.id),
            descriptors=descriptors,
        )

    def _command(self, launch: Launch) -> Sequence[str]:
        id, settings = launch.id, launch.settings
        match settings:
            case NodeSettings():
                prompts = None
                if settings.system_prompts:
                    prompts = self.files.path(id, "prompts")
                    prompts.write_bytes(msgspec.json.encode(settings.system_prompts))
                return node_command(
                    id,
                    settings,
                    address=partial(self._address, id),
                    threads=settings.threads or launch.share.threads(self.cores),
                    prompts=prompts,
                    advertise=self.advertise,
                    incarnation=launch.incarnation,
                )
            case EdgeSettings():
                topology = self.files.path(id, "topology")
                topology.write_bytes(launch.topology)
                gateway = self.sockets.address(id, "gateway")
                command = edge_command(id, settings, gateway=gateway, topology=topology)
                return [*command, "--placed", str(self.files.placed)]
            case DnsSettings():
                return dns_command(settings.zone, self.sockets.address(id, "metrics"))
            case RelaySettings():
                path = self.files.path(id, "relays")
                path.write_bytes(msgspec.json.encode(RelayPlan(rtts=settings.rtts)))
                return relays_command(path)

    def _address(self, id: str, kind: str) -> str:
        if self.host and kind in ("node", "kv"):
            port = self.port + (kind == "kv") if self.port else 0
            return str(Address(host=self.host, port=port))
        return self.sockets.address(id, kind)


def _visible(slot: Slot | None) -> dict[str, str]:
    """Return what hides from a node the GPUs that it was not given."""
    return {} if slot is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, slot.gpus))}
