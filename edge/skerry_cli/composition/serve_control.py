"""The process behind `skerry control`.

control.db ─▶ Store ─▶ Changes ─▶ API (HTTP)
                │                    │ wakes
                └──────────────▶ Reconciler ─▶ ProcessLauncher ─▶ nodes, edges
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import uvloop
from msgspec.structs import replace

from skerry.errors import Unavailable
from skerry_cli.composition.configured import following_issuers
from skerry_cli.composition.listening import Front, Where
from skerry_cli.composition.serve_machines import DRAIN_SECONDS, machines
from skerry_cli.composition.starter import Starter
from skerry_cli.home.control_home import (
    LOCK_SECONDS,
    ControlRunning,
    claim_control,
    control_database,
)
from skerry_cli.home.edge_tokens import EdgeTokens, caller_of
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.keys import control_key
from skerry_cli.home.machine import default_threads
from skerry_cli.home.parts import credentials, listen_at, url_of
from skerry_cli.home.registries import open_registry
from skerry_cli.home.state import Home, read_config, write_config
from skerry_cli.output import note
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.limits import Limits
from skerry_edge.reload import following
from skerry_regions.control.api.access import ControlCaller, Denials
from skerry_regions.control.api.app import create_app
from skerry_regions.control.api.requests import Control
from skerry_regions.control.desired import revisions
from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.manifest import Manifest, ManifestError, load_manifest
from skerry_regions.control.desired.migrations import NewerSchema
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.views import AnswerDns, DnsQuestion
from skerry_regions.control.dns.checks import MISSING
from skerry_regions.control.errors import Busy, Conflict, ControlError
from skerry_regions.control.machines.joined import JoinedMachines
from skerry_regions.control.planning.zone_contents import ZoneBook
from skerry_regions.control.reconcile.control_metrics import ControlMetrics
from skerry_regions.control.reconcile.models import ModelBook
from skerry_regions.control.reconcile.processes import ProcessLauncher
from skerry_regions.control.reconcile.reconciler import Reconciler
from skerry_regions.control.reconcile.scraping import LostMembers, Monitoring
from skerry_regions.known_hosts import host_of
from skerry_regions.models.catalog import CatalogError
from skerry_regions.process.launch_folder import LaunchFolder
from skerry_regions.process.local_launcher import Deposed
from skerry_regions.process.loop_watch import LoopWatch
from skerry_regions.process.startup import stop_on_signals
from skerry_regions.prometheus import LabelValues
from skerry_regions.registry import RegistryUnavailable

CLAIM_SECONDS = 120.0  # a predecessor whose supervisor is gone may still be draining
TROUBLES = (
    ControlRunning, NewerSchema, RegistryUnavailable, CatalogError, Deposed, sqlite3.Error, OSError,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOptions:
    """What a control plane is to be."""

    where: Where
    topology: Path | None  # to want
    owns: bool  # end what it started, when it ends
    known_hosts: frozenset[str] = frozenset()  # names that it is reached by, beside its address
    join: tuple[str, int] | None = None  # host and port where machines join
    lifeline: int | None  # descriptor that a supervisor gave us


def serve_control(options: ControlOptions, home: Home) -> None:
    """Run the control plane until it is to stop. Raises `CannotStart`."""
    manifest = None if options.topology is None else _read(options.topology)
    patience = LOCK_SECONDS if options.lifeline is None else CLAIM_SECONDS
    try:
        with (
            claim_control(home, patience=patience, alone=options.lifeline is None),
            Front.open(options.where, Limits(drain_seconds=DRAIN_SECONDS)) as front,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(_serve(options, home, front, manifest))
    except TROUBLES as error:
        raise CannotStart(str(error)) from None


def _read(path: Path) -> Manifest:
    """Raises `CannotStart`, which says where the file is wrong."""
    try:
        return load_manifest(path).value
    except ManifestError as error:
        raise CannotStart(str(error)) from None


async def _serve(
    options: ControlOptions, home: Home, front: Front, manifest: Manifest | None
) -> None:
    stop = stop_on_signals()
    starter = Starter(options.lifeline)
    starter.end_with_supervisor(stop)
    tokens = TokenStore(home.tokens)
    account_id = _account(home, tokens, front.url(), is_ours=not starter.is_supervisor)
    async with contextlib.AsyncExitStack() as stack:
        store = Store(control_database(home))
        stack.callback(store.close)
        registry = open_registry(home, os.environ)
        stack.callback(registry.close)
        key = control_key(home)
        changes = Changes(store, EdgeTokens(tokens, account_id), key)
        _write_down(manifest, store, changes, account_id)
        wake = asyncio.Event()
        models = ModelBook(home.root, wake.set)
        stack.push_async_callback(models.close)
        launcher = ProcessLauncher(
            home.root,
            registry,
            term=store.next_term(above=LaunchFolder.of_control(home.root).term),
            cores=default_threads(),
            environ=os.environ,
            changed=wake.set,
        )
        stack.push_async_callback(launcher.close)
        joined = JoinedMachines(lambda: reconciler.wanted(), time.monotonic)
        reconciler = Reconciler(store, changes, launcher, models, wake=wake, joined=joined.running)
        joining = None
        if options.join is not None:
            join_listener = stack.enter_context(listen_at(*options.join, Limits()))
            hosts = options.known_hosts | {host_of(options.join[0])}
            joining = await stack.enter_async_context(
                machines(home, join_listener, store, registry, joined, key, hosts, lost=stop.set)
            )
            note(f"Machines join at {url_of(join_listener, tls=True)}.")
        zones = ZoneBook(store)

        logins = Logins(account_id)
        stack.push_async_callback(logins.close)
        await stack.enter_async_context(following([following_issuers(home, logins)]))

        def ends() -> dict[LabelValues, float]:
            here = {member.id for member in reconciler.members}
            machines = {} if joining is None else joining.machines.certificate_ends(here)
            return front.certificate_ends("control") | machines

        metrics = ControlMetrics(reconciler, lambda: store.desired, home.root, ends)

        async def authenticate(token: str) -> ControlCaller | None:
            principal = tokens.authenticate(token)
            if principal is None:
                try:
                    principal = await logins.authenticate(token)
                except Unavailable as error:
                    raise Busy(error.message) from None
            return None if principal is None else caller_of(principal, account_id)

        control = Control(
            store=store,
            changes=changes,
            observer=reconciler,
            zones=zones,
            answer_dns=_dns_answers(store, zones, lambda: _ready_regions(reconciler)),
            model_problem=models.problem,
            authenticate=authenticate,
            denials=Denials(store, time.monotonic),
            account_id=account_id,
            hosts=options.known_hosts | {host_of(options.where.host)},
            changed=wake.set,
            monitoring=Monitoring(
                metrics=metrics,
                members=LostMembers(
                    lambda: reconciler.members, lambda: store.desired, time.monotonic
                ),
                url=front.url,
                edge_url=lambda: _edge_url(home) if starter.is_supervisor else "",
            ),
            joining=joining,
        )

        stack.callback(LoopWatch(metrics.loop_late.observe).close)

        def ready() -> None:
            starter.ready(f"The control plane is ready at {front.url()}.", url=front.url())

        reconciling = asyncio.create_task(reconciler.run(), name="reconcile")
        reconciling.add_done_callback(lambda _: stop.set())  # by a bug: then we end too
        try:
            await front.serve(create_app(control), stop=stop, ready=ready)
            if reconciling.done():
                await reconciling  # raises the bug; what runs goes on
        finally:
            reconciling.cancel()
            await asyncio.gather(reconciling, return_exceptions=True)
        if options.owns and not starter.is_abandoned:
            await reconciler.drain_all()


def _edge_url(home: Home) -> str:
    """Return where the one edge of `skerry up` is, which is in no registry."""
    config = read_config(home)
    return "" if config is None else config.url


def _ready_regions(reconciler: Reconciler) -> frozenset[str]:
    edges = (node for node in reconciler.nodes() if node.kind == "edge")
    return frozenset(edge.region for edge in edges if edge.state == "ready")


def _dns_answers(
    store: Store, zones: ZoneBook, ready_regions: Callable[[], frozenset[str]]
) -> AnswerDns:
    """Return what answers questions about zones, or refuses them where DNS is not installed."""
    try:
        from skerry_dns.zone.zone_answers import ZoneAnswers
    except ModuleNotFoundError:
        return _refuse_dns
    return ZoneAnswers(store, zones, ready_regions)


def _refuse_dns(question: DnsQuestion) -> NoReturn:
    raise Conflict(MISSING)


def _account(home: Home, tokens: TokenStore, url: str, *, is_ours: bool) -> str:
    """Return the platform's account. `is_ours`: no other says where the control plane is."""
    config = read_config(home)
    if is_ours or config is None:
        config = credentials(home, tokens, config.url if config is not None else "")
        write_config(home, replace(config, control_url=url))
    return config.account_id


def _write_down(manifest: Manifest | None, store: Store, changes: Changes, account_id: str) -> None:
    """Raises `CannotStart`."""
    try:
        changes.give_roles(account_id)
        changes.settle_tokens()
        if manifest is not None:
            revisions.apply(manifest, store, actor=revisions.FILE, prunes=True)
    except ControlError as error:
        raise CannotStart(str(error)) from None
