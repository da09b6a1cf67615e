"""One node as a process: load the model, serve it, be known, and go without losing a stream.

starting ──▶ ready ──SIGTERM, POST /drain, supervisor gone──▶ draining ──▶ exit 0
               └──engine crashed──▶ exit 1 (`EngineLost`)
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from skerry.errors import SkerryError
from skerry.runners import FloatsForm, RunnerName
from skerry_core.config import BLOCK_SIZE, ConfigError
from skerry_core.engine.engine import Engine
from skerry_core.ranks import DividedRunner
from skerry_core.runner import Progress
from skerry_core.weights.tensors import WeightsError
from skerry_regions.address import Address, AddressError
from skerry_regions.models.catalog import Catalog, CatalogError, ModelSpec
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.problems import ModelProblem
from skerry_regions.models.store import ModelStore
from skerry_regions.node.announcer import Announcer, new_incarnation
from skerry_regions.node.canary import Canary
from skerry_regions.node.control_api import ControlAPI
from skerry_regions.node.engines import EngineOptions, FileTierOptions, open_encoder, open_engine
from skerry_regions.node.grammar.grammars import grammars_of
from skerry_regions.node.kv_sweep import sweeping
from skerry_regions.node.node import Node
from skerry_regions.node.warm_up import warm_up
from skerry_regions.process.loop_watch import LoopWatch
from skerry_regions.process.pauses import until_set
from skerry_regions.process.startup import on_thread, unless
from skerry_regions.registry import Member, Registry
from skerry_regions.view import Role
from skerry_regions.wire.link_auth import NO_CREDENTIALS, LinkCredentials
from skerry_regions.wire.listener import NodeServer
from skerry_regions.wire.protocol import VERSIONS, Hello, ModelBuild

if TYPE_CHECKING:
    from skerry_core.encoder.encoder import Encoder

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.2  # between looks at the engine: it cannot report its crash by itself
CLOSE_SECONDS = 10.0  # beyond the drain, to let go of everything
EXIT_STUCK = 70  # status of a node that could not end in time


class NodeCannotStart(Exception):
    """The message says why and what to do."""


class EngineLost(Exception):
    """The engine stopped on an error of its own; the log has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What a node is to be."""

    id: str
    incarnation: int = 0  # 0: by its own clock
    region: str
    zone: str  # of residency
    role: Role
    model: str  # catalog id or alias; its files must be installed
    runner: RunnerName
    threads: int
    engine: EngineOptions
    floats: FloatsForm | None = None  # what a weight file's floats are kept in; None: the runner's
    file_tier_bytes: int = 0  # of disk, for KV that memory has no room for; 0: none
    address: Address  # for edges
    transfer: Address  # for KV of other nodes
    advertise: str = ""  # host where others reach both; empty: where they listen
    credentials: LinkCredentials = NO_CREDENTIALS  # of links over TCP
    control: Address  # HTTP, unix or loopback
    home: Path
    drain_seconds: float
    warm_up: tuple[str, ...] = ()  # system prompts to compute before it is ready


Tokenize = Callable[[ModelSpec, ModelFiles, Sequence[str]], list[list[int]]]
"""System prompts to what every conversation with them begins with. May raise SkerryError."""


class NodeProcess:
    """Runs one node from its start to its end. Create it on the event loop that it is to use."""

    def __init__(
        self, options: NodeOptions, registry: Registry, stop: asyncio.Event, tokenize: Tokenize
    ) -> None:
        self._options = options
        self._tokenize = tokenize
        self._registry = registry
        self._stop = stop
        self._node: Node | None = None
        self._server: NodeServer | None = None
        self._member = Member(
            id=options.id, kind="node", region=options.region, residency=options.zone,
            machine=options.credentials.machine,
            pid=os.getpid(),
            incarnation=options.incarnation or new_incarnation(),
            role=options.role,
            runner=options.runner,
            model=options.model,
            state="starting",
        )  # fmt: skip

    def member(self) -> Member:
        """Return the node as it announces itself now."""
        if self._server is None or self._node is None:
            return self._member
        streams, queue = self._server.num_streams, self._node.queue_seconds()
        return replace(self._member, streams=streams, queue_seconds=queue)

    async def run(self, *, progress: Progress, ready: Callable[[Member], None]) -> None:
        """Serve until `stop` is set and the node has drained.

        Raises NodeCannotStart, Interrupted (stopped before it was ready) or EngineLost.
        """
        announcer = Announcer(self._registry, self.member, replaced=self._stop.set)
        try:
            loading = on_thread(lambda: load(self._options, progress))
            spec, files, model = await unless(self._stop, loading)
            async with contextlib.AsyncExitStack() as stack, self._options.credentials.following():
                node, server = await self._open(stack, spec, files, model, progress)
                await stack.enter_async_context(sweeping(self._options.home))
                announcer.announce_now()
                ready(self.member())
                await self._until_stopped(node)
                self._member = replace(self._member, state="draining")
                announcer.announce_now()
                _end_at_the_latest(self._options.drain_seconds + CLOSE_SECONDS)
                await server.drain(self._options.drain_seconds)
        finally:
            await announcer.withdraw()

    async def _open(
        self,
        stack: contextlib.AsyncExitStack,
        spec: ModelSpec,
        files: ModelFiles,
        model: Engine | Encoder,
        progress: Progress,
    ) -> tuple[Node, NodeServer]:
        """Listen everywhere; from now on the node takes streams."""
        options = self._options
        stack.callback(_remove_sockets, options)
        node = self._node = Node(
            id=options.id, region=options.region, zone=options.zone, role=options.role,
            incarnation=self._member.incarnation, loop=asyncio.get_running_loop(),
        )  # fmt: skip
        stack.push_async_callback(node.close)
        stack.callback(LoopWatch(node.metrics.loop_late.observe).close)
        engine = model if isinstance(model, Engine) else None
        if isinstance(model, Engine):
            prompts = await unless(self._stop, on_thread(lambda: self._share(spec, files, model)))
            node.serve(spec.id, model, grammars_of(files, model), options.credentials)
            warming = warm_up(node, spec.id, prompts, progress)
            await unless(self._stop, asyncio.ensure_future(warming))
        else:
            node.serve_encoder(spec.id, model)
        build = engine.runner.numeric_build if engine is not None else ""
        server = self._server = NodeServer(node, _hello(options, spec, files, build))
        stack.push_async_callback(server.close)
        control = ControlAPI(
            describe=self.member,
            edges=lambda: server.edges,
            statistics=node.statistics,
            metrics=node.metrics.families,
            canary=Canary(node),
            drain=self._stop.set,
        )
        stack.push_async_callback(control.close)
        try:
            if engine is not None:
                transfer = await node.connector(spec.id).listen(options.transfer)
                self._member = replace(
                    _described(self._member, engine),
                    transfer_address=str(transfer.advertised(options.advertise)),
                )
            self._member = replace(self._member, model=spec.id)
            server.hello = replace(server.hello, member=replace(self._member, state="ready"))
            address = await server.listen(options.address, options.credentials)
            asked_at = await control.listen(options.control)
        except (OSError, AddressError) as error:
            raise NodeCannotStart(f"cannot listen: {error}") from None
        reached = str(address.advertised(options.advertise))
        self._member = replace(self._member, address=reached, control=str(asked_at), state="ready")
        return node, server

    def _share(self, spec: ModelSpec, files: ModelFiles, engine: Engine) -> list[list[int]]:
        """Declare the operator's prompts to the engine; return them. Raises NodeCannotStart."""
        if not self._options.warm_up:
            return []
        try:
            prompts = self._tokenize(spec, files, self._options.warm_up)
        except SkerryError as error:
            raise NodeCannotStart(f"prompts to warm up: {error.message}") from None
        for number, prompt in enumerate(prompts):
            if not engine.share(prompt):
                short = "prompt %d to warm up has %d tokens, less than a block of %d"
                logger.warning(short, number, len(prompt), BLOCK_SIZE)
        return prompts

    async def _until_stopped(self, node: Node) -> None:
        """Raises EngineLost when the engine goes first."""
        while not self._stop.is_set():
            if not node.models:
                raise EngineLost(f"the engine of node {self._options.id} stopped on an error")
            await until_set(self._stop, LOOK_SECONDS)


