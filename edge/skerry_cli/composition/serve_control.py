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

import uvloop

from skerry_cli.composition.configured import following_issuers
from skerry_cli.composition.control.answering import control_for, with_console
from skerry_cli.composition.control.options import (
    ControlOptions,
    ControlPart,
    EmbeddedControl,
    Host,
    ServingFront,
)
from skerry_cli.composition.control.turns import in_turn
from skerry_cli.composition.control_parts import (
    account_of,
    model_book,
    platform_tokens,
    read_wanted,
    write_down,
)
from skerry_cli.composition.listening import Front, Where
from skerry_cli.composition.serve_machines import DRAIN_SECONDS, machines, pods
from skerry_cli.composition.starter import Starter
from skerry_cli.home.control_home import (
    DEFAULT_HOST,
    LOCK_SECONDS,
    ControlRunning,
    claim_control,
    control_database,
)
from skerry_cli.home.edge_tokens import EdgeTokens
from skerry_cli.home.errors import CannotStart, raised_as
from skerry_cli.home.keys import control_key
from skerry_cli.home.machine import default_threads
from skerry_cli.home.parts import listen_at, url_of
from skerry_cli.home.shared_state import keep_state, open_registry
from skerry_cli.home.state import Home
from skerry_cli.output import note
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.limits import Limits
from skerry_edge.reload import following
from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.manifest import Manifest
from skerry_regions.control.desired.migrations import NewerSchema
from skerry_regions.control.desired.store import Store
from skerry_regions.control.errors import Busy, ControlError
from skerry_regions.control.machines.book import hosts_of
from skerry_regions.control.machines.hosts import Hosts
from skerry_regions.control.machines.joined import JoinedMachines
from skerry_regions.control.reconcile.control_metrics import Turn
from skerry_regions.control.reconcile.first_start import FirstStart
from skerry_regions.control.reconcile.launchers import Launchers
from skerry_regions.control.reconcile.processes import ProcessLauncher
from skerry_regions.control.reconcile.ray.ray_launcher import RayLauncher
from skerry_regions.control.reconcile.reconciler import Reconciler
from skerry_regions.known_hosts import host_of
from skerry_regions.models.catalog import CatalogError
from skerry_regions.models.sources import Progress
from skerry_regions.process.cancellation import cancel_tasks, end_task
from skerry_regions.process.launch_folder import LaunchFolder
from skerry_regions.process.local_launcher import Deposed
from skerry_regions.process.loop_watch import LoopWatch
from skerry_regions.process.startup import stop_on_signals
from skerry_regions.registry import RegistryUnavailable

CLAIM_SECONDS = 120.0  # a predecessor whose supervisor is gone may still be draining
TROUBLES = (
    ControlRunning, NewerSchema, RegistryUnavailable, CatalogError, Deposed, sqlite3.Error, OSError,
)  # fmt: skip


def serve_control(options: ControlOptions, home: Home) -> None:
    """Run the control plane until it is to stop. Raises `CannotStart`."""
    manifest = None if options.topology is None else read_wanted(options.topology)
    patience = LOCK_SECONDS if options.lifeline is None else CLAIM_SECONDS
    keep_state(home, options.state)
    with (
        raised_as(CannotStart, *TROUBLES),
        claim_control(home, patience=patience, alone=options.lifeline is None),
        platform_tokens(home, None if options.state else manifest) as tokens,
        Front.open(options.where, Limits(drain_seconds=DRAIN_SECONDS)) as front,
    ):
        uvloop.run(_serve(options, home, tokens, front, manifest))


def embed_control(
    topology: Manifest, home: Home, listener: socket.socket, host: Host, progress: Progress
) -> None:
    """Run it as part of `skerry up --topology`, with the `progress` of what it starts. Raises
    `CannotStart`, and what `host` does."""
    options = ControlOptions(
        where=Where(host=DEFAULT_HOST, port=0), topology=None, owns=True, lifeline=None,
        progress=progress,
    )  # fmt: skip
    front = Front(listener, None, Limits(drain_seconds=DRAIN_SECONDS))
    with (
        raised_as(CannotStart, *TROUBLES),
        claim_control(home, patience=CLAIM_SECONDS),
        platform_tokens(home, topology) as tokens,
    ):
        uvloop.run(_serve(options, home, tokens, front, topology, host))


async def _serve(
    options: ControlOptions,
    home: Home,
    tokens: TokenStore,
    front: Front,
    manifest: Manifest | None,
    host: Host | None = None,
) -> None:
    stop = stop_on_signals()
    starter = Starter(options.lifeline)
    starter.end_with_supervisor(stop)
    account_id = account_of(home, tokens, front.url(), is_ours=not starter.is_supervisor)
    part = ControlPart(options, home, tokens, account_id, starter, stop)
    is_alone = host is None and not starter.is_supervisor  # `skerry up` has a platform of its own
    if is_alone and await in_turn(part, front, manifest, _lead):
        return
    store = Store(control_database(home))
    try:
        await _lead(part, store, front, manifest, host, over=stop)
    except Busy as error:
        raise CannotStart(str(error)) from None
    finally:
        store.close()


