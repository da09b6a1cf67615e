"""The composition root: the one place that knows every part and puts them together.

    catalog ─▶ store ─▶ files ─┬─▶ runner ─▶ Engine ─▶ Worker ─▶ Node ─▶ LocalRegion ─┐
                               └─▶ TextModel ─────────────────────────────────────────┴─▶ Edge

Models are loaded on one thread while another imports the web half. Only `skerry up` imports this.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec
import uvloop

from skerry.runners import FloatsForm, RunnerName
from skerry_cli.composition.assembly import ServedModels, assembled
from skerry_cli.composition.control_child import control_listener, control_plane
from skerry_cli.composition.listening import Front, Where
from skerry_cli.composition.loading import NODE_ID, load_models
from skerry_cli.home.console_address import console_address
from skerry_cli.home.control import (
    EdgeStatus,
    EngineFigures,
    NodeStatus,
    Status,
    answer_status,
)
from skerry_cli.home.instance import Instance, announce
from skerry_cli.home.parts import credentials, install_models, reachable, sentence, url_of
from skerry_cli.home.shared.settings import shared_settings, token_store
from skerry_cli.home.state import Config, Home
from skerry_cli.report import StartReporter, ready_report
from skerry_cli.tables import short_model
from skerry_edge.api.app import create_app
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.limits import Limits
from skerry_edge.telemetry.metrics import EdgeMetrics
from skerry_regions.models.problems import LeftOut
from skerry_regions.node.engines import EngineOptions
from skerry_regions.node.grammar.grammars import grammars_of
from skerry_regions.node.kv_sweep import sweeping
from skerry_regions.node.node import Node
from skerry_regions.node.reporting import work_of
from skerry_regions.node.watchdog import Watchdog
from skerry_regions.process.loop_watch import LoopWatch
from skerry_regions.process.startup import on_thread, stop_on_signals, unless
from skerry_regions.region.local import LocalRegion
from skerry_regions.region.region_figures import SeenFleet, SeenNode, SeenRegion
from skerry_regions.spec_types import ConsoleMode

logger = logging.getLogger(__name__)

REGION = "local"
EDGE_ID = "edge-1"
LAST_WORDS_SECONDS = 0.2  # in which streams that have failed are sent so


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `skerry up` was given."""

    where: Where
    models: tuple[str, ...]  # ids or aliases; empty: the catalog's first
    threads: int  # of each model
    memory: int | None  # bytes for weights and KV of all models
    kv_tokens: int | None  # tokens of KV of each model
    file_tier: int  # bytes of disk for KV of each model; 0: none
    runner: RunnerName
    engine: EngineOptions  # of each model, but for blocks
    console: ConsoleMode = "loopback"
    floats: FloatsForm | None = None  # what a weight file's floats are kept in


Restart = Callable[[int], None]
"""Restarts the process, at the port that it is given. Does not return."""


def serve_platform(
    options: UpOptions, home: Home, control: str, reporter: StartReporter, restart: Restart
) -> None:
    """Load the models and serve them until SIGINT or SIGTERM.

    When an engine crashes or hangs, `restart` is called. Raises `CannotStart`, or `Interrupted`
    when the signal comes before anything is served.
    """
    with shared_settings(home, os.environ, EDGE_ID, serves=True) as settings:
        tokens = token_store(home, settings)
        uvloop.run(_serve(options, home, tokens, control, reporter, restart))


async def _serve(
    options: UpOptions,
    home: Home,
    tokens: TokenStore,
    control: str,
    reporter: StartReporter,
    restart: Restart,
) -> None:
    stop = stop_on_signals()
    installing = on_thread(lambda: install_models(options.models, home, reporter.progress))
    with Front.open(options.where, Limits()) as front, control_listener(home) as control_socket:
        installed = await unless(stop, installing)
        opening = on_thread(lambda: load_models(installed.models, options, home, reporter))
        offer = await ServedModels.load(installed, stop)
        loaded = await unless(stop, opening)
        offer = offer.without(loaded.left_out)
        for each in offer.left_out:
            logger.error("%s", sentence(each))
        node = Node(id=NODE_ID, region=REGION, loop=asyncio.get_running_loop(), reports=False)
        for model in offer.models:
            id = model.spec.id
            if model.spec.is_encoder:
                node.serve_encoder(id, loaded.encoders[id])
            else:
                engine = loaded.engines[id]
                node.serve(id, engine, grammars_of(model.files, engine))
        port = reachable(front.listener)[1]
        watchdog = Watchdog(node, _when_lost(restart, port))
        metrics = EdgeMetrics(
            models=(*offer.texts, *offer.encoders),
            engines=node.metrics.families,
            home=home.root,
            ends=lambda: front.certificate_ends(EDGE_ID),
        )
        loop_watch = LoopWatch(metrics.loop_late.observe, hung=partial(restart, port))
        config = credentials(home, tokens, front.url(), control_url=url_of(control_socket))

        def ready() -> None:
            announce(home, Instance(os.getpid(), control, ready=True, url=config.url))
            console = console_address(home, config, EDGE_ID, options.console)
            reporter.ready(ready_report(config, offer.specs, offer.left_out, console=console))

        try:
            async with (
                sweeping(home.root),
                assembled(
                    offer,
                    front,
                    LocalRegion(node),
                    home,
                    id=EDGE_ID,
                    region=REGION,
                    tokens=tokens,
                    metrics=metrics,
                    console=options.console,
                    fleet=partial(seen_node, node),
                    is_ending=stop.is_set,
                    ailment=lambda: watchdog.ailment,
                ) as edge,
                answer_status(control, partial(status_of, node, config, offer.left_out)),
                control_plane(home, control_socket),
            ):
                await front.serve(create_app(edge), stop=stop, ready=ready)
        finally:
            loop_watch.close()
            await watchdog.close()
            await node.close()


async def status_of(node: Node, config: Config, left_out: list[LeftOut]) -> Status:
    """Return that of everything that runs in this process."""
    edge = EdgeStatus(id=EDGE_ID, pid=os.getpid(), url=config.url, region=REGION)
    statistics = node.statistics()
    nodes = [
        NodeStatus(
            id=model.node,
            pid=model.pid,
            role=model.role,
            region=model.region,
            model=model.model,
            state=model.state,
            streams=model.streams,
            engine=(
                msgspec.convert(statistics[model.model], EngineFigures, from_attributes=True)
                if model.model in statistics
                else None
            ),
        )
        for model in node.status()
    ]
    return Status(
        url=config.url,
        edges=[edge],
        nodes=nodes,
        notes=[sentence(each) for each in left_out],
        left_out=left_out,
    )


def seen_node(node: Node) -> SeenFleet:
    """Return the one node of this process, as an edge elsewhere would see it: a row a model."""
    figures = node.statistics()
    rows = [
        SeenNode(
            id=f"{each.node} {short_model(each.model)}",
            region=each.region,
            role=each.role,
            model=each.model,
            state=each.state,
            streams=each.streams,
            work=None if each.model not in figures else work_of(figures[each.model]),
        )
        for each in node.status()
    ]
    here = SeenRegion(name=REGION, rtt=0.0, nodes=len(rows))
    return SeenFleet(region=REGION, regions=[here], nodes=rows)


def _when_lost(restart: Restart, port: int) -> Callable[[str], None]:
    """Restart the whole process: an engine that hangs cannot be stopped."""
    loop = asyncio.get_running_loop()

    def lost(reason: str) -> None:
        logger.critical("starting again: %s", reason)
        loop.call_later(LAST_WORDS_SECONDS, restart, port)

    return lost
