"""The process behind `skerry dns`: it serves a zone of a topology file, or of a control plane."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from skerry_cli.composition.dns.fast import fast_path
from skerry_cli.composition.dns.live_zone import LiveZone
from skerry_cli.composition.starter import Starter
from skerry_cli.home.errors import CannotStart, StateError, raised_as
from skerry_cli.home.parts import read_topology
from skerry_cli.home.state import Home, known_config
from skerry_cli.home.steer_token import steer_token
from skerry_cli.output import note
from skerry_dns.server.dns_metrics import DnsMetrics
from skerry_dns.server.dns_server import DnsServer
from skerry_dns.zone.zone_file import ZoneError
from skerry_dns.zone.zone_source import ZoneAway, ZoneSource
from skerry_edge.telemetry.metrics_page import MetricsPage
from skerry_regions.address import Address, AddressError
from skerry_regions.geo.from_topology import places_of
from skerry_regions.process.cancellation import end_task
from skerry_regions.process.startup import Interrupted, on_sighup, stop_on_signals, unless
from skerry_regions.topology.spec import Topology
from skerry_regions.topology.zone_spec import DnsSpec

MAX_SERVER_ID = 64  # bytes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsOptions:
    """What a DNS server is to be: of a `topology`, or of a control plane's `zone`."""

    topology: Path | None = None
    zone: str = ""
    control: str = ""  # URL of the control plane; empty: that of the home
    host: str | None = None  # None: as the zone says
    port: int | None = None
    server_id: str | None = None  # sets servers of one zone apart (NSID); None: the machine's name
    workers: int | None = None  # of the fast path; None: one per core; 0: no fast path
    metrics: str = ""  # address at which they are served; empty: nowhere
    lifeline: int | None = None  # descriptor that a supervisor gave us


def serve_dns(options: DnsOptions, home: Home) -> None:
    """Answer for the zone until SIGINT or SIGTERM. Raises `CannotStart`."""
    with contextlib.suppress(Interrupted):
        uvloop.run(_serve(options, home))
    note("Stopped.")


async def _serve(options: DnsOptions, home: Home) -> None:
    stop = stop_on_signals()
    starter = Starter(options.lifeline)
    server_id = (options.server_id or socket.gethostname()).encode()[:MAX_SERVER_ID]
    fast = partial(fast_path, cache_dir=home.cache, workers=options.workers)
    live = LiveZone(home, server_id, lambda: _token(options, home), fast=fast)
    async with contextlib.AsyncExitStack() as stack:
        if (path := options.topology) is not None:
            await _adopt_file(live, path)
            _keep_running(_adopt_again_on_sighup(live, path), stack, stop)
        else:
            _keep_running(_follow(live, zone_source(options, home)), stack, stop)
        contents = await unless(stop, live.served)
        told = await _listen(live.server, contents.spec, options)
        if options.metrics:
            page = MetricsPage(DnsMetrics(live.server).families)
            note(f"Metrics are at {await _tell_metrics(page, options.metrics)}.")
            stack.callback(page.close)
        if starter.is_supervisor:
            note(told)  # in its log: the port may be any
        starter.ready(told, dns=told)
        stack.push_async_callback(live.server.close)
        _keep_running(live.run(), stack, stop)
        await stop.wait()


def _token(options: DnsOptions, home: Home) -> str:
    """Return the token by which edges report; empty where there is none."""
    if options.control:  # it is of another platform than this home
        return os.environ.get("SKERRY_API_TOKEN", "")
    try:
        return steer_token(home, os.environ)
    except (CannotStart, StateError) as error:
        logger.warning("no token for what edges report: %s", error)
        return ""


def zone_source(options: DnsOptions, home: Home) -> ZoneSource:
    """Return the control plane of the home, or another one. Raises `CannotStart`."""
    config = known_config(home)
    url = options.control or config.control_url
    token = os.environ.get("SKERRY_API_TOKEN") or config.api_token
    if not url or not token:
        raise CannotStart(
            "which control plane? Give --control and SKERRY_API_TOKEN, or start one here"
        )
    zone = options.zone.rstrip(".").lower()
    return ZoneSource(url=url.rstrip("/"), token=token, zone=zone, kept=home.kept_zone(zone))


async def _follow(live: LiveZone, source: ZoneSource) -> None:
    async def adopt(topology: Topology) -> None:
        with raised_as(ZoneAway, CannotStart, ZoneError):
            await live.adopt(topology)

    if (last := source.last()) is not None:
        with contextlib.suppress(ZoneAway):  # the control plane may have a better one
            await adopt(last)
    await source.follow(adopt)


async def _adopt_file(live: LiveZone, path: Path) -> None:
    """Raises `CannotStart`."""
    topology = read_topology(path)
    if not places_of(topology).regions:
        raise CannotStart(f"{path}: no edge has `addresses`, so there is nowhere to send clients")
    try:
        await live.adopt(topology)
    except ZoneError as error:
        raise CannotStart(f"{path}: {error}") from None


async def _adopt_again_on_sighup(live: LiveZone, path: Path) -> None:
    heard = asyncio.Event()
    on_sighup(heard.set)
    while await heard.wait():
        heard.clear()
        try:
            await _adopt_file(live, path)
            logger.warning("%s was read again", path)
        except CannotStart as error:
            logger.warning("the zone stays as it is: %s", error)


async def _listen(server: DnsServer, spec: DnsSpec, options: DnsOptions) -> str:
    """Return where it listens, in a sentence. Raises `CannotStart`."""
    host = options.host or spec.host
    port = spec.port if options.port is None else options.port
    try:
        taken = await server.listen(host, port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotStart(
            f"cannot listen on {host} port {port}: {reason}. See --host and --port."
        ) from None
    return f"DNS is ready at {host} port {taken}, UDP and TCP."


async def _tell_metrics(page: MetricsPage, where: str) -> Address:
    """Raises `CannotStart`."""
    try:
        return await page.listen(Address.parse(where))
    except (AddressError, OSError) as error:
        raise CannotStart(f"cannot serve metrics at {where}: {error}") from None


def _keep_running(
    work: Coroutine[None, None, None], stack: contextlib.AsyncExitStack, stop: asyncio.Event
) -> None:
    """Await work until the stack ends. By itself it ends by a bug only: then we end too, and it is
    raised."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda _: stop.set())
    stack.push_async_callback(end_task, task)
