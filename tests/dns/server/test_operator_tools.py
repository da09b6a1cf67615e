"""What an operator's own tools see: dig, delv, Knot as a secondary, unbound as a resolver.

All on loopback, addresses in the zone too. Programs that are missing are unpacked (`tests.tools`).
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.dns.fast.fast_answers import CACHE
from tests.dns.server.operator import ORIGIN, Operator, free_port, running
from tests.tools import put_on_path

from skerry_dns.signing.zone_key import ZoneKey

pytestmark = pytest.mark.slow

PROGRAMS = {
    "dig": "bind9-dnsutils", "delv": "bind9-dnsutils", "knotd": "knot", "unbound": "unbound",
}  # fmt: skip

BERLIN, NEW_YORK = "127.0.2.7", "127.0.3.7"  # clients

KNOT = """\
server:
    listen: 127.0.0.1@{port}
    rundir: {home}
database:
    storage: {home}
log:
  - target: stderr
    any: info
key:
  - id: {key}
    algorithm: hmac-sha256
    secret: {secret}
remote:
  - id: primary
    address: 127.0.0.1@{primary}
    key: {key}
acl:
  - id: primary
    address: 127.0.0.1
    key: {key}
    action: notify
zone:
  - domain: example.test
    storage: {home}
    master: primary
    acl: primary
    dnssec-validation: on
"""
UNBOUND = """\
server:
  module-config: "subnetcache validator iterator"
  interface: 127.0.0.1@{port}
  access-control: 127.0.0.0/8 allow
  do-not-query-localhost: no
  do-ip6: no
  chroot: ""
  username: ""
  pidfile: ""
  directory: "{home}"
  use-syslog: no
  local-zone: "test." nodefault
  trust-anchor: "{anchor}"
  send-client-subnet: 127.0.0.1
  client-subnet-always-forward: yes
  max-client-subnet-ipv4: 24
remote-control:
  control-enable: no
stub-zone:
  name: "example.test"
  stub-addr: 127.0.0.1@{primary}