def load(
    options: NodeOptions, progress: Progress
) -> tuple[ModelSpec, ModelFiles, Engine | Encoder]:
    """Open the model, by an engine or, if it embeds, by an encoder. Raises NodeCannotStart."""
    try:
        spec = Catalog.load(options.home).resolve(options.model)
        files = ModelStore(options.home).open(spec, progress)
        cache_dir = options.home / "cache"
        if spec.is_encoder:
            encoder = open_encoder(spec, files, threads=options.threads, cache_dir=cache_dir)
            return spec, files, encoder
        engine = open_engine(
            spec,
            files,
            runner=options.runner,
            options=options.engine,
            threads=options.threads,
            cache_dir=cache_dir,
            file_tier=_file_tier(options),
            floats=options.floats,
            credentials=options.credentials,
            progress=progress,
        )
    except SkerryError as error:
        raise NodeCannotStart(error.message) from None
    except (CatalogError, ConfigError, ModelProblem, WeightsError) as error:
        raise NodeCannotStart(str(error)) from None
    except MemoryError as error:
        raise NodeCannotStart(f"too little memory for the model and its KV: {error}") from None
    return spec, files, engine


def _file_tier(options: NodeOptions) -> FileTierOptions | None:
    """Return the file of this node: no two processes may use one."""
    if not options.file_tier_bytes:
        return None
    name = hashlib.blake2b(options.id.encode(), digest_size=8).hexdigest()  # an id may be no name
    return FileTierOptions(options.home / "cache" / "kv" / name, options.file_tier_bytes)


def _described(member: Member, engine: Engine) -> Member:
    """Return a member with what routers need to know of its engine."""
    runner, form = engine.runner, engine.runner.kv_format
    return replace(
        member,
        numeric_build=runner.numeric_build,
        kv_format=f"{form.dtype}{list(form.shape)}",
        kv_bytes_per_token=form.block_bytes / BLOCK_SIZE,
        cache_tokens=runner.num_blocks * BLOCK_SIZE,
        batch_invariant=runner.batch_invariant,
        parallel=runner.ranks.form[:256] if isinstance(runner, DividedRunner) else "",
    )


def _hello(options: NodeOptions, spec: ModelSpec, files: ModelFiles, numeric_build: str) -> Hello:
    build = ModelBuild(
        id=spec.id, tokenizer=files.tokenizer_digest, template=files.template_digest,
        numeric_build=numeric_build,
    )  # fmt: skip
    return Hello(versions=[*VERSIONS], id=options.id, models=[build])


def _remove_sockets(options: NodeOptions) -> None:
    addresses = (options.address, options.transfer, options.control)
    for path in (address.path for address in addresses if address.path):
        Path(path).unlink(missing_ok=True)


def _end_at_the_latest(seconds: float) -> None:
    """End the process after all: a hung engine must not keep a drained one alive."""
    timer = threading.Timer(seconds, os._exit, (EXIT_STUCK,))
    timer.daemon = True
    timer.start()
