"""The composition root: the one place that knows every part and puts them together.

    catalog ─▶ store ─▶ files ─┬─▶ runner ─▶ Engine ─▶ Worker ─▶ Node ─▶ LocalRegion ─┐
                               └─▶ TextModel ─────────────────────────────────────────┴─▶ Edge

Models are loaded on one thread while another imports the web half. Only `skerry up` imports this.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from skerry_cli.composition.configured import configured, open_certificate
from skerry_cli.composition.control_child import control_listener, control_plane
from skerry_cli.composition.exporting import exporting
from skerry_cli.home.control import EdgeStatus, NodeStatus, Status, answer_status
from skerry_cli.home.memory import MemoryTooSmall, Need, plan_blocks
from skerry_cli.home.parts import (
    CannotStart,
    Model,
    cors_origins,
    credentials,
    install_models,
    listen_at,
    load_encoder_texts,
    load_texts,
    open_batches,
    open_stores,
    reachable,
    url_of,
)
from skerry_cli.home.state import Config, Home, Instance, announce, secret
from skerry_cli.logs import logs_prompts
from skerry_cli.report import Reporter
from skerry_core.config import ConfigError, KVFormat
from skerry_core.encoder.encoder import Encoder
from skerry_core.engine.engine import Engine
from skerry_core.weights.file import WeightFile, WeightsError
from skerry_edge.api.app import create_app
from skerry_edge.gate.auth import TokenStore
from skerry_edge.generation.edge import Edge
from skerry_edge.http.server import serve
from skerry_edge.ledger.responses_store import ResponseStore
from skerry_edge.limits import Limits
from skerry_edge.telemetry.trace_store import TraceStore
from skerry_regions.node.engines import FileTierOptions, RunnerKind, open_encoder, open_engine
from skerry_regions.node.grammar.grammars import grammars_of
from skerry_regions.node.node import Node
from skerry_regions.node.watchdog import Watchdog
from skerry_regions.process.startup import on_thread, stop_on_signals, unless
from skerry_regions.region.local import LocalRegion

logger = logging.getLogger(__name__)

REGION = "local"
EDGE_ID = "edge-1"
NODE_ID = "node-1"
LAST_WORDS_SECONDS = 0.2  # in which streams that have failed are told so


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `skerry up` was asked for."""

    host: str
    port: int  # 0: a free one
    models: tuple[str, ...]  # ids or aliases; empty: the catalog's first
    threads: int  # of each model
    memory: int | None  # bytes for weights and KV of all models
    kv_tokens: int | None  # tokens of KV of each model
    file_tier: int  # bytes of disk for KV of each model; 0: none
    runner: RunnerKind
    tls: tuple[Path, Path] | None = None  # certificate and key


@dataclass(frozen=True, slots=True)
class Platform:
    """Everything that runs in this process."""

    node: Node
    config: Config  # its URL, account and token

    def status(self) -> Status:
        edge = EdgeStatus(id=EDGE_ID, pid=os.getpid(), url=self.config.url, region=REGION)
        nodes = [
            NodeStatus(
                id=model.node,
                pid=model.pid,
                role=model.role,
                region=model.region,
                model=model.model,
                state=model.state,
                streams=model.streams,
            )
            for model in self.node.status()
        ]
        return Status(url=self.config.url, edges=[edge], nodes=nodes)


Restart = Callable[[int], None]
"""Begins the process anew, at the port that it is given. Does not return."""


