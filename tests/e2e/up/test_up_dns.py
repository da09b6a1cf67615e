"""`skerry up` starts the DNS server of a topology that has a zone."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import dns.message
import dns.query
import pytest
from tests.e2e.command import MODEL, new_home, until

from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow]

TOPOLOGY = f"""\
regions: [{{name: fra, iata: FRA}}]
pools: [{{name: a, region: fra, role: hybrid, model: "{MODEL}", runner: toy, file_tier: none}}]
edges: [{{name: edge-fra, region: fra, port: PORT}}]
dns: {{zone: example.test, nameservers: [{{name: ns1}}], port: 0}}
"""


def test_dns_comes_and_goes_with_the_platform(tmp_path: Path, default_model: ModelFiles) -> None:
    skerry = new_home(tmp_path, default_model)
    file = tmp_path / "topology.yaml"
    with socket.create_server(("127.0.0.1", 0)) as free:
        edge_port = free.getsockname()[1]
    file.write_text(TOPOLOGY.replace("PORT", str(edge_port)))
    done = skerry("up", "--detach", "--topology", str(file))
    assert done.returncode == 0, done.stderr
    log = skerry.home / "logs" / "~dns-example.test-0.log"
    try:
        ready = until(lambda: log.exists() and re.search(r"port (\d+)", log.read_text()))
        port = int(ready[1])
        question = dns.message.make_query("ai.example.test", "A")
        answer = dns.query.udp(question, "127.0.0.1", port=port, timeout=20)
        assert answer.answer[0].to_text() == "ai.example.test. 30 IN A 127.0.0.1"
        assert skerry.status().get("notes", []) == []
        assert (skerry.home / "dns" / "steer.token").exists()  # and edges take it:
        assert "reports nothing" not in log.read_text()
    finally:
        assert skerry("down", "--timeout", "30").returncode == 0
    with socket.create_server(("127.0.0.1", port)):  # it is free again
        pass
