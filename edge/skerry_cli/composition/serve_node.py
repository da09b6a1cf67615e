"""The processes behind `skerry node`, `skerry host` and `skerry stage`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass

import uvloop
from msgspec.structs import replace

from skerry_cli.composition.prompts import tokenize
from skerry_cli.composition.starter import Starter
from skerry_cli.home.control_home import ControlRunning, claim_control
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.machine import keep_freed_memory
from skerry_cli.home.shared_state import open_registry
from skerry_cli.home.state import Home
from skerry_cli.output import note
from skerry_regions.address import Address
from skerry_regions.control.machines.link import ControlLink
from skerry_regions.control.machines.messages import HostOrders, HostReport
from skerry_regions.control.reconcile.host_agent import HostAgent
from skerry_regions.control.reconcile.models import ModelBook
from skerry_regions.control.reconcile.processes import ProcessLauncher
from skerry_regions.models.catalog import CatalogError
from skerry_regions.node.process import NodeOptions, NodeProcess
from skerry_regions.node.ranks.stage_server import StageServer
from skerry_regions.process.launch_folder import LaunchFolder, Slot
from skerry_regions.process.local_launcher import Deposed
from skerry_regions.process.startup import from_threads, stop_on_signals
from skerry_regions.registry import Registry, RegistryUnavailable
from skerry_regions.wire.link_auth import LinkCredentials


def serve_node(
    options: NodeOptions,
    registry: Registry,
    lifeline: int | None,
    started: Callable[[Callable[[], None]], None] = lambda stop: None,
    told_to_stop: Callable[[], None] = lambda: None,
) -> None:
    """Run the node until it is to stop. Raises what `NodeProcess.run` raises.

    `lifeline` is the descriptor that a supervisor gave us; without one, progress goes to stderr.
    `started` is given what stops the node from any thread, as SIGTERM does; `told_to_stop` is
    called when a signal does.
    """
    keep_freed_memory()
    uvloop.run(_serve(options, registry, lifeline, started, told_to_stop))


async def _serve(
    options: NodeOptions,
    registry: Registry,
    descriptor: int | None,
    started: Callable[[Callable[[], None]], None],
    told_to_stop: Callable[[], None],
) -> None:
    stop = stop_on_signals(told_to_stop)
    started(from_threads(stop.set))
    process = NodeProcess(options, registry, stop, tokenize)
    starter = Starter(descriptor)
    await process.run(
        progress=starter.progress,
        ready=lambda member: starter.ready(
            f"Node {member.id} is ready at {member.address}.", address=member.address
        ),
    )


# --- a host ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """What a host offers, and where its nodes are reached."""

    offers: Slot
    host: str  # where they listen …
    port: int  # … and at which port; 0: at free ones
    advertise: str  # where others reach them; empty: there


def serve_host(options: HostOptions, home: Home, link: ControlLink) -> None:
    """Run nodes as the control plane orders, until this is to stop. Raises `CannotStart`."""
    try:
        with (
            claim_control(home),  # two launchers of one home would end each other's processes
            contextlib.closing(link),
        ):
            uvloop.run(_serve_host(options, home, link))
    except ControlRunning:
        raise CannotStart(f"another host or control plane runs in {home.root}") from None
    except (CatalogError, Deposed, RegistryUnavailable, OSError) as error:
        raise CannotStart(str(error)) from None


async def _serve_host(options: HostOptions, home: Home, link: ControlLink) -> None:
    stop, wake = stop_on_signals(), asyncio.Event()
    term = LaunchFolder.of_control(home.root).term
    async with contextlib.AsyncExitStack() as stack:
        registry = stack.enter_context(contextlib.closing(open_registry(home, os.environ)))
        models = ModelBook(home.root, wake.set)
        stack.push_async_callback(models.close)
        launcher = ProcessLauncher(
            home.root,
            registry,
            term=term,
            cores=options.offers.cpus,
            environ=os.environ,
            changed=wake.set,
            host=options.host,
            port=options.port,
            advertise=options.advertise,
        )
        stack.push_async_callback(launcher.close)
        agent = HostAgent(
            functools.partial(_call, link),
            launcher,
            models,
            options.offers,
            term=term,
            wake=wake,
            heard=lambda: note(f"The host {link.machine} is ready: {_written(options.offers)}."),
        )
        await agent.run(stop)


def _call(link: ControlLink, report: HostReport) -> HostOrders:
    known = replace(report, revocations=link.revocations)
    orders = link.call("POST", "/host", HostOrders, known)
    link.shut_out(orders.revocations)
    return orders


def _written(offers: Slot) -> str:
    memory = f"{offers.memory / (1 << 30):.1f} GiB"
    return f"it offers {offers.cpus} CPUs, {memory} and {len(offers.gpus)} GPUs"


# --- a machine that serves stages -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptions:
    """Where stages are served, how many at once, and by which command but for the connection."""

    address: Address
    most: int
    command: tuple[str, ...]


def serve_stages(options: StageOptions, credentials: LinkCredentials) -> None:
    """Serve until this is to stop. Raises `CannotStart` or AddressError."""
    uvloop.run(_serve_stages(options, credentials))


async def _serve_stages(options: StageOptions, credentials: LinkCredentials) -> None:
    stop = stop_on_signals()
    server = StageServer(
        lambda connection: [*options.command, "--connection-fd", str(connection)],
        most=options.most,
    )
    async with credentials.following():
        try:
            at = await server.listen(options.address, credentials)
        except OSError as error:
            raise CannotStart(f"cannot listen: {error}") from None
        note(f"Stages are served at {at}, {options.most} at once.".replace("tcp:", ""))
        await stop.wait()
        await server.close()
