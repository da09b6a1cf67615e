"""DNS servers against each other: queries per second, and processor time per query.

    python -m bench.dns [--quick] [--json FILE]

Skerry's fast path with one worker, its slow path (`--workers 0`), gdnsd, PowerDNS with its geoip
backend, Knot, which chooses nothing by place here, and a server of plain dnspython; peers that are
not installed are left out and named. The
zone and the clients are those of `bench.subjects.dns_world`, and every server is checked to answer
five clients rightly before anything is measured. `dnsperf` asks, one server after another, round by
round; server and generator have a core each.

plain: one geo name, no EDNS. subnet: with a client subnet of 24 bits. signed: with DO and, for
Skerry, a cookie, as it cuts larger answers to strangers short. flood: names that do not exist, each
asked once. CPU is of the server's process, user and kernel; most of it is the kernel's UDP.

resolver: while dnsperf asks 20,000 plain queries per second, a resolver of another network asks
500 for one name, each with another client subnet and without a cookie: how many are answered whole,
and the 99th percentile of the time that it takes. Servers that 20,000 overload are left out.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import ipaddress
import math
import os
import random
import re
import select
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dns.edns
import dns.flags
import dns.message
from rich.console import Console

from bench.measuring import machine, stats
from bench.subjects.dns_servers import (
    Server,
    Start,
    gdnsd,
    knot,
    missing,
    plain_dnspython,
    powerdns,
    running,
    skerry,
)
from bench.subjects.dns_world import ASKED, NAME, ORIGIN
from bench.workers.dns_skerry import SECRET
from skerry_dns.server.cookies import Cookies

OURS, KNOT = "Skerry", "Knot, no places"
OVERLOADED = frozenset({"plain dnspython", "Skerry, slow path"})  # by `BESIDE`
BESIDE, RESOLVER_PER_SECOND = 20_000, 500
RESOLVER = "127.0.9.9"  # of a network that nobody exempts
FLOOD_NAMES = 200_000
CLIENTS, OUTSTANDING = 4, 100
COMPLETED = re.compile(r"Queries completed: +(\d+)")
LOST = re.compile(r"Queries lost: +(\d+)")
PER_SECOND = re.compile(r"Queries per second: +([\d.]+)")
CODES = re.compile(r"Response codes: +(.*)")


@dataclass(frozen=True)
class Load:
    """What is asked, and the code of every answer."""

    name: str
    queries: Path
    code: str = "NOERROR"
    signed: bool = False
    subnet: bool = False

    def options(self) -> Iterator[str]:
        """Of dnsperf."""
        if self.subnet:
            packed = ipaddress.ip_address(ASKED).packed[:3]
            yield from ("-E", f"8:{struct.pack('!HBB', 1, 24, 0).hex()}{packed.hex()}")
        if self.signed:
            loopback = ipaddress.ip_address("127.0.0.1")
            cookie = Cookies(SECRET).make(b"dnsperf.", loopback, int(time.time()))
            yield from ("-D", "-E", f"10:{cookie.hex()}")


def loads(folder: Path) -> list[Load]:
    one, flood = folder / "one", folder / "flood"
    one.write_text(f"{NAME} A\n")
    rng = random.Random(1)
    labels = (base64.b32encode(rng.randbytes(5)).decode().lower() for _ in range(FLOOD_NAMES))
    flood.write_text("".join(f"{label}.{ORIGIN} A\n" for label in labels))
    return [
        Load("plain", one),
        Load("subnet", one, subnet=True),
        Load("signed", one, signed=True),
        Load("flood", flood, code="NXDOMAIN"),
    ]


def measure(server: Server, load: Load, seconds: float) -> tuple[float, float]:
    """Queries per second, and microseconds of the server's processor time per query.

    Raises RuntimeError where one in 100 is lost, or any is answered with another code.
    """
    command = [
        "dnsperf", "-s", "127.0.0.1", "-p", str(server.port), "-d", str(load.queries),
        "-l", str(seconds), "-c", str(CLIENTS), "-q", str(OUTSTANDING), *load.options(),
    ]  # fmt: skip
    before = server.cpu_seconds()
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = server.cpu_seconds() - before
    completed, lost = int(_found(COMPLETED, said)), int(_found(LOST, said))
    codes = _found(CODES, said)
    if lost > completed / 100 or not re.fullmatch(rf"{load.code} \d+ \(100.00%\)", codes):
        raise RuntimeError(f"{server.name}, {load.name}: {lost} lost, {codes}")
    return float(_found(PER_SECOND, said)), used / completed * 1e6


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    if match is None:
        raise RuntimeError(f"dnsperf said no {pattern.pattern!r}: {text}")
    return match[1].strip()


def ask_as_resolver(server: Server, seconds: float) -> tuple[float, float]:
    """Percent of answers that come whole, and milliseconds that 99 in 100 of them take at most,
    beside a load of `BESIDE` queries per second."""
    with tempfile.NamedTemporaryFile("w", suffix=".queries") as queries:
        queries.write(f"{NAME} A\n")
        queries.flush()
        beside = subprocess.Popen(
            [
                "dnsperf", "-s", "127.0.0.1", "-p", str(server.port), "-d", queries.name,
                "-l", str(seconds + 1.0), "-c", str(CLIENTS), "-Q", str(BESIDE),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            time.sleep(0.5)  # until it asks
            times = _paced(server.port, int(seconds * RESOLVER_PER_SECOND))
        finally:
            beside.wait()
    asked = int(seconds * RESOLVER_PER_SECOND)
    return 100.0 * len(times) / asked, stats.percentile(times, 0.99) * 1e3 if times else math.inf


def _paced(port: int, count: int) -> list[float]:
    """Seconds that each whole answer took."""
    packets = [_resolver_query(number) for number in range(count)]
    sent: dict[int, float] = {}
    times: list[float] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind((RESOLVER, 0))
        udp.connect(("127.0.0.1", port))
        udp.setblocking(False)
        began = time.perf_counter()
        for number in range(count + RESOLVER_PER_SECOND // 2):  # half a second for the last ones
            due = began + number / RESOLVER_PER_SECOND
            while (left := due - time.perf_counter()) > 0:
                if select.select([udp], [], [], left)[0]:
                    _receive(udp, sent, times)
            if number < count:
                sent[number & 0xFFFF] = time.perf_counter()
                udp.send(packets[number])
    return times


def _receive(udp: socket.socket, sent: dict[int, float], times: list[float]) -> None:
    with contextlib.suppress(BlockingIOError):
        answer = udp.recv(4096)
        began = sent.pop(int.from_bytes(answer[:2], "big"), None)
        is_whole = not answer[2] & dns.flags.TC >> 8 and answer[6:8] != b"\0\0"
        if began is not None and is_whole:
            times.append(time.perf_counter() - began)


def _resolver_query(number: int) -> bytes:
    subnet = ipaddress.IPv4Address((10 << 24) + (1 << 16) + (number << 8))
    query = dns.message.make_query(
        NAME, "A", use_edns=0, options=[dns.edns.ECSOption(str(subnet), 24)], id=number & 0xFFFF
    )
    return query.to_wire()


def peers(console: Console) -> dict[str, Start]:
    """Those that are there."""
    wanted: dict[str, tuple[str, Start]] = {
        "gdnsd": ("gdnsd", gdnsd),
        KNOT: ("knotd", knot),
        "PowerDNS geoip": ("pdns_server", powerdns),
    }
    found = {name: start for name, (program, start) in wanted.items() if not missing(program)}
    for name in wanted.keys() - found.keys():
        console.print(f"{name} is not installed, and so is not compared")
    return found | {"plain dnspython": plain_dnspython, "Skerry, slow path": skerry("slow")}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two rounds of one second")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there")
    options = parser.parse_args(argv)
    console = Console(width=200)
    if missing("dnsperf"):
        parser.error("dnsperf is not installed (Debian: `apt-get install dnsperf`)")
    rounds, seconds = (2, 1.0) if options.quick else (7, 3.0)
    cores = sorted(os.sched_getaffinity(0))
    starts = {OURS: skerry("fast"), **peers(console)}
    cells: dict[str, stats.Cell] = {}
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        home = Path(temporary)
        servers: list[Server] = []
        for number, (name, start) in enumerate(starts.items()):
            signs = name not in ("gdnsd", "plain dnspython")
            starting = running(name, start, home / str(number), signs=signs, is_geo=name != KNOT)
            servers.append(stack.enter_context(starting))
            for task in Path(f"/proc/{servers[-1].process.pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), cores[:1])
        os.sched_setaffinity(0, cores[1:] or cores)
        every = loads(home)
        for _ in range(rounds):
            for load in every:
                for server in servers:
                    if load.signed and not server.signs:
                        continue
                    rate, cpu = measure(server, load, seconds)
                    for figure, unit, value in (("CPU", "µs/query", cpu), ("rate", "qps", rate)):
                        name = f"{load.name}: {figure}"
                        cell = cells.setdefault(name, stats.Cell(name, unit))
                        cell.add(server.name, value)
            for server in servers:
                if server.name in OVERLOADED:
                    continue
                whole, slowest = ask_as_resolver(server, seconds)
                for figure, unit, value in (("answered", "%", whole), ("p99", "ms", slowest)):
                    name = f"resolver: {figure}"
                    cells.setdefault(name, stats.Cell(name, unit)).add(server.name, value)
    description = machine.describe()
    stats.heading(console, description, {})
    title = "DNS servers, medians; CPU below 1 is better, rate above"
    names = [name for name in starts if name != OURS]
    console.print(stats.table(title, list(cells.values()), OURS, names))
    rows = stats.rows(list(cells.values()))
    stats.write(options.json, {"machine": description, "rows": rows})


if __name__ == "__main__":
    main()
