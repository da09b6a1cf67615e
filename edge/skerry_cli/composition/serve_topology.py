"""`skerry up --topology`: a control plane that wants what a file says, from its start to its end.

up      models ─▶ what the file says is wanted ─▶ nodes, edges ─▶ all are ready
again   what one that died has left ─▶ adopted; what is to be another is replaced
reload  each edge has a successor at the same port ─▶ its last stream ends, and so does it
down    edges drain ─▶ nodes drain ─▶ relays end ─▶ sockets and records removed
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TypeVar

from msgspec import structs

from skerry_cli.composition.control.options import EmbeddedControl
from skerry_cli.composition.control_child import control_listener
from skerry_cli.composition.control_parts import read_wanted
from skerry_cli.composition.opening import openable
from skerry_cli.composition.serve_control import embed_control
from skerry_cli.composition.topology_status import TopologyStatus
from skerry_cli.home.console_address import console_address
from skerry_cli.home.control import answer_status
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.instance import Instance, announce
from skerry_cli.home.left_behind import adopt_fleet, forget_processes
from skerry_cli.home.parts import (
    Installation,
    credentials,
    install_models,
    read_topology,
    sentence,
)
from skerry_cli.home.state import Home
from skerry_cli.report import StartReporter, ready_report
from skerry_regions.control.desired.manifest import Manifest
from skerry_regions.control.desired.resources import PoolSpec
from skerry_regions.models.catalog import Catalog
from skerry_regions.process.launch_folder import LaunchFolder
from skerry_regions.process.startup import on_thread, stop_on_signals, unless
from skerry_regions.process.supervisor import FirstStartFailed
from skerry_regions.spec_types import console_mode
from skerry_regions.topology.spec import Topology, WarmUp

NamesModel = TypeVar("NamesModel", PoolSpec, WarmUp)

logger = logging.getLogger(__name__)


def serve_topology(path: Path, home: Home, control: str, reporter: StartReporter) -> None:
    """Start what the file describes, or adopt it, and keep it alive until SIGINT or SIGTERM.

    Raises `CannotStart`, or `Interrupted` when the signal comes before all are ready.
    """
    topology, manifest = _load(path), read_wanted(path)  # before downloads, in which it may change
    installed = asyncio.run(_install(topology, home, reporter))
    for each in installed.left_out:
        logger.error("%s", sentence(each))
    announce(home, Instance(os.getpid(), control, topology=True))
    starting = TopologyStart(topology, installed, home, control, reporter)
    wanted = named(manifest, installed.catalog)
    try:
        adopt_fleet(home)
        with control_listener(home) as listener:
            embed_control(wanted, home, listener, starting.run, starting.progress)
    except FirstStartFailed as error:
        raise CannotStart(str(error)) from None
    finally:
        if not any(LaunchFolder.of_control(home.root).running()):
            forget_processes(home)


def _load(path: Path) -> Topology:
    topology = read_topology(path)
    if not topology.edges:
        raise CannotStart(f"{path}: `edges` is empty: no one could reach the nodes")
    return topology


async def _install(topology: Topology, home: Home, reporter: StartReporter) -> Installation:
    """Return models whose files are here. Raises `CannotStart`, or `Interrupted`."""
    stop = stop_on_signals()
    names = list(dict.fromkeys(pool.model for pool in topology.pools))
    installing = on_thread(lambda: openable(install_models(names, home, reporter.progress)))
    return await unless(stop, installing)


def named(wanted: Manifest, catalog: Catalog) -> Manifest:
    """Return it with each model by its one id."""

    def resolved(entries: tuple[NamesModel, ...]) -> tuple[NamesModel, ...]:
        return tuple(
            structs.replace(each, model=each.model and catalog.resolve(each.model).id)
            for each in entries
        )

    return structs.replace(wanted, pools=resolved(wanted.pools), warm_up=resolved(wanted.warm_up))


class TopologyStart:
    """What `skerry up` does beside its control plane: it waits, reports, and answers `status`."""

    def __init__(
        self,
        topology: Topology,
        installed: Installation,
        home: Home,
        control: str,
        reporter: StartReporter,
    ) -> None:
        self._topology = topology
        self._installed = installed
        self._home = home
        self._control = control
        self._reporter = reporter
        self._is_ready = False

    def progress(self, what: str, share: float) -> None:
        """Report what processes do before all are ready; none waits for what comes later."""
        if not self._is_ready:
            self._reporter.progress(what, share)

    async def run(self, embedded: EmbeddedControl) -> None:
        """Go on until cancelled. Raises FirstStartFailed, or `Interrupted`."""
        home, left_out = self._home, self._installed.left_out
        reconciler = embedded.reconciler
        await unless(embedded.stop, asyncio.ensure_future(embedded.first_start.wait()))
        status = TopologyStatus(self._topology, home, reconciler, embedded.registry, left_out)
        notes = [away] if (away := await status.registry_trouble()) else []
        for note in notes:
            logger.error("%s", note)
        first = status.edges()[0]
        config = await asyncio.to_thread(
            lambda: credentials(home, embedded.tokens, first.url, control_url=embedded.url)
        )
        async with answer_status(self._control, status):
            started = Instance(os.getpid(), self._control, topology=True)
            announce(home, structs.replace(started, ready=True, url=config.url))
            specs = [model.spec for model in self._installed.models]
            self._is_ready = True
            mode = console_mode(self._topology.edges[0].console)
            console = console_address(home, config, first.id, mode)
            self._reporter.ready(ready_report(config, specs, left_out, notes, console=console))
            await asyncio.Event().wait()
