"""`skerry dns` while what it serves changes: a control plane's zone, a file that is read again."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import dns.message
import dns.query
import pytest
from tests.edge.serving import serving
from tests.regions.control.support import Api

from skerry_cli import main
from skerry_edge.limits import Limits
from skerry_regions.control.api.app import create_app

SECONDS = 60.0
TOPOLOGY = """\
regions: [{{name: fra, iata: FRA}}]
edges: [{{name: a, region: fra, addresses: [192.0.2.1]}}]
dns:
  zone: example.test
  nameservers: [{{name: ns1}}]
  records: ['www IN A {address}']
"""


@contextmanager
def dns_server(
    *arguments: str, env: dict[str, str]
) -> Generator[tuple[int, subprocess.Popen[str]]]:
    """Its port, and the process."""
    command = [sys.executable, "-m", "skerry", "dns", *arguments, "--port", "0"]
    command += ["--workers", "0"]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines: list[str] = []
            while (match := re.search(r"ready at .* port (\d+)", "".join(lines))) is None:
                lines.append(process.stderr.readline())
                assert lines[-1], lines
            yield int(match[1]), process
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()
    assert process.returncode == 0


def ask(port: int, name: str) -> list[str]:
    question = dns.message.make_query(f"{name}.example.test", "A")
    answer = dns.query.udp(question, "127.0.0.1", port=port, timeout=SECONDS)
    return [record.to_text() for rrset in answer.answer for record in rrset]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_zone_follows_the_control_plane_and_outlives_it(
    tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    api = Api(tmp_path / "control")
    www = {"zone": "example.test", "name": "www", "type": "A", "values": ["192.0.2.80"]}

    async def prepare() -> None:
        await api.make("regions", name="fra", iata="FRA")
        await api.make("edge_nodes", name="a", region="fra", addresses=["192.0.2.1"])
        await api.make("dns_zones", name="example.test", nameservers=[{"name": "ns1"}])
        await api.make("dns_records", **www)

    async def change() -> None:
        await api.http.patch("/dns_records/example.test:www:A", json={"values": ["192.0.2.81"]})
        await api.http.patch("/edge_nodes/a", json={"addresses": ["192.0.2.2"]})

    anyio.run(prepare)
    env = {**subprocess_env, "SKERRY_HOME": str(tmp_path), "SKERRY_API_TOKEN": "admin"}
    with serving(create_app(api.control), Limits()) as control:
        url = f"http://127.0.0.1:{control}"
        with dns_server("--zone", "example.test", "--control", url, env=env) as (port, _):
            assert (ask(port, "www"), ask(port, "ai")) == (["192.0.2.80"], ["192.0.2.1"])
            anyio.run(change)
            until(lambda: ask(port, "ai") == ["192.0.2.2"])
            assert ask(port, "www") == ["192.0.2.81"]
    with dns_server("--zone", "example.test", "--control", url, env=env) as (port, _):
        assert (ask(port, "www"), ask(port, "ai")) == (["192.0.2.81"], ["192.0.2.2"])
    anyio.run(api.close)


def test_a_file_is_read_again(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(TOPOLOGY.format(address="192.0.2.80"))
    env = {**subprocess_env, "SKERRY_HOME": str(tmp_path)}
    with dns_server("--topology", str(file), env=env) as (port, process):
        assert ask(port, "www") == ["192.0.2.80"]
        file.write_text("regions: []")
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        while "the zone stays as it is" not in (line := process.stderr.readline()):
            assert "reports nothing: SKERRY_API_TOKEN has no token" in line
        assert ask(port, "www") == ["192.0.2.80"]
        file.write_text(TOPOLOGY.format(address="192.0.2.81"))
        process.send_signal(signal.SIGHUP)
        until(lambda: ask(port, "www") == ["192.0.2.81"])


def test_which_control_plane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SKERRY_HOME", str(tmp_path))
    monkeypatch.delenv("SKERRY_API_TOKEN", raising=False)
    assert main(["dns", "--zone", "example.test"]) == 1
    assert "which control plane? Give --control" in capsys.readouterr().err
    assert main(["dns", "keygen", "roll", "--zone", "example.test"]) == 1
    assert "keygen has no step 'roll'" in capsys.readouterr().err
