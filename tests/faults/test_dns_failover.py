"""One region of three falls silent under load: DNS sends its clients elsewhere in time, and back
once. What edges count of their tenants is closed to everybody meanwhile.

Clients know nothing but a name: they ask DNS when what they were told has expired, and call the
address that they were told. Every edge is reached through a relay, which can fall silent: then
connections are taken, and nobody ever answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dns.asyncquery
import dns.message
import httpx
import pytest
from tests.e2e.command import MODEL, Skerry

from skerry_dns.zone.place_records import DEFAULT_TTL as TTL

pytestmark = [pytest.mark.model, pytest.mark.slow]

logger = logging.getLogger(__name__)

NAME = "ai.example.test"
REGIONS = "fra", "iad", "sin"
EDGES = {"fra": "127.0.0.21", "iad": "127.0.0.22", "sin": "127.0.0.23"}  # where they listen
# Where clients are sent, all to one port.
PUBLIC = {"fra": "127.0.0.31", "iad": "127.0.0.32", "sin": "127.0.0.33"}
TOPOLOGY = """\
regions:
  - {{name: fra, iata: FRA}}
  - {{name: iad, iata: IAD}}
  - {{name: sin, iata: SIN}}
pools:
  - {{name: a, region: fra, role: hybrid, model: "{model}", runner: toy, file_tier: none}}
  - {{name: a, region: iad, role: hybrid, model: "{model}", runner: toy, file_tier: none}}
  - {{name: a, region: sin, role: hybrid, model: "{model}", runner: toy, file_tier: none}}
edges:
  - {{name: edge-fra, region: fra, host: 127.0.0.21, port: {port}, addresses: [127.0.0.31]}}
  - {{name: edge-iad, region: iad, host: 127.0.0.22, port: {port}, addresses: [127.0.0.32]}}
  - {{name: edge-sin, region: sin, host: 127.0.0.23, port: {port}, addresses: [127.0.0.33]}}
links:
  - {{between: [fra, iad], rtt: 0.080}}
  - {{between: [fra, sin], rtt: 0.160}}
  - {{between: [iad, sin], rtt: 0.220}}
emulate: {{rtt: links}}
dns:
  zone: example.test
  nameservers: [{{name: ns1}}]
  nets: [{{net: 127.0.0.0/24, region: fra}}]
"""
CLIENTS = 6
LOST = "fra"
INTERVAL, PROBE_SECONDS, SUCCESSES = 1.5, 1.5, 5
STATED = 6.0  # seconds in which new answers leave a dead region (docs/dns.md) …
SLACK = 1.0  # … of a machine that does all of this at once
PATIENCE = 3.0  # of a client
BEFORE, SILENT, AFTER = 6.0, TTL + STATED + PATIENCE + 8.0, TTL + 20.0  # seconds


@pytest.mark.timeout(300)
def test_clients_leave_a_silent_region_in_time_and_come_back_once(skerry: Skerry) -> None:
    port = free_port()
    file = skerry.home.parent / "topology.yaml"
    file.write_text(TOPOLOGY.format(model=MODEL, port=port))
    done = skerry("up", "--detach", "--topology", str(file))
    assert done.returncode == 0, done.stderr
    for address in EDGES.values():  # the watcher reads `GET /regions`, with a token of its own
        for path in ("/metrics", "/regions"):
            closed = httpx.get(f"http://{address}:{port}{path}")
            assert (closed.status_code, path) == (401, path), closed.text
    with dns_server(skerry, file) as dns_port:
        asyncio.run(Scenario(skerry, port, dns_port).play())


def free_port() -> int:
    """That nobody has at any of the addresses."""
    while True:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.create_server((PUBLIC["fra"], 0)))
            port: int = first.getsockname()[1]
            try:
                for address in (*list(PUBLIC.values())[1:], *EDGES.values()):
                    stack.enter_context(socket.create_server((address, port)))
            except OSError:
                continue
            return port


@contextmanager
def dns_server(skerry: Skerry, topology: Path, *options: str) -> Generator[int]:
    """Its port."""
    command = [sys.executable, "-m", "skerry", "dns", "--topology", str(topology)]
    log = skerry.home / "dns.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, "--port", "0", *(options or ("--workers", "0"))],
            env=skerry.environ,
            stderr=stderr,
        )
    try:
        while (ready := re.search(r"ready at .* port (\d+)", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
        yield int(ready[1])
    finally:
        process.terminate()
        assert process.wait(30) == 0


class Relay:
    """Stands in the way of an edge's clients."""

    def __init__(self) -> None:
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def fall_silent(self) -> None:
        self._speaks.clear()

    def speak(self) -> None:
        self._speaks.set()

    @asynccontextmanager
    async def between(self, public: str, edge: str, port: int) -> AsyncGenerator[Relay]:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._relay(reader, writer, edge, port))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        async with await asyncio.start_server(connected, public, port):
            yield self
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, edge: str, port: int
    ) -> None:
        try:
            there, back = await asyncio.open_connection(edge, port)
            try:
                await asyncio.gather(self._pipe(reader, back), self._pipe(there, writer))
            finally:
                back.close()
        except OSError:
            pass  # one of them is gone, and now the other one hears of it
        finally:
            writer.close()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await self._speaks.wait()
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@dataclass(frozen=True, slots=True)
class Asked:
    began: float  # seconds of the event loop
    region: str
    is_good: bool


