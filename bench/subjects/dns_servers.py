"""The DNS servers that are compared, each a process of its own on loopback.

gdnsd, Knot and PowerDNS come from the system's packages (Debian: `gdnsd`, `knot`, `pdns-server`,
`pdns-backend-geoip`), `dnsperf` too. Each has one UDP thread and answers with the zone of
`bench.subjects.dns_world`; nothing else is tuned.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import dns.edns
import dns.exception
import dns.message
import dns.query

from bench.subjects.dns_world import ASKED, NAME, NETWORKS, ORIGIN, REGIONS, SOA, TTL, expected
from bench.subjects.peers import CACHE

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
CHECKED = ("10.1.0.1", "10.2.3.0", "10.3.0.9", "10.254.0.1", ASKED)


@dataclass(frozen=True)
class Server:
    """One that runs. `process` is the one whose time is counted."""

    name: str
    port: int
    process: subprocess.Popen[str]
    signs: bool = False

    def cpu_seconds(self) -> float:
        """Of all its threads, in user and in kernel mode."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


Start = Callable[[Path, int], "subprocess.Popen[str]"]


@contextlib.contextmanager
def running(
    name: str, start: Start, home: Path, *, signs: bool = False, is_geo: bool = True
) -> Generator[Server]:
    """A server from the moment that it answers rightly. Raises RuntimeError when it does not."""
    home.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    process = start(home, port)
    server = Server(name, port, process, signs)
    try:
        _await_answers(server, is_geo)
        yield server
    finally:
        process.terminate()
        process.wait(20)


def skerry(way: str) -> Start:
    def start(home: Path, port: int) -> subprocess.Popen[str]:
        arguments = [way, str(port), str(home / "zone.key"), str(CACHE)]
        return _python("bench.workers.dns_skerry", *arguments)

    return start


def plain_dnspython(home: Path, port: int) -> subprocess.Popen[str]:
    return _python("bench.workers.dns_plain", str(port))


def gdnsd(home: Path, port: int) -> subprocess.Popen[str]:
    nets = "\n".join(f"        {network} => [{name}]" for network, name in NETWORKS.items())
    centres = " ".join(f"{name} => {address}" for name, (_, address, _) in REGIONS.items())
    (home / "zones").mkdir(exist_ok=True)
    (home / "zones" / ORIGIN).write_text(
        f"{SOA}\n@ 3600 NS ns1\nns1 3600 A 127.0.0.1\nai {TTL} DYNA geoip!ai\n"
    )
    (home / "config").write_text(
        f"""options => {{
  listen => 127.0.0.1:{port}, udp_threads => 1, tcp_threads => 1
  run_dir => {home}/run, state_dir => {home}/state
}}
plugins => {{ geoip => {{
  maps => {{ clients => {{
    datacenters => [{", ".join(REGIONS)}]
    nets => {{
{nets}
    }}
  }} }}
  resources => {{ ai => {{ map => clients, service_types => up, dcmap => {{ {centres} }} }} }}
}} }}
"""
    )
    return _process(home, "gdnsd", "-c", str(home), "start")


def knot(home: Path, port: int) -> subprocess.Popen[str]:
    """It chooses nothing by place here: one address for everybody, signed ahead."""
    (address, *_) = (address for _, address, _ in REGIONS.values())
    (home / "zone").write_text(
        f"{SOA}\n@ 3600 NS ns1\nns1 3600 A 127.0.0.1\nai {TTL} A {address}\n"
    )
    (home / "knot.conf").write_text(
        f"""server:
    listen: 127.0.0.1@{port}
    rundir: {home}
    udp-workers: 1
    tcp-workers: 1
    background-workers: 1
    edns-client-subnet: on
database:
    storage: {home}
log:
  - target: stderr
    any: error
zone:
  - domain: {ORIGIN}
    storage: {home}
    file: zone
    zonefile-sync: -1
    journal-content: none
    dnssec-signing: on
"""
    )
    return _process(home, "knotd", "-c", str(home / "knot.conf"))


def powerdns(home: Path, port: int) -> subprocess.Popen[str]:
    """By country, as its geoip backend chooses; the database is made here."""
    _write_countries(home / "countries.mmdb")
    hosts = "\n".join(
        f"    {country.lower()}.{NAME}: [{{a: {address}}}]"
        for _, address, country in REGIONS.values()
    )
    (home / "zones.yaml").write_text(
        f"""domains:
- domain: {ORIGIN}
  ttl: {TTL}
  records:
    {ORIGIN}:
    - soa: ns1.{ORIGIN} hostmaster.{ORIGIN} 1 7200 900 1209600 30
    - ns: ns1.{ORIGIN}
    ns1.{ORIGIN}: [{{a: 127.0.0.1}}]
{hosts}
  services:
    {NAME}: {{ default: ['%cc.{NAME}', 'de.{NAME}'] }}
"""
    )
    (home / "keys").mkdir(exist_ok=True)
    (home / "pdns.conf").write_text(
        f"""launch=geoip
geoip-zones-file={home}/zones.yaml
geoip-database-files=mmdb:{home}/countries.mmdb
geoip-dnssec-keydir={home}/keys
edns-subnet-processing=yes
local-address=127.0.0.1
local-port={port}
receiver-threads=1
socket-dir={home}
daemon=no
guardian=no
loglevel=3
negquery-cache-ttl=60
version-string=anonymous
"""
    )
    subprocess.run(
        ["pdnsutil", f"--config-dir={home}", "secure-zone", ORIGIN], capture_output=True, check=True
    )
    return _process(home, "pdns_server", f"--config-dir={home}")


def missing(program: str) -> bool:
    return shutil.which(program) is None


def _write_countries(path: Path) -> None:
    from mmdb_writer import MMDBWriter  # for PowerDNS only
    from netaddr import IPSet

    writer = MMDBWriter(4, "GeoIP2-Country")
    for name, (_, _, country) in REGIONS.items():
        networks = IPSet(str(network) for network, at in NETWORKS.items() if at == name)
        writer.insert_network(networks, {"country": {"iso_code": country}})
    writer.to_db_file(str(path))


def _python(module: str, *arguments: str) -> subprocess.Popen[str]:
    """One of ours, from the moment that it says that it is ready."""
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"{module} does not start")
    return process


def _process(home: Path, *command: str) -> subprocess.Popen[str]:
    with (home / "log").open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, text=True)


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        return int(udp.getsockname()[1])


def _await_answers(server: Server, is_geo: bool) -> None:
    """Wait until it answers, then check that it answers each client rightly, by place if it can."""
    end = time.monotonic() + START_SECONDS
    while True:
        if server.process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"{server.name} does not answer (status {server.process.poll()})")
        try:
            found = [_ask(server.port, client) for client in CHECKED]
            break
        except (OSError, dns.exception.DNSException):
            time.sleep(0.2)
    if not all(found) or (is_geo and found != [expected(client) for client in CHECKED]):
        raise RuntimeError(f"{server.name} answers wrongly: {found}")


def _ask(port: int, client: str) -> str:
    option = dns.edns.ECSOption(client, 24)
    query = dns.message.make_query(NAME, "A", use_edns=0, options=[option])
    answer = dns.query.udp(query, "127.0.0.1", port=port, timeout=1.0)
    return next(iter(answer.answer[-1])).to_text() if answer.answer else ""
