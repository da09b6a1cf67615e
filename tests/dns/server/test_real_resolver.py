"""A validating resolver that sends client subnets (unbound), and delv, in a network of their own.

Needs root; programs that are missing are unpacked (see `tests.tools`).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import dns.name
import pytest
from tests.dns.fast.fast_answers import CACHE
from tests.tools import put_on_path

from skerry_dns.signing.zone_key import ZoneKey

PROGRAMS = {
    "ip": "iproute2", "unbound": "unbound", "delv": "bind9-dnsutils", "dig": "bind9-dnsutils",
}  # fmt: skip
SERVER, RESOLVER = "192.0.2.53", "192.0.2.1"
BERLIN, NEW_YORK = "198.51.100.7", "203.0.113.9"  # clients
PORT = 5353
ORIGIN = dns.name.from_text("example.test")
TOPOLOGY = """\
regions:
  - {name: fra, iata: FRA}
  - {name: iad, iata: IAD}
pools:
  - {name: hybrid, region: fra, role: hybrid, model: "@cf/huggingfacetb/smollm2-135m-instruct"}
  - {name: hybrid, region: iad, role: hybrid, model: "@cf/huggingfacetb/smollm2-135m-instruct"}
edges:
  - {name: edge-fra, region: fra, addresses: [192.0.2.10], url: "https://fra.test"}
  - {name: edge-iad, region: iad, addresses: [192.0.2.20], url: "https://iad.test"}
dns:
  zone: example.test
  nameservers: [{name: ns1, addresses: [192.0.2.53]}]
  nets:
    - {net: 198.51.100.0/24, coordinates: [52.5, 13.4]}
    - {net: 203.0.113.0/24, coordinates: [40.7, -74.0]}
  records: ['www 300 IN A 192.0.2.80']
"""
UNBOUND = """\
server:
  module-config: "subnetcache validator iterator"
  interface: {resolver}
  access-control: 0.0.0.0/0 allow
  do-ip6: no
  chroot: ""
  username: ""
  pidfile: ""
  directory: "{home}"
  use-syslog: no
  local-zone: "test." nodefault
  trust-anchor: "{anchor}"
  send-client-subnet: {server}
  max-client-subnet-ipv4: 24
remote-control:
  control-enable: no
stub-zone:
  name: "example.test"
  stub-addr: {server}@{port}
"""


@dataclass(frozen=True)
class Network:
    """A network namespace with all addresses of the test."""

    name: str

    def command(self, *arguments: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *arguments]

    def run(self, *arguments: str) -> str:
        command = self.command(*arguments)
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout

    def dig(self, client: str, name: str, rdtype: str) -> str:
        """What a client is told by the resolver."""
        options = ("+dnssec", "+tries=1", "+time=10")
        return self.run("dig", f"@{RESOLVER}", "-b", client, *options, name, rdtype)


@contextmanager
def network() -> Generator[Network]:
    made = Network(f"skerry-dns-{os.getpid()}")
    subprocess.run(["ip", "netns", "add", made.name], check=True)
    try:
        for address in (SERVER, RESOLVER, BERLIN, NEW_YORK):
            command = ["ip", "-n", made.name, "address", "add", f"{address}/32", "dev", "lo"]
            subprocess.run(command, check=True)
        subprocess.run(["ip", "-n", made.name, "link", "set", "lo", "up"], check=True)
        yield made
    finally:
        subprocess.run(["ip", "netns", "delete", made.name], check=True)


@contextmanager
def process(command: list[str], env: dict[str, str], log: Path) -> Generator[None]:
    with log.open("w") as file, subprocess.Popen(command, env=env, stdout=file, stderr=file) as it:
        try:
            yield
        finally:
            it.send_signal(signal.SIGTERM)


def until(network: Network, expected: str, *arguments: str) -> None:
    end = time.monotonic() + 60
    while expected not in (said := network.run(*arguments)):
        assert time.monotonic() < end, said
        time.sleep(0.2)


@pytest.fixture
def resolved(
    tmp_path: Path, subprocess_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Generator[tuple[Network, str]]:
    """A network with `skerry dns` and a resolver that trusts it, and the zone's DS record."""
    if os.geteuid() != 0:
        pytest.skip("only root makes networks")
    put_on_path(monkeypatch, PROGRAMS)
    home = tmp_path / "home"
    anchor = ZoneKey.create(home / "dns" / "example.test.key").ds(ORIGIN)
    CACHE.mkdir(parents=True, exist_ok=True)
    (home / "cache").symlink_to(CACHE)
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    config = UNBOUND.format(
        resolver=RESOLVER, home=tmp_path, anchor=anchor, server=SERVER, port=PORT
    )
    (tmp_path / "unbound.conf").write_text(config)
    serve = [sys.executable, "-m", "skerry", "dns", "--topology", str(tmp_path / "topology.yaml")]
    serve += ["--host", SERVER, "--port", str(PORT)]
    env = {**subprocess_env, "PATH": os.environ["PATH"], "SKERRY_HOME": str(home)}
    with ExitStack() as stack:
        made = stack.enter_context(network())
        stack.enter_context(process(made.command(*serve), env, tmp_path / "skerry.log"))
        asked = ("www.example.test", "+short")
        until(made, "192.0.2.80", "dig", f"@{SERVER}", "-p", str(PORT), *asked)
        unbound = made.command("unbound", "-d", "-c", str(tmp_path / "unbound.conf"))
        stack.enter_context(process(unbound, env, tmp_path / "unbound.log"))
        until(made, "192.0.2.80", "dig", f"@{RESOLVER}", *asked)
        yield made, anchor


@pytest.mark.slow
def test_a_resolver_validates_and_tells_clients_apart(resolved: tuple[Network, str]) -> None:
    network, _ = resolved
    for client, address, other in (
        (BERLIN, "192.0.2.10", "192.0.2.20"),
        (NEW_YORK, "192.0.2.20", "192.0.2.10"),
    ):
        for _ in range(2):  # asked for, and out of the resolver's cache
            for rdtype in ("A", "HTTPS"):
                said = network.dig(client, "ai.example.test", rdtype)
                assert re.search(r"flags: [a-z ]*\bad\b", said), said
                assert address in said
            said = network.dig(client, "ai.example.test", "A")
            assert other not in said
    for name, rdtype in (
        ("www.example.test", "A"),
        ("www.example.test", "AAAA"),
        ("ai.example.test", "TXT"),
        ("nothing.example.test", "A"),
        ("example.test", "DNSKEY"),
    ):
        said = network.dig(BERLIN, name, rdtype)
        assert "status: NOERROR" in said, said  # a compact proof looks like one to older resolvers
        assert re.search(r"flags: [a-z ]*\bad\b", said), said


@pytest.mark.slow
def test_delv_validates(resolved: tuple[Network, str], tmp_path: Path) -> None:
    network, anchor = resolved
    *_, tag, algorithm, kind, digest = anchor.split()
    anchors = tmp_path / "anchors"
    anchors.write_text(
        f'trust-anchors {{ example.test. static-ds {tag} {algorithm} {kind} "{digest}"; }};\n'
    )
    delv = ("delv", f"@{SERVER}", "-p", str(PORT), "-a", str(anchors), "+root=example.test")
    for name, rdtype, told in (
        ("ai.example.test", "A", "; fully validated"),
        ("www.example.test", "A", "; fully validated"),
        ("www.example.test", "TXT", "; negative response, fully validated"),
        ("nothing.example.test", "A", "; negative response, fully validated"),
    ):
        said = network.run(*delv, name, rdtype)
        assert told in said, said