@dataclass
class Scenario:
    skerry: Skerry
    port: int
    dns_port: int
    asked: list[Asked] = field(default_factory=list[Asked])
    answers: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    """When DNS began to send clients to another region."""

    async def play(self) -> None:
        loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            relays = {
                region: await stack.enter_async_context(
                    Relay().between(PUBLIC[region], EDGES[region], self.port)
                )
                for region in REGIONS
            }
            tasks = [asyncio.create_task(self._watch_dns())]
            tasks += [asyncio.create_task(self._client(number)) for number in range(CLIENTS)]
            await asyncio.sleep(BEFORE)
            silent_at = loop.time()
            relays[LOST].fall_silent()
            await asyncio.sleep(SILENT)
            healed_at = loop.time()
            relays[LOST].speak()
            await asyncio.sleep(AFTER)
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(outcome, asyncio.CancelledError), outcome
        self._check(silent_at, healed_at)

    def _check(self, silent_at: float, healed_at: float) -> None:
        log = (self.skerry.home / "dns.log").read_text()
        assert [region for _, region in self.answers] == ["fra", "iad", "fra"], log
        (_, (left, _), (back, _)) = self.answers
        logger.info("left after %.1f s, back after %.1f s", left - silent_at, back - healed_at)
        assert left - silent_at <= STATED + SLACK
        steady = SUCCESSES * INTERVAL + PROBE_SECONDS
        assert (SUCCESSES - 1) * INTERVAL - SLACK <= back - healed_at <= steady + SLACK
        gone = silent_at + STATED + TTL + PATIENCE + SLACK  # and what had begun before
        for each in self.asked:
            if each.began < silent_at - PATIENCE or gone <= each.began < healed_at:
                assert each.is_good
            if gone <= each.began < healed_at:
                assert each.region == "iad"
            if each.began >= back + TTL + SLACK:
                assert (each.region, each.is_good) == ("fra", True)
        assert any(not each.is_good for each in self.asked)  # it did hurt
        assert sum(gone <= each.began < healed_at for each in self.asked) > CLIENTS

    async def _resolve(self) -> str:
        """The region that DNS sends a client to now."""
        question = dns.message.make_query(NAME, "A")
        answer = await dns.asyncquery.udp(question, "127.0.0.1", port=self.dns_port, timeout=5)
        address = next(iter(answer.answer[0])).to_text()
        return next(region for region, public in PUBLIC.items() if public == address)

    async def _watch_dns(self) -> None:
        while True:
            region = await self._resolve()
            if not self.answers or self.answers[-1][1] != region:
                self.answers.append((asyncio.get_running_loop().time(), region))
            await asyncio.sleep(0.1)

    async def _client(self, number: int) -> None:
        """Asks one question after the other."""
        loop = asyncio.get_running_loop()
        config: dict[str, Any] = json.loads((self.skerry.home / "config.json").read_text())
        path = f"/client/v4/accounts/{config['account_id']}/ai/run/{MODEL}"
        body = {"prompt": "The sea is", "raw": True, "max_tokens": 16, "seed": number}
        headers = {"authorization": f"Bearer {config['api_token']}"}
        region, expires = "", 0.0
        async with httpx.AsyncClient(headers=headers, timeout=PATIENCE) as client:
            while True:
                if loop.time() >= expires:
                    region, expires = await self._resolve(), loop.time() + TTL
                began = loop.time()
                try:
                    url = f"http://{PUBLIC[region]}:{self.port}{path}"
                    is_good = (await client.post(url, json=body)).status_code == 200
                except httpx.HTTPError:
                    is_good = False
                self.asked.append(Asked(began, region, is_good))
                await asyncio.sleep(0.2)
