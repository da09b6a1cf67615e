"""The control plane's listener for machines that join, and pods, which it has Kubernetes make."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import platform
import socket
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from skerry_cli.home.errors import CannotStart, raised_as
from skerry_cli.home.keys import cluster_key, secret
from skerry_cli.home.state import Home, known_config
from skerry_edge.gate.oidc.issuers import IssuerFile, load_issuers
from skerry_edge.gate.token_file import TokenFile
from skerry_edge.http.server import serve
from skerry_edge.limits import Limits
from skerry_regions.control.api.machine_api import create_machine_app
from skerry_regions.control.api.machine_calls import MachineControl
from skerry_regions.control.desired.store import Store
from skerry_regions.control.kubernetes.api_server import AccessError, ApiServer, ClusterAccess
from skerry_regions.control.kubernetes.pod_launcher import PodLauncher
from skerry_regions.control.kubernetes.pod_sets import TOKEN_SECONDS, PodSets
from skerry_regions.control.kubernetes.pool_pods import PodSource
from skerry_regions.control.machines.authority import Authority, AuthorityError, ListenerTLS
from skerry_regions.control.machines.book import Machines
from skerry_regions.control.machines.folder import JoinError
from skerry_regions.control.machines.hosts import Hosts
from skerry_regions.control.machines.join_tokens import JoinTokens
from skerry_regions.control.machines.joined import JoinedMachines, Wanted, keep_telling_revoked
from skerry_regions.control.machines.joining import Joining, OwnMachine
from skerry_regions.control.machines.messages import MAX_REQUEST_BYTES, Credentials
from skerry_regions.control.machines.webhook import MachineWebhook, WebhookOptions
from skerry_regions.control.planning.launcher import Launcher
from skerry_regions.models.located_yaml import YamlError
from skerry_regions.registry import Registry

DRAIN_SECONDS = 5  # requests of the control plane are short
TOKEN_USES = 1000  # a pod spends one when its volume is new


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """The Kubernetes cluster in which pods are made, and their image."""

    access: ClusterAccess
    join: str  # URL at which they reach the control plane
    image: str  # empty: that of the pod that we are
    template: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """The address at which machines join, and the webhook that requests more."""

    host: str
    port: int
    pods: PodOptions | None = None  # that Kubernetes is to make
    webhook: WebhookOptions | None = None  # of whoever has machines


@contextlib.asynccontextmanager
async def machines(
    options: JoinOptions,
    home: Home,
    listener: socket.socket,
    store: Store,
    registry: Registry,
    joined: JoinedMachines,
    nodes: Hosts,
    token_secret: bytes,
    hosts: frozenset[str],
    lost: Callable[[], None],
) -> AsyncGenerator[Joining]:
    """Serve machines until the block ends. Raises `CannotStart`.

    `hosts` are names that the listener answers to, beside its address. `lost` is called when
    machines are served no longer; the block's end raises the bug that ended it.
    """
    with raised_as(CannotStart, AuthorityError):
        authority = Authority.open(home.authority, store.clock)
    known = Machines(store, authority)
    own = OwnMachine(authority, known, home.machine, store.clock)
    try:
        own.look()
    except (OSError, JoinError) as error:
        raise CannotStart(f"{home.machine}: {error}") from None
    control = MachineControl(
        store=store,
        authority=authority,
        machines=known,
        joined=joined,
        nodes=nodes,
        registry=registry,
        cluster_key=cluster_key(home),
        credentials=lambda: _credentials(home),
        revocations=lambda: own.revocations,
        hosts=hosts,
    )
    stop, ready = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(
        serve(
            create_machine_app(control),
            listener=listener,
            limits=Limits(body_bytes=MAX_REQUEST_BYTES, drain_seconds=DRAIN_SECONDS),
            ready=ready.set,
            stop=stop,
            ssl_context=ListenerTLS(authority, store.clock).context,
            heeds_signals=False,  # hosts are ordered to drain when a control plane that owns ends
        ),
        name="machines",
    )
    serving.add_done_callback(lambda _: ready.set())
    await ready.wait()
    if serving.done():
        await serving  # raises why it could not begin
    telling = asyncio.create_task(
        keep_telling_revoked(registry, known, store.clock), name="tell who was revoked"
    )
    keeping = asyncio.create_task(own.keep(), name="certificates of this machine")
    tasks = [serving, telling, keeping]
    if options.webhook is not None:
        webhook = MachineWebhook(
            options.webhook, nodes.needs, clock=time.monotonic, wall=store.clock
        )
        tasks.append(asyncio.create_task(webhook.run(), name="webhook of machines"))
    for task in tasks:
        task.add_done_callback(lambda _: lost())
    try:
        yield Joining(
            tokens=JoinTokens(store, token_secret, authority.fingerprint),
            machines=known,
            joined=joined,
            nodes=nodes,
            registry=registry,
            own=own,
        )
    finally:
        stop.set()
        for task in tasks[1:]:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


def _credentials(home: Home) -> Credentials:
    """Return them as the files of the home are now."""
    try:
        tokens = home.tokens.read_bytes()
    except FileNotFoundError:
        tokens = msgspec.json.encode(TokenFile())
    issuers = _issuers(home)
    digest = hashlib.blake2b(tokens + b"\0" + (issuers or b""), digest_size=16).hexdigest()
    return Credentials(secret=secret(home), digest=digest, tokens=tokens, issuers=issuers)


def _issuers(home: Home) -> bytes | None:
    """Return the home's issuers with the platform's account named; None when they are unusable."""
    try:
        found = load_issuers(home.issuers, known_config(home).account_id)
    except YamlError:  # which whoever follows the file has logged
        return None
    return msgspec.json.encode(IssuerFile(issuers=found)) if found else b""


# --- pods ----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def pods(
    join: JoinOptions | None,
    nodes: Hosts,
    wanted: Callable[[], Wanted | None],
    joining: Callable[[], Joining | None],
    *,
    term: int,
    changed: Callable[[], None],
    lost: Callable[[], None],
) -> AsyncGenerator[Launcher]:
    """Keep pods as pools need them until the block ends, and return what starts nodes on them and
    on hosts; without options on hosts alone. Raises `CannotStart`.

    `lost` is called when they are kept no longer; the block's end raises the bug that ended it.
    """
    if join is None or (options := join.pods) is None:
        yield nodes
        return

    def token(pool: str, period: int) -> str:
        values = {
            "pool": pool, "max_uses": TOKEN_USES, "expires_in_seconds": 2 * TOKEN_SECONDS,
            "name": "pods",
        }  # fmt: skip
        # Another term's is another token: one that was deleted does not come back by this key.
        key = f"{term} {pool} {period}"
        through = joining()
        assert through is not None, "pods are made where machines join"
        made = through.tokens.create(values, actor="kubernetes", idempotency_key=key)
        return str(made.secret)

    with raised_as(CannotStart, AccessError):
        source = PodSource.read(options.template, image=options.image, join=options.join)
        api = ApiServer(options.access)
    async with api:
        sets = PodSets(
            api, source, term=term, token=token, clock=time.time, own_pod=platform.node()
        )
        launcher = PodLauncher(nodes, sets, wanted, clock=time.monotonic, changed=changed)
        keeping = asyncio.create_task(launcher.run(), name="pods")
        keeping.add_done_callback(lambda _: lost())
        try:
            yield launcher
        finally:
            keeping.cancel()
            [outcome] = await asyncio.gather(keeping, return_exceptions=True)
            if isinstance(outcome, Exception):
                raise outcome