async def _lead(
    part: ControlPart, store: Store, front: ServingFront, manifest: Manifest | None,
    host: Host | None, *, over: asyncio.Event, term: int | None = None, turn: Turn | None = None,
) -> None:  # fmt: skip
    """Make what is wanted so, until it is `over`. Raises Busy where another leads."""
    options, home, tokens, account_id = part.options, part.home, part.tokens, part.account_id
    starter, stop = part.starter, part.stop
    async with contextlib.AsyncExitStack() as stack:
        registry = open_registry(home, os.environ)
        stack.callback(registry.close)
        key = control_key(home)
        changes = Changes(store, EdgeTokens(tokens, account_id), key)

        def begin() -> int:
            begun = term or store.next_term(above=LaunchFolder.of_control(home.root).term)
            changes.give_roles(account_id)
            changes.settle_tokens()
            write_down(manifest, home, store, is_up=host is not None)
            return begun

        try:
            begun = await asyncio.to_thread(begin)
        except ControlError as error:
            raise error if isinstance(error, Busy) else CannotStart(str(error)) from None
        wake = asyncio.Event()
        models = model_book(home, wake.set)
        stack.push_async_callback(models.close)
        launcher = ProcessLauncher(
            home.root, registry, term=begun, cores=default_threads(), environ=os.environ,
            changed=wake.set, progress=options.progress,
        )  # fmt: skip
        stack.push_async_callback(launcher.close)
        joined = JoinedMachines(lambda: reconciler.wanted(), time.monotonic)
        nodes = Hosts(
            lambda: reconciler.wanted(),
            term=begun,
            clock=time.monotonic,
            changed=wake.set,
            expected=() if options.join is None else hosts_of(store),
        )
        making = pods(
            options.join, nodes, lambda: reconciler.wanted(), lambda: joining, term=begun,
            changed=wake.set, lost=over.set,
        )  # fmt: skip
        remote = await stack.enter_async_context(making)
        ray = RayLauncher(options.ray, home.root, lambda: reconciler.members, wake.set, term=begun)
        stack.push_async_callback(ray.close)
        first_start = None if host is None else FirstStart(has_adopted=launcher.has_adopted)
        launchers = Launchers(launcher, {"machines": remote, "kubernetes": remote, "ray": ray})
        reconciler = Reconciler(
            store, changes, launchers, models,
            wake=wake, joined=joined.running, first_start=first_start,
        )  # fmt: skip
        joining = None
        if options.join is not None:
            join = options.join
            join_listener = stack.enter_context(listen_at(join.host, join.port, Limits()))
            hosts = options.known_hosts | {host_of(options.join.host)}
            serving = machines(
                options.join, home, join_listener, store, registry, joined, nodes, key, hosts,
                lost=over.set,
            )  # fmt: skip
            joining = await stack.enter_async_context(serving)
            note(f"Machines join at {url_of(join_listener, tls=True)}.")
        logins = Logins(account_id)
        stack.push_async_callback(logins.close)
        files = [following_issuers(home, logins)]
        await stack.enter_async_context(following(files, reloading=reconciler.renew_edges))
        control = control_for(
            part, store, changes, reconciler, models, logins, front,
            changed=wake.set, turn=turn, joining=joining,
        )  # fmt: skip
        app = with_console(control, part, logins)
        stack.callback(LoopWatch(control.monitoring.metrics.loop_late.observe).close)

        def ready() -> None:
            if host is None:
                starter.ready(f"The control plane is ready at {front.url()}.", url=front.url())

        hosting = None
        if host is not None and first_start is not None:
            embedded = EmbeddedControl(
                reconciler=reconciler, first_start=first_start, registry=registry, tokens=tokens,
                url=front.url(), stop=stop,
            )  # fmt: skip
            hosting = asyncio.create_task(host(embedded), name="host")
            hosting.add_done_callback(lambda _: stop.set())
        reconciling = asyncio.create_task(reconciler.run(), name="reconcile")
        reconciling.add_done_callback(lambda _: over.set())  # by a bug: then we end too
        try:
            await front.serve(app, stop=over, ready=ready)
            if reconciling.done():
                await reconciling  # raises the bug; what runs goes on
        finally:
            await cancel_tasks(reconciling)
        if options.owns and stop.is_set() and not starter.is_abandoned:
            await reconciler.drain_all()
        if hosting is not None:
            await end_task(hosting)
