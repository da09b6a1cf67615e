"""Alerts of a DNS server fire in real faults, each alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import dns.message
import dns.query
import dns.tsigkeyring
import pytest
from tests.e2e.command import MODEL, Skerry, new_home, until
from tests.faults.test_dns_failover import EDGES, LOST, PUBLIC, Relay, dns_server, free_port
from tests.faults.test_dns_failover import TOPOLOGY as PLACES
from tests.infra.loads import repeated
from tests.infra.watching import SLOW, Fault, Prometheus, assert_fires_alone, running

from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(300)]

PAUSE = threading.Event()
BURST = 4000  # packets, more than lie between a worker and the event loop


@dataclass(frozen=True)
class Watched:
    """A platform whose edges clients reach through relays, and its DNS server."""

    skerry: Skerry
    topology: Path
    prometheus: Prometheus
    relays: dict[str, Relay]
    call: Callable[[Callable[[], None]], object]  # on the relays' event loop
    dns_port: int


@contextlib.contextmanager
def relayed(port: int) -> Generator[tuple[dict[str, Relay], asyncio.AbstractEventLoop]]:
    """Edges are reached at their public addresses while the block runs."""
    loop, over, relays = asyncio.new_event_loop(), asyncio.Event(), dict[str, Relay]()
    ready = threading.Event()

    async def stand_between() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for region, public in PUBLIC.items():
                between = Relay().between(public, EDGES[region], port)
                relays[region] = await stack.enter_async_context(between)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(stand_between()))
    thread.start()
    ready.wait()
    try:
        yield relays, loop
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def watched(
    tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles
) -> Iterator[Watched]:
    parent, port = tmp_path_factory.mktemp("dns"), free_port()
    skerry = new_home(parent, default_model)
    kernels = default_model.directory.parents[1] / "cache"  # compiled once for all test runs
    kernels.mkdir(exist_ok=True)
    (skerry.home / "cache").symlink_to(kernels)
    file = parent / "topology.yaml"
    file.write_text(PLACES.format(model=MODEL, port=port))
    metrics = free_address()
    with (
        running(skerry, file, "--timeout", "20"),
        relayed(port) as (relays, loop),
        dns_server(skerry, file, "--workers", "1", "--metrics", f"tcp:{metrics}") as dns_port,
        Prometheus(parent, skerry, *SLOW, dns=metrics) as prometheus,
    ):
        until(lambda: prometheus.number("skerry_dns_fast_path") == 1)
        until(lambda: prometheus.number("sum(skerry_dns_region_up)") == len(PUBLIC))
        yield Watched(skerry, file, prometheus, relays, loop.call_soon_threadsafe, dns_port)


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def silent_region(watched: Watched) -> Fault:
    """Its edges take connections, and nobody ever answers."""

    @contextlib.contextmanager
    def fault(skerry: Skerry) -> Generator[None]:
        watched.call(watched.relays[LOST].fall_silent)
        yield
        watched.call(watched.relays[LOST].speak)

    return fault


def flood(watched: Watched) -> Fault:
    """More of what only the event loop answers than it takes in."""
    signed = dns.message.make_query("example.test", "SOA")
    signed.use_tsig(dns.tsigkeyring.from_text({"key.example.test": "c2VjcmV0"}))
    packet = signed.to_wire()

    @contextlib.contextmanager
    def fault(skerry: Skerry) -> Generator[None]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:

            def burst() -> None:
                for _ in range(BURST):
                    udp.sendto(packet, ("127.0.0.1", watched.dns_port))
                PAUSE.wait(0.5)

            with repeated(burst):
                yield

    return fault


@pytest.mark.parametrize(
    ("fault", "alert"),
    [(silent_region, "SkerryRegionLeft"), (flood, "SkerryDnsLosesQueries")],
)
def test_an_alert_fires_in_its_fault_and_no_other_does(
    watched: Watched, fault: Callable[[Watched], Fault], alert: str
) -> None:
    assert_fires_alone(watched.prometheus, watched.skerry, fault(watched), alert)


def test_a_server_that_answers_by_its_slow_path_alone(watched: Watched, tmp_path: Path) -> None:
    """What compiles its fast path hangs; it answers meanwhile, and is fast when that goes on."""
    skerry, metrics = watched.skerry, free_address()
    cache, empty = skerry.home / "cache", tmp_path / "cache"
    kernels = cache.readlink()
    empty.mkdir()
    cache.unlink()
    cache.symlink_to(empty)

    @contextlib.contextmanager
    def compiler_that_hangs(skerry: Skerry) -> Generator[None]:
        query = dns.message.make_query("ai.example.test", "A")
        assert dns.query.udp(query, "127.0.0.1", port=port, timeout=5).answer
        yield
        os.kill(compiler, signal.SIGCONT)

    try:
        with dns_server(
            skerry, watched.topology, "--workers", "1", "--metrics", f"tcp:{metrics}"
        ) as port:
            compiler = until(compiler_in(skerry.home))
            os.kill(compiler, signal.SIGSTOP)
            with Prometheus(tmp_path, skerry, *SLOW, dns=metrics) as prometheus:
                assert_fires_alone(prometheus, skerry, compiler_that_hangs, "SkerryDnsSlow")
                assert prometheus.number("skerry_dns_fast_path") == 1
    finally:
        cache.unlink()
        cache.symlink_to(kernels)


def compiler_in(home: Path) -> Callable[[], int]:
    """Look for the process that compiles kernels for a home; 0 while there is none."""

    def look() -> int:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_text().split("\0")
                if "skerry_core.runners.compiler" in words and str(home / "cache") in words:
                    return int(process.name)
        return 0

    return look
