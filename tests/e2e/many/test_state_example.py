"""examples/three-regions-nats.yaml runs as it says, beside the server that it says."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import httpx
import pytest
from tests.e2e.command import MODEL, new_home
from tests.regions.drivers.nats_server import BINARY, free_ports

from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_example_of_three_regions_runs(tmp_path: Path, default_model: ModelFiles) -> None:
    example = (EXAMPLES / "three-regions-nats.yaml").read_text()
    [command] = re.findall(r"^#   nats-server (.+)$", example, re.MULTILINE)
    [folder] = re.findall(r"-sd (\S+)", command)
    nats, *edges = free_ports(4)
    for before, after in zip(("4222", "8787", "8788", "8789"), (nats, *edges), strict=True):
        assert example.count(before) == 1
        example = example.replace(before, str(after))
    topology = tmp_path / "three-regions-nats.yaml"
    topology.write_text(example)
    arguments = shlex.split(command.replace(folder, str(tmp_path / "nats")))
    kernels = default_model.directory.parents[1] / "cache"  # compiled once for all test runs
    kernels.mkdir(exist_ok=True)
    skerry = new_home(tmp_path, default_model)
    (skerry.home / "cache").symlink_to(kernels)
    server = subprocess.Popen([str(BINARY), *arguments, "-p", str(nats)], stderr=subprocess.DEVNULL)
    try:
        started = skerry("up", "--detach", "--topology", str(topology))
        assert started.returncode == 0, started.stderr
        config = json.loads((skerry.home / "config.json").read_text())
        account, headers = config["account_id"], {"authorization": f"Bearer {config['api_token']}"}
        clients = [
            httpx.Client(base_url=f"http://127.0.0.1:{port}/client/v4/accounts/{account}/ai/v1/",
                         headers=headers, timeout=120)
            for port in edges
        ]  # fmt: skip
        previous = None
        for turn, client in enumerate(clients):
            body = {"model": MODEL, "input": f"Turn {turn}", "max_output_tokens": 4}
            reply = client.post("responses", json=body | {"previous_response_id": previous})
            assert reply.status_code == 200, reply.text
            previous = reply.json()["id"]
            assert clients[0].get(f"responses/{previous}").json()["id"] == previous
        for client in clients:
            client.close()
        assert not (skerry.home / "responses.db").exists(), "it is on the server"
    finally:
        skerry("down")
        server.terminate()
        server.wait(30)
