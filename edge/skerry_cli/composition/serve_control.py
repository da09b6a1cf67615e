"""The process behind `skerry control`.

control.db ─▶ Store ─▶ Changes ─▶ API (HTTP)
                │                    │ wakes
                └──────────────▶ Reconciler ─▶ ProcessLauncher ─▶ nodes, edges
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sqlite3
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import uvloop
from msgspec.structs import replace

from skerry_cli.composition.configured import open_certificate
from skerry_cli.composition.serve_machines import DRAIN_SECONDS, machines
from skerry_cli.home.control_home import ControlRunning, claim_control, control_database
from skerry_cli.home.machine import default_threads
from skerry_cli.home.parts import CannotStart, credentials, listen_at, url_of
from skerry_cli.home.registries import open_registry
from skerry_cli.home.state import (
    Home,
    control_key,
    read_config,
    write_config,
)
from skerry_cli.output import note
from skerry_dns.zone.zone_answers import ZoneAnswers
from skerry_edge.gate.auth import TokenRecord, TokenStore, TokenStoreError, token_text
from skerry_edge.http.server import serve
from skerry_edge.limits import Limits
from skerry_regions.control.api.app import create_app
from skerry_regions.control.api.requests import Caller, Control
from skerry_regions.control.desired import from_topology
from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.migrations import NewerSchema
from skerry_regions.control.desired.resources import ApiTokenSpec
from skerry_regions.control.desired.store import Store
from skerry_regions.control.errors import Busy, ControlError
from skerry_regions.control.machines.joined import JoinedMachines
from skerry_regions.control.reconcile.models import ModelBook
from skerry_regions.control.reconcile.processes import ProcessLauncher
from skerry_regions.control.reconcile.reconciler import Reconciler
from skerry_regions.models.catalog import CatalogError
from skerry_regions.process.lifeline import Lifeline
from skerry_regions.process.startup import stop_on_signals
from skerry_regions.registry import RegistryUnavailable
from skerry_regions.topology.spec import Topology, TopologyError, load_topology

CLAIM_SECONDS = 120.0  # a predecessor whose supervisor is gone may still be draining
TROUBLES = (
    ControlRunning, NewerSchema, RegistryUnavailable, CatalogError, sqlite3.Error, OSError,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOptions:
    """What a control plane is asked to be."""

    host: str
    port: int  # 0: a free one
    topology: Path | None  # to want
    tls: tuple[Path, Path] | None  # certificate and key
    owns: bool  # end what it started, when it ends
    join: tuple[str, int] | None = None  # host and port where machines join
    listener: int | None  # descriptor of a socket that listens already, instead of host and port
    lifeline: int | None  # descriptor that a supervisor gave us


def serve_control(options: ControlOptions, home: Home) -> None:
    """Run the control plane until it is told to stop. Raises `CannotStart`."""
    topology = _load(options.topology) if options.topology is not None else None
    try:
        with (
            claim_control(home, patience=0.0 if options.lifeline is None else CLAIM_SECONDS),
            _listener(options) as listener,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(_serve(options, home, listener, topology))
    except TROUBLES as error:
        raise CannotStart(str(error)) from None


async def _serve(
    options: ControlOptions, home: Home, listener: socket.socket, topology: Topology | None
) -> None:
    stop = stop_on_signals()
    lifeline = Lifeline(options.lifeline) if options.lifeline is not None else None
    if lifeline is not None:
        lifeline.watch(stop.set)
    tokens = TokenStore(home.tokens)
    certificate = None if options.tls is None else open_certificate(*options.tls)
    url = url_of(listener, tls=certificate is not None)
    account_id = _account(home, tokens, url, is_ours=lifeline is None)
    async with contextlib.AsyncExitStack() as stack:
        store = Store(control_database(home))
        stack.callback(store.close)
        registry = open_registry(home, os.environ)
        stack.callback(registry.close)
        key = control_key(home)
        changes = Changes(store, EdgeTokens(tokens, account_id), key)
        _write_down(topology, store, changes)
        wake = asyncio.Event()
        models = ModelBook(home.root, wake.set)
        stack.push_async_callback(models.close)
        launcher = ProcessLauncher(
            home.root, registry, cores=default_threads(), environ=os.environ, changed=wake.set
        )
        stack.push_async_callback(launcher.close)
        joined = JoinedMachines(lambda: reconciler.wanted(), time.monotonic)
        reconciler = Reconciler(store, changes, launcher, models, wake=wake, joined=joined.running)
        joining = None
        if options.join is not None:
            join_listener = stack.enter_context(listen_at(*options.join, Limits()))
            joining = await stack.enter_async_context(
                machines(home, join_listener, store, registry, joined, key, lost=stop.set)
            )
            note(f"Machines join at {url_of(join_listener, tls=True)}.")
        control = Control(
            store=store,
            changes=changes,
            observer=reconciler,
            answer_dns=ZoneAnswers(store, lambda: _ready_regions(reconciler)),
            authenticate=lambda token: _caller(tokens, token),
            account_id=account_id,
            changed=wake.set,
            joining=joining,
        )

        def ready(host: str, port: int) -> None:
            if lifeline is None:
                note(f"The control plane is ready at {url}.")
            else:
                lifeline.ready({"url": url})

        reconciling = asyncio.create_task(reconciler.run(), name="reconcile")
        reconciling.add_done_callback(lambda _: stop.set())  # by a bug: then we end too
        try:
            await serve(
                create_app(control),
                listener=listener,
                limits=Limits(drain_seconds=DRAIN_SECONDS),
                ready=ready,
                stop=stop,
                ssl_context=None if certificate is None else certificate.context,
            )
            if reconciling.done():
                await reconciling  # raises the bug; what runs goes on
        finally:
            reconciling.cancel()
            await asyncio.gather(reconciling, return_exceptions=True)
        if options.owns:
            await reconciler.drain_all()


def _ready_regions(reconciler: Reconciler) -> frozenset[str]:
    edges = (node for node in reconciler.nodes() if node.kind == "edge")
    return frozenset(edge.region for edge in edges if edge.state == "ready")


def _account(home: Home, tokens: TokenStore, url: str, *, is_ours: bool) -> str:
    """The platform's account. `is_ours`: nobody else says where the control plane is."""
    config = read_config(home)
    if is_ours or config is None:
        config = credentials(home, tokens, config.url if config is not None else "")
        write_config(home, replace(config, control_url=url))
    return config.account_id


