"""Batches outlive every process: kill -9 of all of them, and each answer comes once, the same."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.command import MODEL, SECONDS, Skerry, is_alive, new_home, until

from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

NUM_REQUESTS = 30
TOPOLOGY = f"""\
regions:
  - {{name: fra, iata: FRA}}
pools:
  - {{name: pool, region: fra, role: hybrid, model: "{MODEL}", runner: toy, replicas: 2}}
edges:
  - {{name: one, region: fra, port: 0}}
  - {{name: two, region: fra, port: 0}}
"""


@pytest.fixture
def skerry(tmp_path: Path, default_model: ModelFiles) -> Iterator[Skerry]:
    skerry = new_home(tmp_path, default_model)
    yield skerry
    assert skerry("down", "--timeout", "5").returncode == 0


def requests(count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": f"Item {i}", "raw": True, "max_tokens": 6, "temperature": 1.0, "seed": i}
        for i in range(count)
    ]


class Client:
    """The platform as it is reached now; it has another port after each start."""

    def __init__(self, skerry: Skerry) -> None:
        config = json.loads((skerry.home / "config.json").read_text())
        self._root = f"{config['url']}/client/v4/accounts/{config['account_id']}/ai"
        self._headers = {"authorization": f"Bearer {config['api_token']}"}

    def call(self, method: str, path: str, **options: Any) -> Any:
        reply = httpx.request(
            method, self._root + path, headers=self._headers, timeout=SECONDS, **options
        )
        assert reply.status_code == 200, reply.text
        return reply

    def queued(self, body: dict[str, Any]) -> dict[str, Any]:
        reply = self.call("POST", f"/run/{MODEL}?queueRequest=true", json=body)
        result: dict[str, Any] = reply.json()["result"]
        return result

    def run(self, body: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = self.call("POST", f"/run/{MODEL}", json=body).json()["result"]
        return result

    def create_batch(self, bodies: list[dict[str, Any]]) -> str:
        lines = [
            {"custom_id": str(i), "method": "POST", "url": "/v1/completions",
             "body": {"model": MODEL, **body}}
            for i, body in enumerate(bodies)
        ]  # fmt: skip
        content = "\n".join(map(json.dumps, lines)).encode()
        file = self.call(
            "POST", "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)}
        ).json()
        asked = {
            "input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"
        }  # fmt: skip
        return str(self.call("POST", "/v1/batches", json=asked).json()["id"])

    def batch(self, id: str) -> dict[str, Any]:
        batch: dict[str, Any] = self.call("GET", f"/v1/batches/{id}").json()
        return batch

    def output(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        content = self.call("GET", f"/v1/files/{batch['output_file_id']}/content").text
        return [json.loads(line) for line in content.splitlines()]


def kill_everything(skerry: Skerry) -> None:
    instance = json.loads((skerry.home / "run" / "instance.json").read_text())
    status = skerry.status()
    pids = {instance["pid"], *(each["pid"] for each in status["edges"] + status["nodes"])}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(is_alive, pids)))  # as long as it dies, its home is taken


def test_a_batch_outlives_kill_minus_9_of_everything(skerry: Skerry) -> None:
    skerry.up()
    before = Client(skerry)
    asked = requests(NUM_REQUESTS)
    undisturbed = [before.run(each)["response"] for each in asked[:4]]
    request_id = before.queued({"requests": asked})["request_id"]
    until(lambda: before.queued({"request_id": request_id}).get("status") != "queued")
    kill_everything(skerry)

    skerry.up()
    after = Client(skerry)
    result = until(lambda: _done(after.queued({"request_id": request_id})))
    told = {each["id"]: each for each in result["responses"]}
    assert len(told) == len(result["responses"]) == NUM_REQUESTS
    assert all(each["success"] for each in told.values())
    assert [told[i]["result"]["response"] for i in range(4)] == undisturbed
    assert _num_counted(skerry, request_id) == NUM_REQUESTS


def _num_counted(skerry: Skerry, request_id: str) -> int:
    """Rows of a submission's requests in the usage journal, which has one per request id."""
    [path] = skerry.home.rglob("usage.db")
    with contextlib.closing(sqlite3.connect(path)) as database:
        (count,) = database.execute(
            "SELECT COUNT(*) FROM usage WHERE id LIKE ?", (f"{request_id}-%",)
        ).fetchone()
    return int(count)


def _done(told: dict[str, Any]) -> dict[str, Any] | None:
    return told if "responses" in told else None


@pytest.mark.slow
def test_edges_take_over_and_a_topology_is_killed(skerry: Skerry, tmp_path: Path) -> None:
    topology = tmp_path / "topology.yaml"
    topology.write_text(TOPOLOGY)
    done = skerry("up", "--detach", "--topology", str(topology))
    assert done.returncode == 0, done.stderr
    client = Client(skerry)
    bodies = [{key: each[key] for key in ("prompt", "max_tokens", "temperature", "seed")}
              for each in requests(100)]  # fmt: skip
    undisturbed = client.output(_ended(skerry, client.create_batch(bodies)))

    id = client.create_batch(bodies)
    until(lambda: client.batch(id)["request_counts"]["completed"] > 5)
    for edge in skerry.status()["edges"]:  # whichever leads
        os.kill(edge["pid"], signal.SIGKILL)
        until(lambda: _counts(skerry, id))
    until(lambda: _counts(skerry, id) > 20)
    kill_everything(skerry)
    assert skerry("up", "--detach", "--topology", str(topology)).returncode == 0

    told = Client(skerry).output(_ended(skerry, id))
    assert [each["custom_id"] for each in told] == [str(i) for i in range(len(bodies))]
    assert list(map(_texts, told)) == list(map(_texts, undisturbed))


def _counts(skerry: Skerry, id: str) -> int:
    try:
        return int(Client(skerry).batch(id)["request_counts"]["completed"])
    except httpx.TransportError:  # its edge has not come back yet
        return 0


def _ended(skerry: Skerry, id: str) -> dict[str, Any]:
    def ended() -> dict[str, Any] | None:
        batch = Client(skerry).batch(id)
        return batch if batch["status"] == "completed" else None

    batch: dict[str, Any] = until(ended)
    return batch


def _texts(line: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in line["response"]["body"]["choices"]]