"""


@pytest.fixture
def operator(
    tmp_path: Path, subprocess_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Operator:
    put_on_path(monkeypatch, PROGRAMS)
    made = Operator(tmp_path, {})
    made.home.mkdir()
    CACHE.mkdir(parents=True, exist_ok=True)
    (made.home / "cache").symlink_to(CACHE)
    made.env = {**subprocess_env, "PATH": os.environ["PATH"], "SKERRY_HOME": str(made.home)}
    made.run(*made.skerry("dns", "keygen", "--zone", "example.test"))
    made.run(*made.skerry("dns", "transfer-key", "--zone", "example.test"))
    return made


def test_dig(operator: Operator) -> None:
    settings = "default_region: iad\n  ttl: 20\n  spread: 0.02\n  regions: [{name: fra, weight: 3}]"
    with operator.serving(settings):
        # one region for both families
        assert operator.short("+subnet=127.0.3.0/24", "ai.example.test", "A") == ["127.0.1.3"]
        assert operator.short("+subnet=127.0.3.0/24", "ai.example.test", "AAAA") == []
        # the default region, and the TTL
        said = operator.dig("+subnet=192.0.2.0/24", "ai.example.test", "A")
        assert re.search(r"ai\.example\.test\.\s+20\s+IN\s+A\s+127\.0\.1\.3", said), said
        assert "CLIENT-SUBNET: 192.0.2.0/24/24" in said
        # regions with TLS, by names of their own
        services = operator.short("+subnet=127.0.2.0/24", "ai.example.test", "HTTPS")
        assert sorted(line.split()[1] for line in services) == [
            "ams.ai.example.test.", "fra.ai.example.test.",
        ]  # fmt: skip
        [port] = [line for line in services if "fra.ai" in line]
        assert "port=9301" in port
        assert operator.short("fra.ai.example.test", "A") == ["127.0.1.1"]
        assert operator.short("iad.ai.example.test", "A") == []
        # weights among the two that are near
        found = [
            operator.short(f"+subnet=10.{number}.0.0/24", "ai.example.test", "A")
            for number in range(40)
        ]
        assert sum(each == ["127.0.1.1"] for each in found) > sum(
            each == ["127.0.1.2"] for each in found
        )
        assert {each for (each,) in found} == {"127.0.1.1", "127.0.1.2"}
        # names below two stars: cut for strangers, whole over TCP
        said = operator.dig("+dnssec", "+nocookie", "+ignore", "*.*.w.w.example.test", "NSEC")
        assert re.search(r"flags: [a-z ]*\btc\b", said), said
        said = operator.dig("+dnssec", "+nocookie", "*.*.w.w.example.test", "NSEC")
        assert "RRSIG" in said


@pytest.mark.parametrize(
    ("records", "told"),
    [
        (", 'outside.other. 300 IN A 127.0.1.9'", "outside.other. is not in the zone"),
        (", 'dn 300 IN DNAME www'", "DNAME record, which is not supported"),
        (", 'one 300 IN CNAME two', 'two 300 IN CNAME one'", "is an alias of itself"),
    ],
)
def test_zones_that_are_refused(operator: Operator, records: str, told: str) -> None:
    path = operator.write(records=records)
    said = operator.run(*operator.skerry("dns", "--topology", str(path), "--port", "0"))
    assert told in said


def test_delv(operator: Operator) -> None:
    with operator.serving("spread: 0.02"):
        anchor = ZoneKey.load(operator.home / "dns" / "example.test.key").ds(ORIGIN)
        *_, tag, algorithm, kind, digest = anchor.split()
        anchors = operator.folder / "anchors"
        anchors.write_text(
            f'trust-anchors {{ example.test. static-ds {tag} {algorithm} {kind} "{digest}"; }};\n'
        )
        for name, rdtype, told in (
            ("ai.example.test", "A", "; fully validated"),
            ("ai.example.test", "HTTPS", "; fully validated"),
            ("fra.ai.example.test", "AAAA", "; fully validated"),
            ("iad.ai.example.test", "A", "; negative response, fully validated"),
            ("nothing.example.test", "A", "; negative response, fully validated"),
            ("x.w.w.example.test", "TXT", "; fully validated"),
        ):
            said = operator.run(
                "delv", "@127.0.0.1", "-p", str(operator.port), "-a", str(anchors),
                "+root=example.test", name, rdtype,
            )  # fmt: skip
            assert told in said, said


def test_knot_is_a_secondary(operator: Operator) -> None:
    with ExitStack() as stack:
        process = stack.enter_context(operator.serving())
        text = (operator.home / "dns" / "example.test.transfer").read_text()
        found = re.search(r'key "([^"]+)".*secret "([^"]+)"', text, re.DOTALL)
        assert found is not None
        name, secret = found.groups()
        folder = operator.folder / "knot"
        folder.mkdir()
        config = folder / "knot.conf"
        config.write_text(
            KNOT.format(
                port=operator.secondary,
                home=folder,
                key=name,
                secret=secret,
                primary=operator.port,
            )
        )
        log = folder / "log"
        stack.enter_context(running(["knotd", "-c", str(config)], log, operator.env))

        def secondary(*arguments: str) -> list[str]:
            said = operator.dig("+short", *arguments, port=operator.secondary)
            return sorted(line for line in said.split("\n") if line and line[0] != ";")

        operator.until(lambda: secondary("www.example.test", "A") == ["127.0.1.80"])
        assert secondary("ai.example.test", "A") == ["127.0.1.1", "127.0.1.2", "127.0.1.3"]
        assert len(secondary("ai.example.test", "HTTPS")) == 2
        assert "DNSSEC" in log.read_text()
        assert "validation failed" not in log.read_text()
        # a change is told
        path = operator.folder / "topology.yaml"
        path.write_text(path.read_text().replace("127.0.1.80", "127.0.1.81"))
        process.send_signal(signal.SIGHUP)
        operator.until(lambda: secondary("www.example.test", "A") == ["127.0.1.81"])
        # a secondary that is ahead gets nothing but the SOA; a wrong key is told so
        key = f"hmac-sha256:{name}:{secret}"
        said = operator.dig("-y", key, "+tcp", "example.test", "IXFR=3000000000")
        assert len(re.findall(r"IN\s+SOA\s+ns1", said)) == 1, said
        assert "RRSIG" not in said
        said = operator.dig("-y", key, "+tcp", "example.test", "IXFR=1")
        assert len(re.findall(r"IN\s+SOA\s+ns1", said)) == 2, said
        wrong = f"hmac-sha256:{name}:{'A' * 43}="
        said = operator.dig("-y", wrong, "+tcp", "example.test", "SOA")
        assert "NOTAUTH" in said, said
        assert "BADSIG" in said, said


def test_unbound_validates_and_tells_clients_apart(operator: Operator) -> None:
    with ExitStack() as stack:
        stack.enter_context(operator.serving())
        anchor = ZoneKey.load(operator.home / "dns" / "example.test.key").ds(ORIGIN)
        port, config = free_port(), operator.folder / "unbound.conf"
        config.write_text(
            UNBOUND.format(port=port, home=operator.folder, anchor=anchor, primary=operator.port)
        )
        log = operator.folder / "unbound.log"
        command = ["unbound", "-d", "-c", str(config)]
        stack.enter_context(running(command, log, operator.env))
        asked = ("+short", "www.example.test")
        operator.until(lambda: "127.0.1.80" in operator.dig(*asked, port=port))
        for client, address in ((BERLIN, "127.0.1.1"), (NEW_YORK, "127.0.1.3")):
            for _ in range(2):  # asked for, and out of its cache
                said = operator.dig("-b", client, "+dnssec", "ai.example.test", "A", port=port)
                assert re.search(r"flags: [a-z ]*\bad\b", said), said
                assert re.findall(r"IN\s+A\s+([0-9.]+)", said) == [address]
        said = operator.dig("-b", NEW_YORK, "+dnssec", "ai.example.test", "AAAA", port=port)
        assert re.search(r"flags: [a-z ]*\bad\b", said), said
        assert "ANSWER: 0" in said
