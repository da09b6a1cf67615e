"""The composition root: the one place that knows every part and puts them together.

    catalog ─▶ store ─▶ files ─┬─▶ runner ─▶ Engine ─▶ Worker ─▶ Node ─▶ LocalRegion ─┐
                               └─▶ TextModel ─────────────────────────────────────────┴─▶ Edge

Models are loaded on one thread while another imports the web half. Only `skerry up` imports this.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

import uvloop

from skerry.errors import SkerryError
from skerry_core.config import ConfigError, EngineConfig, KVFormat
from skerry_core.engine import Engine
from skerry_core.runners.base import ModelRunner
from skerry_core.weights import WeightFile, WeightsError
from skerry_edge.app import create_app
from skerry_edge.auth import TokenStore, new_account_id
from skerry_edge.cli.control import EdgeStatus, NodeStatus, Status, answer_status
from skerry_edge.cli.memory import MemoryTooSmall, Need, plan_blocks
from skerry_edge.cli.report import Reporter
from skerry_edge.cli.state import (
    Config,
    Home,
    Instance,
    announce,
    read_config,
    secret,
    write_config,
)
from skerry_edge.edge import Edge
from skerry_edge.limits import Limits
from skerry_edge.server import listen, serve
from skerry_edge.template import TemplateError
from skerry_edge.text import TextModel
from skerry_regions.catalog import Catalog, CatalogError, ModelSpec
from skerry_regions.local import LocalRegion
from skerry_regions.node import Node
from skerry_regions.sources import Hub
from skerry_regions.store import ModelCorrupt, ModelFiles, ModelStore, PullError, UnsupportedModel

REGION = "local"
EDGE_ID = "edge-1"
NODE_ID = "node-1"
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where a wildcard can be reached from here

T = TypeVar("T")


class CannotStart(Exception):
    """The platform cannot start; the message says why and what to do."""


class Interrupted(Exception):
    """A signal came before the platform was ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `skerry up` was asked for."""

    host: str
    port: int  # 0: a free one
    models: tuple[str, ...]  # ids or aliases; empty: the catalog's first
    threads: int  # of each model
    memory: int | None  # bytes for weights and KV of all models
    kv_tokens: int | None  # tokens of KV of each model
    runner: Literal["numba", "toy"]


@dataclass(frozen=True, slots=True)
class Model:
    """A model whose files are here."""

    spec: ModelSpec
    files: ModelFiles


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


def serve_platform(options: Options, home: Home, control: str, reporter: Reporter) -> None:
    """Load the models and serve them until SIGINT or SIGTERM.

    Raises `CannotStart`, or `Interrupted` when the signal comes before anything is served.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options, home, control, reporter))


async def _serve(options: Options, home: Home, control: str, reporter: Reporter) -> None:
    stop = _stop_on_signals()
    installing = _on_thread(lambda: install(options, home, reporter))
    limits = Limits()
    with _listen(options, limits) as listener:  # first of all: a taken port is told at once
        catalog, models = await _unless(stop, installing)
        loading = _on_thread(lambda: load_engines(models, options, home, reporter))
        texts = await _unless(stop, _on_thread(lambda: load_texts(models)))
        engines = await _unless(stop, loading)
        node = Node(id=NODE_ID, region=REGION, loop=asyncio.get_running_loop())
        for model, engine in engines.items():
            node.serve(model, engine)
        tokens = TokenStore(home.tokens)
        platform = Platform(node, credentials(home, tokens, _url(listener)))
        edge = Edge(
            catalog=catalog,
            texts=texts,
            region=LocalRegion(node),
            tokens=tokens,
            secret=secret(home),
            limits=limits,
        )
        instance = Instance(pid=os.getpid(), control=control, ready=True, url=platform.config.url)
        report = {
            "url": platform.config.url,
            "account_id": platform.config.account_id,
            "api_token": platform.config.api_token,
            "models": list(engines),
        }

        def ready(host: str, port: int) -> None:
            announce(home, instance)
            reporter.ready(report)
            gc.collect()
            gc.freeze()  # what is loaded stays: later collections need not look at it

        try:
            async with answer_status(control, platform.status):
                await serve(
                    create_app(edge), listener=listener, limits=limits, ready=ready, stop=stop
                )
        finally:
            await node.close()


