"""The process behind `skerry edge`: text here, tokens over connections to nodes.

registry ─▶ Directory ─▶ NodeLinks ─▶ RemoteRegion ─┐
store ─▶ files ─▶ TextModel ────────────────────────┴─▶ Edge
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import uvloop
from msgspec.structs import replace

from skerry_cli.composition.assembly import ServedModels, assembled
from skerry_cli.composition.listening import Front, Where
from skerry_cli.composition.placed import PlacedMembers
from skerry_cli.composition.routing.index_loader import IndexLoader
from skerry_cli.composition.serve_gateway import gateway
from skerry_cli.composition.starter import Starter
from skerry_cli.composition.steering import lingering, open_steering
from skerry_cli.home.keys import link_credentials
from skerry_cli.home.parts import install_models, read_topology
from skerry_cli.home.state import Home
from skerry_cli.output import note
from skerry_edge.api.app import create_app
from skerry_edge.api.load_report import EdgePulse
from skerry_edge.gate.steering import Steering
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.gate.waiting_room import WaitingRoom
from skerry_edge.http.edge_calls import CallDoor, ZoneCalls
from skerry_edge.limits import Limits
from skerry_edge.telemetry.metrics import EdgeMetrics
from skerry_regions.address import Address
from skerry_regions.known_hosts import host_of
from skerry_regions.models.problems import LeftOut
from skerry_regions.node.announcer import Announcer, new_incarnation
from skerry_regions.process.emulation import through_relays
from skerry_regions.process.loop_watch import LoopWatch
from skerry_regions.process.startup import from_threads, on_thread, stop_on_signals, unless
from skerry_regions.region.cluster_state import ClusterState
from skerry_regions.region.cost_placer import CONFIG, CostPlacer
from skerry_regions.region.directory import Directory, directly
from skerry_regions.region.gateway import edge_links
from skerry_regions.region.known_models import KnownModels
from skerry_regions.region.plain_placers import by_rule
from skerry_regions.region.region_figures import (
    queue_seconds,
    region_report,
    region_rtts,
    seen_fleet,
)
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.registry import Member, Registry
from skerry_regions.spec_types import ConsoleMode, PlacementRule
from skerry_regions.topology.spec import Topology
from skerry_regions.wire.client import RegionClient

NODE_SECONDS = 10.0  # to find a node for every model; after that it serves what there is


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeOptions:
    """What an edge is to be."""

    id: str
    region: str
    zone: str  # of residency
    models: tuple[str, ...]  # ids or aliases
    where: Where
    gateway: str = ""  # address for other regions' edges
    placement: PlacementRule = "cost"
    console: ConsoleMode = "loopback"
    hosts: frozenset[str] = frozenset()  # that it answers to, beside those of the topology
    holds: bool = False  # requests for models without a node, until there is one
    lifeline: int | None  # descriptor that a supervisor gave us
    topology: Path | None = None  # whose links are what to assume of paths
    public_url: str = ""  # that clients are given, where host and port are not it
    advertise: str = ""  # host where others reach it; empty: where it listens
    placed: Path | None = None  # where a supervisor says where it has put nodes and edges
    left_out: tuple[LeftOut, ...] = ()  # that a supervisor could not open


def serve_edge(
    options: EdgeOptions,
    home: Home,
    registry: Registry,
    started: Callable[[Callable[[], None]], None] = lambda stop: None,
    told_to_stop: Callable[[], None] = lambda: None,
) -> None:
    """Run the edge until it is to stop, then drain; the registry is closed.

    `started` is given what has the edge take nothing new and end with its last stream, from any
    thread; `told_to_stop` is called when a signal ends it. Raises `CannotStart`, or `Interrupted`
    (stopped before it served).
    """
    with contextlib.closing(registry):
        uvloop.run(_serve(options, home, registry, started, told_to_stop))


async def _serve(
    options: EdgeOptions,
    home: Home,
    registry: Registry,
    started: Callable[[Callable[[], None]], None],
    told_to_stop: Callable[[], None],
) -> None:
    stop, retire = stop_on_signals(told_to_stop), asyncio.Event()
    started(from_threads(retire.set))
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, retire.set)
    starter = Starter(options.lifeline)
    topology = None if options.topology is None else read_topology(options.topology)
    async with contextlib.AsyncExitStack() as stack:
        front = stack.enter_context(Front.open(options.where, Limits()))
        url = front.url(options.advertise)
        installing = on_thread(lambda: install_models(options.models, home, starter.progress))
        offer = await ServedModels.load(await unless(stop, installing), stop)
        offer = offer.without(options.left_out)
        hello, incarnation = offer.hello(options.id), new_incarnation()
        credentials = link_credentials(home, os.environ)
        await stack.enter_async_context(credentials.following())
        is_emulated = topology is not None and topology.emulate is not None
        links = {} if topology is None else topology.link_priors()
        state = ClusterState(options.region, links=links)
        directory = Directory(
            registry,
            hello,
            state,
            region=options.region,
            reach=through_relays if is_emulated else directly,
            credentials=credentials,
            placed=PlacedMembers(options.placed),
        )
        stack.push_async_callback(directory.close)
        model_keys = {model.spec.id: model.files.model_key for model in offer.models}
        placer = CostPlacer(
            directory,
            state,
            model_keys,
            Random(),
            CONFIG if topology is None else replace(CONFIG, candidates=topology.router.candidates),
            IndexLoader(home.cache),
        )
        door = CallDoor()
        address = await stack.enter_async_context(
            gateway(
                options.gateway,
                hello,
                options.zone,
                incarnation,
                directory,
                placer,
                credentials,
                door.answer,
            )
        )
        if address:
            address = str(Address.parse(address).advertised(options.advertise))
        offered = (*offer.texts, *offer.encoders)
        told = offered if options.models and not options.holds else ()
        known = KnownModels(directory.links, home.known_models, offered, told)
        await stack.enter_async_context(known.watching())
        region: RegionClient = RemoteRegion(
            directory.links, by_rule(options.placement, placer, directory), knows=known.knows
        )
        report = partial(region_report, options.region, directory, placer, model_keys)
        metrics = EdgeMetrics(
            models=offered,
            node_rtts=directory.rtts,
            region_rtts=lambda: region_rtts(directory),
            region_queue=lambda: {options.region: queue_seconds(placer, model_keys)},
            model_nodes=known.nodes,
            home=home.root,
            ends=lambda: front.certificate_ends(options.id),
        )
        stack.callback(LoopWatch(metrics.loop_late.observe).close)
        waiting, serving = None, asyncio.Event()
        if options.holds:
            region = waiting = WaitingRoom(
                region,
                is_starting=lambda model: model in directory.starting,
                hold_seconds=lambda: edge.admission.quotas.hold_seconds,
            )
        pulse = EdgePulse(metrics, waiting, time.monotonic)
        steering = open_steering(
            topology,
            home,
            id=options.id,
            region=options.region,
            zone=options.zone,
            members=lambda: directory.edges,
        )
        member = replace(_member(options, url, address, incarnation), machine=credentials.machine)
        describe = _describe(member, serving, pulse, steering)
        announcer = Announcer(registry, describe, replaced=stop.set)
        stack.push_async_callback(announcer.withdraw)
        if not options.holds:
            await _find_nodes(directory, frozenset({*offer.texts, *offer.encoders}), stop)
        edge = await stack.enter_async_context(
            assembled(
                offer,
                front,
                region,
                home,
                id=options.id,
                region=options.region,
                tokens=TokenStore(home.tokens),
                edges=lambda: len(directory.edges),
                hosts=options.hosts | edge_names(topology, options.id),
                residency=options.zone,
                zone_calls=ZoneCalls(partial(edge_links, directory)),
                console=options.console,
                fleet=partial(seen_fleet, directory, state, places_of(topology)),
                is_ending=lambda: stop.is_set() or retire.is_set(),
                metrics=metrics,
                report=report,
                steering=steering,
            )
        )

        def ready() -> None:
            serving.set()
            announcer.announce_now()
            starter.ready(f"Edge {options.id} is ready at {url}.", url=url)

        app = create_app(edge)
        door.open(app)
        await front.serve(
            app,
            stop=stop,
            ready=ready,
            retire=retire,
            linger=None if steering is None else lingering(steering, announcer),
        )


def edge_names(topology: Topology | None, id: str) -> frozenset[str]:
    """Return what a topology says that an edge answers to."""
    edges = () if topology is None else topology.edges
    return frozenset(host_of(host) for edge in edges if edge.name == id for host in edge.hosts)


def places_of(topology: Topology | None) -> dict[str, tuple[float, float]]:
    """Return latitudes and longitudes of a topology's regions, by name."""
    regions = () if topology is None else topology.regions
    return {each.name: each.location for each in regions}


async def _find_nodes(directory: Directory, models: frozenset[str], stop: asyncio.Event) -> None:
    """Wait for a node of each model, but not for ever: the edge can say itself what is missing."""
    finding = asyncio.create_task(directory.wait_until_served(models))
    try:
        async with asyncio.timeout(NODE_SECONDS):
            await unless(stop, finding)
    except TimeoutError:
        note("Some models have no node yet.")
    finally:
        finding.cancel()


def _member(options: EdgeOptions, url: str, gateway: str, incarnation: int) -> Member:
    return Member(
        id=options.id,
        kind="edge",
        region=options.region,
        residency=options.zone,
        pid=os.getpid(),
        incarnation=incarnation,
        address=url,
        public_url=options.public_url,
        gateway=gateway,
        state="starting",
    )


def _describe(
    member: Member, serving: asyncio.Event, pulse: EdgePulse, steering: Steering | None
) -> Callable[[], Member]:
    def describe() -> Member:
        if steering is not None and steering.is_draining:
            return pulse.of(replace(member, state="draining"))
        return pulse.of(replace(member, state="ready") if serving.is_set() else member)

    return describe
