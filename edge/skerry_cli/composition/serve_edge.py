"""The process behind `skerry edge`: text here, tokens over connections to nodes.

registry ─▶ Directory ─▶ NodeLinks ─▶ RemoteRegion ─┐
store ─▶ files ─▶ TextModel ────────────────────────┴─▶ Edge
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import uvloop
from msgspec.structs import replace

from skerry_cli.composition.configured import configured, open_certificate
from skerry_cli.composition.exporting import exporting
from skerry_cli.composition.serve_gateway import gateway
from skerry_cli.composition.steering import lingering, open_steering
from skerry_cli.home.parts import (
    Model,
    cors_origins,
    install_models,
    listen_at,
    load_encoder_texts,
    load_texts,
    open_batches,
    open_stores,
    read_topology,
    url_of,
)
from skerry_cli.home.state import Home, cluster_key, secret
from skerry_cli.logs import logs_prompts
from skerry_cli.output import note
from skerry_cli.report import Lines
from skerry_edge.api.app import create_app
from skerry_edge.api.load_report import EdgePulse
from skerry_edge.gate.auth import TokenStore
from skerry_edge.gate.steering import Steering
from skerry_edge.gate.waiting_room import WaitingRoom
from skerry_edge.generation.edge import Edge
from skerry_edge.http.server import serve
from skerry_edge.ledger.responses_store import ResponseStore
from skerry_edge.limits import Limits
from skerry_edge.telemetry.metrics import EdgeMetrics
from skerry_edge.telemetry.trace_store import TraceStore
from skerry_regions.address import Address
from skerry_regions.node.announcer import Announcer, new_incarnation
from skerry_regions.process.emulation import through_relays
from skerry_regions.process.lifeline import Lifeline
from skerry_regions.process.startup import from_threads, on_thread, stop_on_signals, unless
from skerry_regions.region.directory import Directory, directly
from skerry_regions.region.placer import Routed
from skerry_regions.region.plain_placers import Rule, by_rule
from skerry_regions.region.region_figures import queue_seconds, region_rtts
from skerry_regions.region.remote import RemoteRegion
from skerry_regions.registry import Member, Registry
from skerry_regions.wire.client import RegionClient
from skerry_regions.wire.link_auth import LinkKey
from skerry_regions.wire.protocol import PROTOCOL_VERSION, Hello, ModelBuild

NODE_SECONDS = 10.0  # to find a node for every model; after that it serves what there is


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeOptions:
    """What an edge is asked to be."""

    id: str
    region: str
    tls: tuple[Path, Path] | None = None  # certificate and key
    zone: str  # of residency
    models: tuple[str, ...]  # ids or aliases
    host: str
    port: int  # 0: a free one
    gateway: str = ""  # address for other regions' edges
    placement: Rule = "cost"
    holds: bool = False  # requests for models without a node, until there is one
    listener: int | None  # descriptor of a socket that listens already, instead of host and port
    lifeline: int | None  # descriptor that a supervisor gave us
    topology: Path | None = None  # whose links are what to assume of paths
    advertise: str = ""  # host where others reach it; empty: where it listens


def serve_edge(
    options: EdgeOptions,
    home: Home,
    registry: Registry,
    started: Callable[[Callable[[], None]], None] = lambda stop: None,
    told_to_stop: Callable[[], None] = lambda: None,
) -> None:
    """Run the edge until it is told to stop, then drain; the registry is closed.

    `started` is given what has the edge take nothing new and end with its last stream, from any
    thread; `told_to_stop` is called when a signal ends it. Raises `CannotStart`, or `Interrupted`
    (stopped before it served).
    """
    with contextlib.closing(registry), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options, home, registry, started, told_to_stop))


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
    lifeline = None
    if options.lifeline is not None:
        lifeline = Lifeline(options.lifeline)
        lifeline.watch(stop.set)
    progress = Lines().show if lifeline is None else lifeline.progress
    topology = None if options.topology is None else read_topology(options.topology)
    limits = Limits()
    certificate = None if options.tls is None else open_certificate(*options.tls)
    with _listener(options, limits) as listener:
        url = url_of(listener, tls=certificate is not None, host=options.advertise)
        installing = on_thread(lambda: install_models(options.models, home, progress))
        catalog, models = await unless(stop, installing)
        texts = await unless(stop, on_thread(lambda: load_texts(models)))
        encoders = await unless(stop, on_thread(lambda: load_encoder_texts(models)))
        hello, incarnation = _hello(options.id, models), new_incarnation()
        key = LinkKey(cluster_key(home))
        is_emulated = topology is not None and topology.emulate is not None
        directory = Directory(
            registry,
            hello,
            region=options.region,
            reach=through_relays if is_emulated else directly,
            key=key,
        )
        model_keys = {model.spec.id: model.files.model_key for model in models}
        links = {} if topology is None else topology.link_priors()
        placer = Routed(directory, options.region, model_keys, Random(), links=links)
        stack = contextlib.AsyncExitStack()
        try:
            address = await stack.enter_async_context(
                gateway(options.gateway, hello, options.zone, incarnation, directory, placer, key)
            )
            if address:
                address = str(Address.parse(address).advertised(options.advertise))
            region: RegionClient = RemoteRegion(
                directory.links, by_rule(options.placement, placer, directory)
            )
            metrics, waiting, serving = EdgeMetrics(), None, asyncio.Event()
            if options.holds:
                region = waiting = WaitingRoom(region)
            pulse = EdgePulse(metrics, waiting, time.monotonic)
            steering = open_steering(
                topology,
                home,
                id=options.id,
                region=options.region,
                zone=options.zone,
                members=lambda: directory.edges,
            )
            describe = _describe(options, url, address, incarnation, serving, pulse, steering)
            announcer = Announcer(registry, describe)
            stack.push_async_callback(announcer.withdraw)
            if not options.holds:
                await _find_nodes(directory, frozenset({*texts, *encoders}), stop)
            tokens = TokenStore(home.tokens)
            admission = await stack.enter_async_context(
                configured(
                    home,
                    catalog,
                    tokens,
                    limits,
                    edges=lambda: directory.num_edges,
                    certificate=certificate,
                )
            )
            export = await stack.enter_async_context(exporting(options.id, options.region))
            edge = Edge(
                catalog=catalog,
                texts=texts,
                encoders=encoders,
                region=region,
                residency=options.zone,
                tokens=tokens,
                admission=admission,
                secret=secret(home),
                limits=limits,
                responses=ResponseStore(home.responses),
                batches=open_batches(home),
                stores=open_stores(home, options.id),
                cors_origins=cors_origins(),
                traces=TraceStore(options.id),
                export=export,
                log_prompts=logs_prompts(),
                metrics=metrics,
                steering=steering,
            )
            edge.metrics.node_rtts = directory.rtts
            edge.metrics.region_rtts = functools.partial(region_rtts, directory)
            edge.metrics.region_queue = lambda: {options.region: queue_seconds(placer, model_keys)}

            def ready(host: str, port: int) -> None:
                serving.set()
                announcer.announce_now()
                if lifeline is None:
                    note(f"Edge {options.id} is ready at {url}.")
                else:
                    lifeline.ready({"url": url})
                gc.collect()
                gc.freeze()  # what is loaded stays: later collections need not look at it

            await serve(
                create_app(edge),
                listener=listener,
                limits=limits,
                ready=ready,
                stop=stop,
                retire=retire,
                ssl_context=None if certificate is None else certificate.context,
                linger=None if steering is None else lingering(steering, announcer),
            )
        finally:
            await stack.aclose()
            await directory.close()


@contextlib.contextmanager
def _listener(options: EdgeOptions, limits: Limits) -> Generator[socket.socket]:
    """The socket that a supervisor keeps open for us, or one of our own. Raises `CannotStart`."""
    if options.listener is not None:
        listener = socket.socket(fileno=options.listener)
    else:
        listener = listen_at(options.host, options.port, limits)
    with listener:
        yield listener


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


def _hello(id: str, models: list[Model]) -> Hello:
    builds = [
        ModelBuild(
            id=model.spec.id,
            tokenizer=model.files.tokenizer_digest,
            template=model.files.template_digest,
        )
        for model in models
    ]
    return Hello(versions=[PROTOCOL_VERSION], id=id, models=builds)


def _describe(
    options: EdgeOptions,
    url: str,
    gateway: str,
    incarnation: int,
    serving: asyncio.Event,
    pulse: EdgePulse,
    steering: Steering | None,
) -> Callable[[], Member]:
    member = Member(
        id=options.id,
        kind="edge",
        region=options.region,
        residency=options.zone,
        pid=os.getpid(),
        incarnation=incarnation,
        address=url,
        gateway=gateway,
        state="starting",
    )

    def describe() -> Member:
        if steering is not None and steering.is_draining:
            return pulse.of(replace(member, state="draining"))
        return pulse.of(replace(member, state="ready") if serving.is_set() else member)

    return describe
