"""`skerry dns` as a process, and `skerry geo explain`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import dns.dnssec
import dns.edns
import dns.message
import dns.name
import dns.query
import httpx
import pytest
from tests.dns.fast.fast_answers import CACHE

from skerry_cli import main
from skerry_cli.home.dns.transfers import load_transfer_key
from skerry_cli.home.errors import CannotStart
from skerry_dns.signing.zone_key import ZoneKey

TOPOLOGY = Path(__file__).parents[3] / "examples" / "three-regions.yaml"


def test_a_process_answers_and_ends(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    command = [sys.executable, "-m", "skerry", "dns", "--topology", str(TOPOLOGY), "--port", "0"]
    metrics = tmp_path / "metrics"
    command += ["--id", "dns-a", "--metrics", f"unix:{metrics}"]
    CACHE.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache").symlink_to(CACHE)
    env = {**subprocess_env, "SKERRY_HOME": str(tmp_path)}
    key = ZoneKey.create(tmp_path / "dns" / "example.test.key")
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"Metrics are at unix:{metrics}.\n"
        line = process.stderr.readline()
        match = re.fullmatch(r"DNS is ready at 127\.0\.0\.1 port (\d+), UDP and TCP\.\n", line)
        assert match is not None, line
        subnet = dns.edns.ECSOption("203.0.113.0", 24)
        nsid = dns.edns.GenericOption(dns.edns.OptionType.NSID, b"")
        question = dns.message.make_query(
            "ai.example.test", "A", use_edns=0, options=[subnet, nsid]
        )
        answer = dns.query.udp(question, "127.0.0.1", port=int(match[1]), timeout=60)
        assert answer.answer[0].to_text() == "ai.example.test. 30 IN A 127.0.0.1"
        assert b"dns-a" in [option.to_wire() for option in answer.options]
        question = dns.message.make_query("example.test", "DNSKEY", want_dnssec=True)
        answer = dns.query.tcp(question, "127.0.0.1", port=int(match[1]), timeout=60)
        [keys, signature] = answer.answer
        assert list(keys) == [key.dnskey]
        dns.dnssec.validate(keys, signature, {keys.name: keys.to_rdataset()})
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(metrics))) as client:
            told = client.get("http://localhost/metrics").text
        assert 'skerry_dns_region_up{region="iad"}' in told
        assert 'skerry_dns_answers_total{path="slow",code="NOERROR"}' in told
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        *warnings, last = process.stderr.read().splitlines()
        assert last == "Stopped."
        assert all("has no token" in line for line in warnings), warnings  # for what edges report


def test_keygen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SKERRY_HOME", str(tmp_path))
    path = tmp_path / "dns" / "example.test.key"
    assert main(["dns", "keygen", "--topology", str(TOPOLOGY)]) == 0
    drawn = capsys.readouterr()
    assert f"The key of example.test is in {path}: keep a copy" in drawn.err
    assert drawn.out == ZoneKey.load(path).ds(dns.name.from_text("example.test")) + "\n"
    assert main(["dns", "keygen", "--topology", str(TOPOLOGY)]) == 0
    assert capsys.readouterr().out == drawn.out  # the same key
    path.chmod(0o644)
    assert main(["dns", "keygen", "--topology", str(TOPOLOGY)]) == 1
    assert "others may read" in capsys.readouterr().err


def test_transfer_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SKERRY_HOME", str(tmp_path))
    path = tmp_path / "dns" / "example.test.transfer"
    assert load_transfer_key(path) is None
    assert main(["dns", "transfer-key", "--topology", str(TOPOLOGY)]) == 0
    assert f"need the key in {path}" in capsys.readouterr().err
    assert path.stat().st_mode & 0o777 == 0o600
    key = load_transfer_key(path)
    assert key is not None
    assert key.name == dns.name.from_text("transfer.example.test")
    assert len(key.secret) == 32
    assert main(["dns", "transfer-key", "--topology", str(TOPOLOGY)]) == 0
    assert load_transfer_key(path) == key  # the same
    path.write_text("key")
    with pytest.raises(CannotStart, match="no HMAC-SHA256 key in the syntax of BIND"):
        load_transfer_key(path)
    path.chmod(0o640)
    with pytest.raises(CannotStart, match="others may read"):
        load_transfer_key(path)


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["geo", "explain", "203.0.113.7", "--topology", str(TOPOLOGY)]) == 0
    assert capsys.readouterr().out == (
        "203.0.113.7 is near 40.7, -74.0 (`nets`: 203.0.113.0/24); true of the /24 around it.\n"
        "1. iad (20 ms, by distance)\n"
        "2. fra (111 ms, by distance)\n"
    )
    assert main(["geo", "explain", "192.0.2.1", "--topology", str(TOPOLOGY)]) == 0
    assert capsys.readouterr().out.startswith("192.0.2.1 is no one knows where")


def test_what_cannot_be_served(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    split = TOPOLOGY.with_name("split.yaml")
    assert main(["geo", "explain", "no address", "--topology", str(split)]) == 1
    assert "does not appear to be an IPv4 or IPv6 address" in capsys.readouterr().err
    assert main(["geo", "explain", "::1", "--topology", str(tmp_path / "none.yaml")]) == 1
    assert "No such file" in capsys.readouterr().err
