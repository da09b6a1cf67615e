"""`skerry up --topology`: a fleet from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Generator
from pathlib import Path
from signal import Signals

from skerry_cli.composition.control_child import control_listener, control_plane
from skerry_cli.composition.fleet.fleet import Fleet, edge_url
from skerry_cli.composition.fleet.processes import FleetProcesses
from skerry_cli.composition.opening import openable
from skerry_cli.home.console_address import console_address
from skerry_cli.home.control import answer_status
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.instance import Instance, announce
from skerry_cli.home.left_behind import SOCKETS, forget_fleet
from skerry_cli.home.parts import (
    credentials,
    install_models,
    listen_at,
    read_topology,
    sentence,
    url_of,
)
from skerry_cli.home.registries import open_registry
from skerry_cli.home.state import Home
from skerry_cli.report import StartReporter, ready_report
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.limits import Limits
from skerry_regions.address import Address
from skerry_regions.process.launch_folder import LaunchFolder
from skerry_regions.process.local_launcher import Deposed, LocalLauncher
from skerry_regions.process.socket_paths import SocketPaths
from skerry_regions.process.spawning import HeldListener, resolved
from skerry_regions.process.startup import on_sighup, on_thread, stop_on_signals, unless
from skerry_regions.process.supervisor import FirstStartFailed
from skerry_regions.spec_types import console_mode
from skerry_regions.topology.spec import EdgeSpec, Topology

logger = logging.getLogger(__name__)


def serve_topology(path: Path, home: Home, control: str, reporter: StartReporter) -> None:
    """Start what the file describes, or adopt it, and keep it alive until SIGINT or SIGTERM.

    Raises `CannotStart`, or `Interrupted` when the signal comes before all are ready.
    """
    source = path.read_bytes() if path.is_file() else b""
    asyncio.run(_serve(_load(path), source, home, control, reporter))


def _load(path: Path) -> Topology:
    topology = read_topology(path)
    if not topology.edges:
        raise CannotStart(f"{path}: `edges` is empty: no one could reach the nodes")
    return topology


async def _serve(
    topology: Topology, source: bytes, home: Home, control: str, reporter: StartReporter
) -> None:
    stop = stop_on_signals()
    renew = asyncio.Event()
    on_sighup(renew.set)
    with _launching(home) as (launcher, sockets), contextlib.ExitStack() as listening:
        listeners = {edge.name: _listener(edge, launcher) for edge in topology.edges}
        for listener in listeners.values():
            listening.callback(listener.close)
        control_socket = listening.enter_context(control_listener(home))
        names = list(dict.fromkeys(pool.model for pool in topology.pools))
        installed = await unless(
            stop, on_thread(lambda: openable(install_models(names, home, reporter.progress)))
        )
        for each in installed.left_out:
            logger.error("%s", sentence(each))
        processes = FleetProcesses(topology, source, installed, home, sockets, listeners)
        _refuse_taken(processes, home)
        config = credentials(
            home,
            TokenStore(home.tokens),
            edge_url(topology.edges[0], listeners[topology.edges[0].name]),
            control_url=url_of(control_socket),
        )
        registry = open_registry(home, os.environ)
        listening.callback(registry.close)
        fleet = Fleet(processes, listeners, launcher, registry, reporter)
        notes = [away] if (away := await fleet.registry_trouble()) else []
        for note in notes:
            logger.error("%s", note)
        try:
            await unless(stop, asyncio.ensure_future(fleet.start()))
            async with (
                answer_status(control, fleet.status),
                control_plane(home, control_socket),
            ):
                announce(home, Instance(os.getpid(), control, ready=True, url=config.url))
                specs = [model.spec for model in installed.models]
                mode = console_mode(topology.edges[0].console)
                console = console_address(home, config, topology.edges[0].name, mode)
                reporter.ready(
                    ready_report(config, specs, installed.left_out, notes, console=console)
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


@contextlib.contextmanager
def _launching(home: Home) -> Generator[tuple[LocalLauncher, SocketPaths]]:
    """Yield the launcher of the home, and where its processes have their sockets.

    Where none runs, what earlier ones wrote is forgotten, before and after: it says nothing about
    these. Raises `CannotStart`.
    """
    try:
        folder = LaunchFolder.of_fleet(home.root)
        if not any(folder.running()):
            forget_fleet(home)
        launcher = LocalLauncher(folder, folder.term + 1, beside=LaunchFolder.of_control(home.root))
        sockets = SocketPaths.of(home.root, SOCKETS)
    except (OSError, Deposed) as error:
        raise CannotStart(f"cannot start processes in {home.run}: {error}") from None
    try:
        yield launcher, sockets
    finally:
        is_over = not launcher.list()
        launcher.close()
        if is_over:
            forget_fleet(home)


def _refuse_taken(processes: FleetProcesses, home: Home) -> None:
    """Raise `CannotStart` for nodes that the control plane of the home has started."""
    theirs = LaunchFolder.of_control(home.root)
    if taken := [place.id for place in processes.places if theirs.runs(place.id)]:
        raise CannotStart(
            f"{', '.join(taken)}: a control plane of {home.root} has started it. Start `skerry "
            "control` again, and have it start the file (`skerry apply`) or end these (`delete`)"
        )


def _listener(edge: EdgeSpec, launcher: LocalLauncher) -> HeldListener:
    """Return where an edge listens, or is to. Raises `CannotStart`.

    One that a former supervisor has started keeps its port, unless the file says another.
    """
    host = ""
    for process in launcher.list().values():
        if process.record.owner == edge.name and process.record.kind == "edge":
            address = Address.parse(process.record.address)
            host = host or _resolved(edge.host)
            if address.host == host and edge.port in (0, address.port):
                return HeldListener(address.host, address.port)
            launcher.drain(process.record.id, Signals.SIGUSR2)
    return HeldListener(edge.host, edge.port, listen_at(edge.host, edge.port, Limits()))


def _resolved(host: str) -> str:
    """Return the IP address of a host; itself where there is none."""
    try:
        return resolved(host)
    except OSError:
        return host
