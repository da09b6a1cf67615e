"""`skerry up --topology`: a fleet from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path

from skerry_cli.composition.control_child import control_listener, control_plane
from skerry_cli.composition.fleet import Fleet, edge_url, keep_topology
from skerry_cli.composition.opening import openable
from skerry_cli.home.control import answer_status
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.instance import Instance, announce
from skerry_cli.home.parts import (
    credentials,
    install_models,
    listen_at,
    read_topology,
    sentence,
    url_of,
)
from skerry_cli.home.registries import open_registry
from skerry_cli.home.sockets import SocketFolder
from skerry_cli.home.state import Home
from skerry_cli.report import StartReporter, ready_report
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.limits import Limits
from skerry_regions.process.startup import on_sighup, on_thread, stop_on_signals, unless
from skerry_regions.process.supervisor import FirstStartFailed
from skerry_regions.topology.spec import Topology

logger = logging.getLogger(__name__)


def serve_topology(path: Path, home: Home, control: str, reporter: StartReporter) -> None:
    """Start what the file describes and keep it alive until SIGINT or SIGTERM.

    Raises `CannotStart`, or `Interrupted` when the signal comes before all are ready.
    """
    topology = _load(path)
    with SocketFolder.create(home.run) as sockets:
        keep_topology(path, sockets)
        asyncio.run(_serve(topology, home, sockets, control, reporter))


def _load(path: Path) -> Topology:
    topology = read_topology(path)
    if not topology.edges:
        raise CannotStart(f"{path}: `edges` is empty: nobody could reach the nodes")
    return topology


async def _serve(
    topology: Topology, home: Home, sockets: SocketFolder, control: str, reporter: StartReporter
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
        installed = await unless(
            stop, on_thread(lambda: openable(install_models(names, home, reporter.progress)))
        )
        for each in installed.left_out:
            logger.error("%s", sentence(each))
        config = credentials(
            home,
            TokenStore(home.tokens),
            edge_url(topology.edges[0], listeners[topology.edges[0].name]),
            control_url=url_of(control_socket),
        )
        registry = open_registry(home, os.environ)
        listening.callback(registry.close)
        fleet = Fleet(topology, installed, home, sockets, listeners, registry, reporter)
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
                reporter.ready(ready_report(config, specs, installed.left_out, notes))
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


def _forget_registry(home: Home) -> None:
    """Forget what an earlier run wrote: it says nothing about this one."""
    for path in home.run.glob(f"{home.registry.name}*"):
        path.unlink(missing_ok=True)
