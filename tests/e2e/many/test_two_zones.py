"""Edges of two zones, with servers of their own each: any of them answers for what either keeps,
and neither's files have what is the other's."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.e2e.command import MODEL, new_home, until
from tests.e2e.many.test_nats import Machine
from tests.regions.drivers.nats_server import NatsCluster

from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow]

ZONES = {"eu": "fra", "us": "iad"}  # and a region of each
MARKER = "Wolpertinger"


def test_any_edge_answers_for_both_zones_and_keeps_nothing_of_the_other(
    tmp_path: Path, default_model: ModelFiles
) -> None:
    servers = {zone: NatsCluster(tmp_path / zone / "nats", size=1) for zone in ZONES}
    machines: list[Machine] = []
    try:
        _show(tmp_path, default_model, servers, machines)
    finally:
        for machine in machines:
            machine.stop()
        for cluster in servers.values():
            cluster.stop()
    found = {
        path.relative_to(tmp_path).parts[0]
        for path in tmp_path.rglob("*")
        if path.is_file() and "models" not in path.parts and MARKER.encode() in path.read_bytes()
    }
    assert found == {"eu"}


def _show(
    folder: Path, model: ModelFiles, servers: dict[str, NatsCluster], machines: list[Machine]
) -> None:
    key, registry = secrets.token_bytes(32), servers["eu"].url.partition("?")[0]
    homes = {
        zone: replace(new_home(folder / zone, model), state=servers[zone].url) for zone in ZONES
    }
    made = homes["eu"]("tokens", "create", "--account", "new")
    account = re.search(r"of account ([0-9a-f]{32})", made.stderr)
    assert account is not None, made.stderr
    for name in ("tokens.json", "secret"):
        if (homes["eu"].home / name).exists():
            shutil.copy(homes["eu"].home / name, homes["us"].home / name)
    clients = {}
    for zone, region in ZONES.items():
        place = ("--region", region, "--residency", zone, "--model", MODEL)
        node = Machine(
            homes[zone], registry, key, "node", "--id", f"n-{zone}", "--runner", "toy", *place,
            "--address", "tcp:127.0.0.1:0",
        )  # fmt: skip
        machines.append(node)
        node.ready_at()
        edge = Machine(
            homes[zone], registry, key, "edge", "--id", f"e-{zone}", *place, "--port", "0",
            "--gateway", "tcp:127.0.0.1:0",
        )  # fmt: skip
        machines.append(edge)
        clients[zone] = httpx.Client(
            base_url=f"{edge.ready_at()}/client/v4/accounts/{account[1]}/ai/v1/",
            headers={"authorization": f"Bearer {made.stdout.strip()}"},
            timeout=60,
        )
    eu, us = clients["eu"], clients["us"]
    body = {"model": MODEL, "input": MARKER, "max_output_tokens": 4}
    answer = eu.post("responses", json=body).json()
    until(lambda: us.get(f"responses/{answer['id']}").status_code == 200)
    assert us.get(f"responses/{answer['id']}").json() == answer
    line = {"model": MODEL, "messages": [{"role": "user", "content": MARKER}], "max_tokens": 4}
    asked = [
        {"custom_id": f"c{i}", "method": "POST", "url": "/v1/chat/completions", "body": line}
        for i in range(8)
    ]
    content = "\n".join(json.dumps(each) for each in asked).encode()
    file = eu.post("files", data={"purpose": "batch"}, files={"file": content}).json()["id"]
    assert us.get(f"files/{file}/content").content == content
    wanted = {
        "input_file_id": file,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    batch = eu.post("batches", json=wanted).json()["id"]
    until(lambda: us.get(f"batches/{batch}").json()["status"] == "completed")
    output = us.get(f"batches/{batch}").json()["output_file_id"]
    rows = us.get(f"files/{output}/content").text.splitlines()
    assert sorted(json.loads(row)["custom_id"] for row in rows) == [f"c{i}" for i in range(8)]
    assert us.post(f"batches/{batch}/cancel").json()["id"] == batch
    theirs = us.post("responses", json=body | {"input": "x"}).json()["id"]
    assert theirs.startswith("resp_us.")
    assert eu.delete(f"responses/{theirs}").json()["deleted"] is True
    assert us.get(f"responses/{theirs}").status_code == 404
    assert us.get("files").json()["data"] == []
    machines.pop(1).stop()  # the edge of `eu`
    refused = us.get(f"responses/{answer['id']}")
    assert refused.status_code in (404, 503), "nobody there answers"
    for client in clients.values():
        client.close()