def credentials(home: Home, tokens: TokenStore, url: str) -> Config:
    """The account and token of this home, made on first use, written where the SDK reads them."""
    config = read_config(home)
    if config is not None and tokens.authenticate(config.api_token) is not None:
        config = Config(url=url, account_id=config.account_id, api_token=config.api_token)
    else:
        account_id = config.account_id if config is not None else new_account_id()
        token, _ = tokens.create(account_id=account_id, name="skerry up", now=int(time.time()))
        config = Config(url=url, account_id=account_id, api_token=token)
    write_config(home, config)
    return config


# --- the process ---------------------------------------------------------------------------------


def _listen(options: Options, limits: Limits) -> socket.socket:
    try:
        return listen(options.host, options.port, limits)
    except OSError as error:
        hint = "Choose another with --port, or --port 0 for any free one."
        if error.errno != errno.EADDRINUSE:
            hint = "See --host and --port."
        reason = error.strerror or str(error)
        raise CannotStart(
            f"cannot listen on {options.host} port {options.port}: {reason}. {hint}"
        ) from None


def _url(listener: socket.socket) -> str:
    address: tuple[str, int] = listener.getsockname()[:2]
    host, port = LOOPBACK.get(address[0], address[0]), address[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _on_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """The result of `work`, done on a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast(T, result))

    def run() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = (work(), None)
        except BaseException as error:
            outcome = (None, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="skerry-loading", daemon=True).start()
    return future


async def _unless(stop: asyncio.Event, future: asyncio.Future[T]) -> T:
    """The future's result; raises `Interrupted` when `stop` is set before."""
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((future, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise Interrupted
        return future.result()
    finally:
        stopping.cancel()


# --- loading, on threads -------------------------------------------------------------------------


def install(options: Options, home: Home, reporter: Reporter) -> tuple[Catalog, list[Model]]:
    """The models asked for, downloaded where they are missing. Raises `CannotStart`."""
    try:
        catalog = Catalog.load(home.root)
        names = options.models or default_models(catalog)
        specs = {spec.id: spec for spec in map(catalog.resolve, names)}  # each once
        store = ModelStore(home.root, hub=Hub.from_environ(os.environ))
        models = [Model(spec, store.pull(spec, reporter.progress)) for spec in specs.values()]
    except SkerryError as error:
        raise CannotStart(f"{error.message} `skerry models list` shows what there is.") from None
    except (CatalogError, PullError, ModelCorrupt, UnsupportedModel) as error:
        raise CannotStart(str(error)) from None
    return catalog, models


def default_models(catalog: Catalog) -> list[str]:
    """Ids of the first model that comes with Skerry, and of all that the operator added."""
    packaged = [spec.id for spec in Catalog.load()]
    return [spec.id for spec in catalog if spec.id == packaged[0] or spec.id not in packaged]


def load_texts(models: list[Model]) -> dict[str, TextModel]:
    """Tokenizers and chat templates by model id. Raises `CannotStart`."""
    try:
        return {
            model.spec.id: TextModel(model.files, context_window=model.spec.context_window)
            for model in models
        }
    except TemplateError as error:
        raise CannotStart(str(error)) from None


def load_engines(
    models: list[Model], options: Options, home: Home, reporter: Reporter
) -> dict[str, Engine]:
    """Engines by model id, kernels compiled. Raises `CannotStart`."""
    engines: dict[str, Engine] = {}
    try:
        for model, num_blocks in zip(models, _plan(models, options), strict=True):
            runner = _open_runner(model, num_blocks, options, home, reporter)
            runner.warm_up(reporter.progress)
            key = bytes.fromhex(model.files.weights_digest + model.files.tokenizer_digest)
            engines[model.spec.id] = Engine(runner, EngineConfig(), model_key=key)
    except (ConfigError, MemoryTooSmall, WeightsError) as error:
        raise CannotStart(str(error)) from None
    return engines


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


def _open_runner(
    model: Model, num_blocks: int, options: Options, home: Home, reporter: Reporter
) -> ModelRunner:
    if options.runner == "toy":
        from skerry_core.runners.toy import ToyRunner

        return ToyRunner(
            num_blocks=num_blocks,
            vocab_size=model.files.vocab_size,
            max_context=model.spec.context_window,
        )
    from skerry_core.runners.numba_cpu import NumbaRunner

    return NumbaRunner.open(
        model.files.weights,
        num_blocks=num_blocks,
        threads=options.threads,
        cache_dir=home.cache,
        progress=reporter.progress,
    )