def serve_platform(
    options: Options, home: Home, control: str, reporter: Reporter, restart: Restart
) -> None:
    """Load the models and serve them until SIGINT or SIGTERM.

    When an engine crashes or hangs, `restart` is called. Raises `CannotStart`, or `Interrupted`
    when the signal comes before anything is served.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options, home, control, reporter, restart))


async def _serve(
    options: Options, home: Home, control: str, reporter: Reporter, restart: Restart
) -> None:
    stop = stop_on_signals()
    installing = on_thread(lambda: install_models(options.models, home, reporter.progress))
    limits = Limits()
    certificate = None if options.tls is None else open_certificate(*options.tls)
    # First of all, so that a taken port is told at once.
    with (
        listen_at(options.host, options.port, limits) as listener,
        control_listener(home) as control_socket,
    ):
        catalog, models = await unless(stop, installing)
        loading = on_thread(lambda: load_engines(models, options, home, reporter))
        texts = await unless(stop, on_thread(lambda: load_texts(models)))
        encoder_texts = await unless(stop, on_thread(lambda: load_encoder_texts(models)))
        engines = await unless(stop, loading)
        encoders = await unless(stop, on_thread(lambda: open_encoders(models, options, home)))
        node = Node(id=NODE_ID, region=REGION, loop=asyncio.get_running_loop())
        for model, engine in engines.items():
            files = next(each.files for each in models if each.spec.id == model)
            node.serve(model, engine, grammars_of(files, engine))
        for model, encoder in encoders.items():
            node.serve_encoder(model, encoder)
        watchdog = Watchdog(node, _when_lost(restart, reachable(listener)[1]))
        tokens = TokenStore(home.tokens)
        config = credentials(
            home,
            tokens,
            url_of(listener, tls=certificate is not None),
            control_url=url_of(control_socket),
        )
        platform = Platform(node, config)
        edge = Edge(
            catalog=catalog,
            texts=texts,
            encoders=encoder_texts,
            region=LocalRegion(node),
            tokens=tokens,
            secret=secret(home),
            limits=limits,
            responses=ResponseStore(home.responses),
            batches=open_batches(home),
            stores=open_stores(home, EDGE_ID),
            cors_origins=cors_origins(),
            ailment=lambda: watchdog.ailment,
            traces=TraceStore(EDGE_ID),
            log_prompts=logs_prompts(),
        )
        edge.metrics.engines = node.metrics.families
        instance = Instance(pid=os.getpid(), control=control, ready=True, url=platform.config.url)
        report = {
            "url": platform.config.url,
            "account_id": platform.config.account_id,
            "api_token": platform.config.api_token,
            "models": [*engines, *encoders],
        }

        def ready(host: str, port: int) -> None:
            announce(home, instance)
            reporter.ready(report)
            gc.collect()
            gc.freeze()  # what is loaded stays: later collections need not look at it

        try:
            async with (
                exporting(EDGE_ID, REGION) as export,
                configured(home, catalog, tokens, limits, certificate=certificate) as admission,
                answer_status(control, platform.status),
                control_plane(home, control_socket),
            ):
                app = create_app(replace(edge, admission=admission, export=export))
                await serve(
                    app,
                    listener=listener,
                    limits=limits,
                    ready=ready,
                    stop=stop,
                    ssl_context=None if certificate is None else certificate.context,
                )
        finally:
            await watchdog.close()
            await node.close()


def _when_lost(restart: Restart, port: int) -> Callable[[str], None]:
    """An engine that hangs cannot be stopped, so the whole process begins anew."""
    loop = asyncio.get_running_loop()

    def lost(reason: str) -> None:
        logger.critical("beginning anew: %s", reason)
        loop.call_later(LAST_WORDS_SECONDS, restart, port)

    return lost


# --- loading, on threads -------------------------------------------------------------------------


def load_engines(
    models: list[Model], options: Options, home: Home, reporter: Reporter
) -> dict[str, Engine]:
    """Engines by model id, kernels compiled, of models that make text. Raises `CannotStart`."""
    engines: dict[str, Engine] = {}
    models = [model for model in models if not model.spec.is_encoder]
    file_tiers = _file_tiers(models, options, home)
    try:
        for model, num_blocks in zip(models, _plan(models, options), strict=True):
            engines[model.spec.id] = open_engine(
                model.spec,
                model.files,
                runner=options.runner,
                num_blocks=num_blocks,
                threads=options.threads,
                cache_dir=home.cache,
                file_tier=file_tiers.get(model.spec.id),
                progress=reporter.progress,
            )
    except (ConfigError, MemoryTooSmall, WeightsError) as error:
        raise CannotStart(str(error)) from None
    return engines


def open_encoders(models: list[Model], options: Options, home: Home) -> dict[str, Encoder]:
    """Encoders by model id; each takes memory when it is first asked. Raises `CannotStart`."""
    try:
        return {
            model.spec.id: open_encoder(
                model.spec, model.files, threads=options.threads, cache_dir=home.cache
            )
            for model in models
            if model.spec.is_encoder
        }
    except (ConfigError, WeightsError) as error:
        raise CannotStart(str(error)) from None


def _file_tiers(models: list[Model], options: Options, home: Home) -> dict[str, FileTierOptions]:
    """A file for each model; files of models that are no longer served are removed."""
    tiers = {}
    if options.file_tier:
        for model in models:
            name = hashlib.blake2b(model.spec.id.encode(), digest_size=8).hexdigest()
            path = home.cache / "kv" / f"{NODE_ID}-{name}"
            tiers[model.spec.id] = FileTierOptions(path, options.file_tier)
    kept = {tier.path for tier in tiers.values()}
    for path in (home.cache / "kv").glob(f"{NODE_ID}-*"):
        if path not in kept:
            path.unlink()
    return tiers


def _plan(models: list[Model], options: Options) -> list[int]:
    needs = [
        Need(model=model.spec.id, weights=model.spec.size, block=_block_bytes(model))
        for model in models
    ]
    return plan_blocks(needs, memory=options.memory, kv_tokens=options.kv_tokens)


def _block_bytes(model: Model) -> int:
    with WeightFile.open(model.files.weights) as weights:
        config = weights.config
    return KVFormat(
        num_layers=config.num_layers, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim
    ).block_bytes
