"""The fast path with its sockets and workers, inside the server."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from random import Random

import dns.asyncquery
import dns.message
import dns.rcode
import dns.rrset
import pytest
import uvloop
from tests.dns.example import CLIENTS, NOW, SITES, data, query, responder, texts, zone
from tests.dns.fast.fast_answers import ADDRESSES, CACHE, mutated, random_query
from tests.dns.fast.served_fast import LOOPBACK, WORKERS, Ask, with_server

from skerry_cli.composition.dns.kernels import load_dns_kernels
from skerry_dns.fast import blocks, fast_path
from skerry_dns.fast.compiling import Contents, read_contents
from skerry_dns.fast.fast_path import Address, FastPath
from skerry_dns.fast.workers import Answer
from skerry_dns.server.cookies import Cookies
from skerry_dns.server.dns_metrics import DnsMetrics
from skerry_dns.server.dns_server import DnsServer
from skerry_dns.server.responder import Responder
from skerry_regions.geo.places import Places, State
from skerry_regions.prometheus import exposition


@pytest.mark.parametrize("host", [LOOPBACK, "::1"])
def test_queries_are_answered_by_workers_and_the_rest_by_the_responder(host: str) -> None:
    async def test(server: DnsServer, fast: FastPath, ask: Ask) -> None:
        slow = server.responder.counters.answers["NOERROR"]
        before = counted(fast)
        answers = await asyncio.gather(*(ask(query("static")) for _ in range(50)))
        assert all(data(answer) == ["192.0.2.80"] for answer in answers)
        assert (await ask(query("none"))).rcode() == dns.rcode.NXDOMAIN
        assert server.responder.counters.answers["NOERROR"] == slow
        unusual = dns.message.from_wire(query("ai"))
        unusual.additional.append(dns.rrset.from_text("x.", 1, "IN", "A", "192.0.2.1"))
        assert len((await ask(unusual.to_wire())).answer) == 1
        assert server.responder.counters.answers["NOERROR"] == slow + 1
        expected = Counter(received=52, sent=51, slow=1, NOERROR=50, NXDOMAIN=1)
        for _ in range(1000):  # workers count when they have sent
            if counted(fast) - before == expected:
                break
            await asyncio.sleep(0.01)
        assert counted(fast) - before == expected
        told = exposition(DnsMetrics(server).families()).decode()
        assert "skerry_dns_fast_path 1\n" in told
        assert 'skerry_dns_answers_total{path="fast",code="NXDOMAIN"} 1\n' in told

    with_server(test, host)


def counted(fast: FastPath) -> Counter[str]:
    answers = {dns.rcode.to_text(dns.rcode.Rcode(code)): n for code, n in fast.answers().items()}
    return Counter(fast.events() | answers)


def test_changes_reach_the_workers() -> None:
    async def test(server: DnsServer, fast: FastPath, ask: Ask) -> None:
        async def address() -> str:
            return data(await ask(query("ai", subnet="198.51.100.0/24")))[0]

        async def comes(expected: str) -> None:
            async with asyncio.timeout(60):
                while await address() != expected:
                    pass

        server.responder.places.state = State(down=frozenset({"fra"}))
        await comes("192.0.2.20")
        server.responder.places.state = State()
        await comes("192.0.2.10")
        server.responder.serve([zone("new IN A 192.0.2.7")], Places(SITES[1:], CLIENTS))
        await comes("192.0.2.20")
        assert data(await ask(query("new"))) == ["192.0.2.7"]

    with_server(test, LOOPBACK)


def test_regions_are_followed_while_a_changed_zone_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    may_read = False

    def read(source: Responder, before: Contents | None = None) -> Generator[None, None, Contents]:
        while not may_read:
            yield
        return (yield from read_contents(source, before))

    async def test(server: DnsServer, fast: FastPath, ask: Ask) -> None:
        nonlocal may_read

        async def comes(line: str) -> None:
            sent = query(line.split(".")[0], subnet="198.51.100.0/24")
            async with asyncio.timeout(60):
                while line not in texts(await ask(sent)):
                    pass

        monkeypatch.setattr(fast_path, "read_contents", read)
        server.responder.serve([zone("new IN A 192.0.2.7")], Places(SITES, CLIENTS))
        server.responder.places.state = State(down=frozenset({"fra"}))
        await comes("ai.example.test. 30 IN A 192.0.2.20")
        assert not fast.current.is_set()
        assert (await ask(query("new"))).rcode() == dns.rcode.NXDOMAIN
        may_read = True
        await comes("new.example.test. 3600 IN A 192.0.2.7")
        assert data(await ask(query("ai", subnet="198.51.100.0/24"))) == ["192.0.2.20"]
        assert fast.current.is_set()

    with_server(test, LOOPBACK)


def test_whatever_is_sent_the_next_query_is_answered() -> None:
    async def test(server: DnsServer, fast: FastPath, ask: Ask) -> None:
        port = server._servers[0].sockets[0].getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            for sent in (b"", b"\0", bytes(12), bytes(5000), b"\xff" * 1500, bytes(60_000)):
                udp.sendto(sent, (LOOPBACK, port))
        assert len((await ask(query("ai"))).answer) == 1
        other = ipaddress.ip_address("127.0.0.2")  # another sender, perhaps another worker
        wire = await asyncio.to_thread(_from, str(other), port, query("ai"))
        assert len(dns.message.from_wire(wire).answer) == 1

    with_server(test, LOOPBACK)


def _from(address: str, port: int, sent: bytes) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind((address, 0))
        udp.settimeout(60)
        udp.sendto(sent, (LOOPBACK, port))
        return udp.recv(2000)


@pytest.mark.slow
def test_a_flood_of_anything_neither_ends_it_nor_fills_memory() -> None:
    random = Random(time.time_ns())

    def flood(port: int, cookies: Cookies, packets: int) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.setblocking(False)
            for _ in range(packets):
                address = ADDRESSES[0]
                sent = random_query(random, cookies, address, int(NOW))
                with contextlib.suppress(OSError):
                    udp.sendto(mutated(random, sent), (LOOPBACK, port))
                with contextlib.suppress(OSError):
                    udp.recv(2000)

    async def test(server: DnsServer, fast: FastPath, ask: Ask) -> None:
        port = server._servers[0].sockets[0].getsockname()[1]
        await asyncio.to_thread(flood, port, server.responder.cookies, 50_000)
        before, files = _resident_bytes(), _open_files()
        await asyncio.to_thread(flood, port, server.responder.cookies, 150_000)
        assert _resident_bytes() - before < 16 << 20
        assert _open_files() == files
        assert len((await ask(query("ai"))).answer) == 1
        assert fast.events()["received"] > 100_000

    with_server(test, LOOPBACK)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_clients_who_are_told_apart_too_finely_are_left_to_the_slow_path(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(blocks, "MAX_BLOCKS", 2)

    async def main() -> None:
        answers = responder()
        load = partial(load_dns_kernels, CACHE, lambda _what, _share: None)
        fast = FastPath(answers, 1, load)
        server = DnsServer(answers, fast=fast)
        port = await server.listen(LOOPBACK, 0)
        assert fast._running is not None
        await asyncio.wait_for(fast._running, 200)
        assert "too many blocks" in caplog.text
        question = dns.message.from_wire(query("static"))
        answer = await dns.asyncquery.udp(question, LOOPBACK, timeout=60, port=port)
        assert data(answer) == ["192.0.2.80"]
        assert (fast.events()["received"], fast.events()["slow"]) == (1, 1)
        await server.close()

    uvloop.run(main())


def test_what_cannot_be_followed_any_more_is_left_to_the_slow_path(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(server: DnsServer, fast: FastPath, ask: Ask) -> None:
        monkeypatch.setattr(blocks, "MAX_BLOCKS", 2)
        server.responder.serve([zone("new IN A 192.0.2.7")], Places(SITES[1:], CLIENTS))
        assert fast._running is not None
        await asyncio.wait_for(fast._running, 60)
        assert "too many blocks" in caplog.text
        assert data(await ask(query("new"))) == ["192.0.2.7"]
        assert data(await ask(query("ai", subnet="198.51.100.0/24"))) == ["192.0.2.20"]

    with_server(test, LOOPBACK)


def test_an_address_that_cannot_be_taken_leaves_no_socket_that_nobody_reads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Greedy(FastPath):
        def open(
            self, addresses: Sequence[Address], answer: Answer, take_over: Callable[[], None]
        ) -> None:
            nowhere = socket.AF_INET, ("192.0.2.1", 53)
            super().open([*addresses, nowhere], answer, take_over)

    async def main() -> None:
        answers = responder()
        fast = Greedy(answers, WORKERS, lambda: None)
        server = DnsServer(answers, fast=fast)
        port = await server.listen(LOOPBACK, 0)
        assert fast._running is not None
        await asyncio.wait_for(fast._running, 60)
        assert "the fast path has ended" in caplog.text
        question = dns.message.from_wire(query("static"))
        for _ in range(20):  # from as many ports, which the kernel spreads over sockets
            answer = await dns.asyncquery.udp(question, LOOPBACK, timeout=60, port=port)
            assert data(answer) == ["192.0.2.80"]
        await server.close()

    uvloop.run(main())


def test_without_its_code_the_server_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise OSError("no room")

    async def main() -> None:
        answers = responder()
        fast = FastPath(answers, 1, fail)
        server = DnsServer(answers, fast=fast)
        port = await server.listen(LOOPBACK, 0)
        assert fast._running is not None
        await asyncio.wait_for(fast._running, 60)
        assert "the fast path has ended" in caplog.text
        question = dns.message.from_wire(query("static"))
        answer = await dns.asyncquery.udp(question, LOOPBACK, timeout=60, port=port)
        assert data(answer) == ["192.0.2.80"]
        await server.close()

    uvloop.run(main())