def _load(path: Path) -> Topology:
    try:
        return load_topology(path)
    except TopologyError as error:
        raise CannotStart(str(error)) from None
    except OSError as error:
        raise CannotStart(f"cannot read {path}: {error.strerror}") from None


def _write_down(topology: Topology | None, store: Store, changes: Changes) -> None:
    """Raises `CannotStart`."""
    try:
        changes.settle_tokens()
        if topology is not None:
            from_topology.apply(topology, store, changes)
    except ControlError as error:
        raise CannotStart(str(error)) from None


@contextlib.contextmanager
def _listener(options: ControlOptions) -> Generator[socket.socket]:
    """The socket that a supervisor keeps open for us, or one of our own. Raises `CannotStart`."""
    if options.listener is not None:
        listener = socket.socket(fileno=options.listener)
        listener.set_inheritable(False)  # what we start must not keep it open
    else:
        listener = listen_at(options.host, options.port, Limits())
    with listener:
        yield listener


def _caller(tokens: TokenStore, token: str) -> Caller | None:
    principal = tokens.authenticate(token)
    if principal is None:
        return None
    return Caller(principal.token_id, is_admin="admin" in principal.scopes)


class EdgeTokens:
    """`TokenPublisher`: the token file that this machine's edges follow. Raises Busy."""

    def __init__(self, tokens: TokenStore, account_id: str) -> None:
        self._tokens = tokens
        self._account_id = account_id

    def publish(self, id: str, secret_digest: str, spec: ApiTokenSpec, created_at: int) -> None:
        record = TokenRecord(
            id=id,
            digest=secret_digest,
            account_id=spec.account_id or self._account_id,
            name=spec.name,
            scopes=spec.scopes,
            created_at=created_at,
        )
        with _token_file():
            self._tokens.keep(record)

    def withdraw(self, id: str) -> None:
        with _token_file():
            self._tokens.revoke(id)

    def is_published(self, id: str) -> bool:
        with _token_file():
            return any(record.id == id for record in self._tokens.records())

    def text(self, id: str, secret: str) -> str:
        return token_text(id, secret)


@contextlib.contextmanager
def _token_file() -> Generator[None]:
    try:
        yield
    except TokenStoreError as error:
        raise Busy(str(error)) from None
