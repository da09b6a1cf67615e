"""What a request bound to a zone brings is found nowhere outside of it: every file is looked into.

The scan knows no store by name. Whoever adds one that belongs to a zone's processes puts it below
`zones/`, into their logs or their KV files; anything else that keeps a trace fails here.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.command import MODEL, SECONDS, Skerry, new_home, until

from skerry_regions.digests import full_block_digests
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

TOPOLOGY = f"""\
regions:
  - {{name: fra, iata: FRA, residency: eu}}
  - {{name: iad, iata: IAD, residency: us}}
pools:
  - {{name: a, region: fra, role: hybrid, model: "{MODEL}", runner: toy, replicas: 2,
      kv_blocks: 16, file_tier: 8MiB}}
  - {{name: a, region: iad, role: hybrid, model: "{MODEL}", runner: toy,
      kv_blocks: 16, file_tier: 8MiB}}
edges:
  - {{name: edge-fra, region: fra}}
  - {{name: edge-iad, region: iad}}
"""
HEADER = "x-skerry-residency"
CANARY = "Wolpertinger"  # of every bound prompt
INSIDE = "fra-a-0", "fra-a-1"
OUTSIDE = "iad-a-0"


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles) -> Iterator[Skerry]:
    skerry = new_home(tmp_path_factory.mktemp("zones"), default_model)
    file = skerry.home.parent / "topology.yaml"
    file.write_text(TOPOLOGY)
    done = skerry("up", "--detach", "--topology", str(file))
    assert done.returncode == 0, done.stderr
    yield skerry
    assert skerry("down", "--timeout", "20").returncode == 0


class Client:
    """Of one edge, by its name."""

    def __init__(self, skerry: Skerry, edge: str, token: str = "") -> None:
        config = json.loads((skerry.home / "config.json").read_text())
        url = next(each["url"] for each in skerry.status()["edges"] if each["id"] == f"{edge}-0")
        self._base = f"{url}/client/v4/accounts/{config['account_id']}/ai"
        self._token = token or config["api_token"]
        self.request_ids: list[str] = []
        self.answers: list[str] = []

    def post(self, path: str, body: dict[str, Any], zone: str = "", **more: str) -> httpx.Response:
        """`more` are headers, with underscores for hyphens."""
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        headers |= {"authorization": f"Bearer {self._token}"} | ({HEADER: zone} if zone else {})
        reply = httpx.post(self._base + path, json=body, headers=headers, timeout=SECONDS)
        self.request_ids.append(reply.headers["x-request-id"])
        return reply

    def call(self, method: str, path: str, **headers: str) -> httpx.Response:
        """Of the OpenAI dialect."""
        headers |= {"authorization": f"Bearer {self._token}"}
        return httpx.request(method, f"{self._base}/v1{path}", headers=headers, timeout=SECONDS)

    def upload(self, content: bytes) -> str:
        """Keep a file; its id."""
        reply = httpx.post(
            f"{self._base}/v1/files",
            data={"purpose": "batch"},
            files={"file": content},
            headers={"authorization": f"Bearer {self._token}"},
            timeout=SECONDS,
        )
        assert reply.status_code == 200, reply.text
        return str(reply.json()["id"])

    def run(self, prompt: str, zone: str = "", **more: str) -> httpx.Response:
        body = {"prompt": prompt, "raw": True, "max_tokens": 24, "seed": 1}
        reply = self.post(f"/run/{MODEL}", body, zone, **more)
        if reply.status_code == 200:
            self.answers.append(reply.json()["result"]["response"])
        return reply

    def queue(self, prompts: list[str], zone: str) -> None:
        """Submit them as a batch, and wait until it is done."""
        path = f"/run/{MODEL}?queueRequest=true"
        told = self.post(path, {"requests": [{"prompt": each} for each in prompts]}, zone)
        assert told.status_code == 200, told.text
        asked = {"request_id": told.json()["result"]["request_id"]}
        until(lambda: "responses" in self.post(path, asked, zone).json()["result"])


def prompt(number: int) -> str:
    """Long enough that a few of them fill a node's memory."""
    return f"{number}. A {CANARY} " + "walks over the hill and through the wood " * 30


def test_no_store_outside_of_the_zone_has_a_trace(
    skerry: Skerry, default_model: ModelFiles
) -> None:
    inside, outside = Client(skerry, "edge-fra"), Client(skerry, "edge-iad")
    prompts = [prompt(number) for number in range(8)]
    for number, each in enumerate(prompts):
        key = f"key-{number}"
        reply = inside.run(each, "eu", idempotency_key=key, cf_aig_cache_ttl="600")
        assert reply.status_code == 200
    inside.queue(prompts[:2], "eu")
    stored = inside.post("/v1/responses", {"model": MODEL, "input": prompts[0]}, "eu")
    assert stored.status_code == 200
    refused = outside.run(prompts[0], "eu")
    assert refused.status_code == 421
    assert _cached_blocks(skerry, OUTSIDE) == 0
    traces = [
        CANARY.encode(),
        *(id_.encode() for id_ in inside.request_ids),
        *(text.encode() for text in inside.answers if len(text) > 12),
        *_names_of_blocks(skerry, default_model, prompts),
    ]
    found = {file for file in _files(skerry.home) if _holds_any(file, traces)}
    assert found
    assert [file for file in sorted(found) if not _is_inside(skerry.home, file)] == []
    assert any(file.name == "edge-fra-0.log" for file in found)
    assert any(file.parent.name == "kv" for file in found), "no block went to the file tier"
    stores = {file.name.partition(".")[0] for file in (skerry.home / "zones" / "eu").iterdir()}
    assert stores >= {"answers", "idempotency", "queue", "responses", "usage"}


def test_the_scan_finds_what_an_unbound_request_leaves(skerry: Skerry) -> None:
    outside = Client(skerry, "edge-iad")
    assert outside.run(prompt(99)).status_code == 200
    log = skerry.home / "logs" / "edge-iad-0.log"
    until(lambda: _holds_any(log, [outside.request_ids[0].encode()]))  # written after the answer


def test_a_stored_answer_is_not_told_outside_of_its_zone(skerry: Skerry) -> None:
    inside, outside = Client(skerry, "edge-fra"), Client(skerry, "edge-iad")
    body = {"model": MODEL, "input": "hello", "max_output_tokens": 8}
    reply = inside.post("/v1/responses", body, "eu")
    follow_up = body | {"previous_response_id": reply.json()["id"]}
    assert outside.post("/v1/responses", follow_up).status_code == 400
    assert inside.post("/v1/responses", follow_up, "eu").status_code == 200
    with sqlite3.connect(skerry.home / "zones" / "eu" / "responses.db") as database:
        (count,) = database.execute("SELECT COUNT(*) FROM responses").fetchone()
    assert count >= 2


def test_what_another_zone_keeps_is_answered_by_an_edge_there(skerry: Skerry) -> None:
    """Whoever may leave a zone calls any edge; what is bound to one is not there in another."""
    inside, outside = Client(skerry, "edge-fra"), Client(skerry, "edge-iad")
    lines = b'{"custom_id": "a"}\n' * 60_000  # several parts
    file = inside.upload(lines)
    assert outside.call("GET", f"/files/{file}").json()["bytes"] == len(lines)
    assert outside.call("GET", f"/files/{file}/content").content == lines
    head = outside.call("HEAD", f"/files/{file}/content")
    assert (head.status_code, head.content) == (200, b"")
    assert outside.call("DELETE", f"/files/{file}").json()["deleted"] is True
    assert inside.call("GET", f"/files/{file}").status_code == 404
    missing = outside.call("GET", f"/files/{file}")
    assert missing.status_code == 404
    assert (
        missing.json()["error"]["message"]
        == inside.call("GET", f"/files/{file}").json()["error"]["message"]
    )

    body = {"model": MODEL, "input": "hello", "max_output_tokens": 8}
    free, bound = (inside.post("/v1/responses", body, zone).json() for zone in ("", "eu"))
    assert outside.call("GET", f"/responses/{free['id']}").json() == free
    assert outside.call("GET", f"/responses/{free['id']}/input_items").json()["data"]
    for method, path in (("GET", bound["id"]), ("DELETE", bound["id"])):
        assert outside.call(method, f"/responses/{path}").status_code == 404
    assert inside.call("GET", f"/responses/{bound['id']}").json() == bound
    kept = {HEADER: "us"}
    assert outside.call("GET", f"/responses/{free['id']}", **kept).status_code == 404

    path = f"/run/{MODEL}?queueRequest=true"
    queued = inside.post(path, {"requests": [{"prompt": "x"}]}).json()["result"]["request_id"]
    until(
        lambda: "responses" in outside.post(path, {"request_id": queued}).json().get("result", {})
    )
    queued = inside.post(path, {"requests": [{"prompt": "x"}]}, "eu").json()["result"]["request_id"]
    assert outside.post(path, {"request_id": queued}).status_code == 404


def test_a_bound_token_binds_without_a_header(skerry: Skerry) -> None:
    config = json.loads((skerry.home / "config.json").read_text())
    made = skerry("tokens", "create", "--account", config["account_id"], "--residency", "eu")
    token = made.stdout.strip()
    assert Client(skerry, "edge-fra", token).run("hello").status_code == 200
    assert Client(skerry, "edge-iad", token).run("hello").status_code == 421
    assert Client(skerry, "edge-iad", token).run("hello", "us").status_code == 403


def test_top_shows_regions_and_the_ways_between_them(skerry: Skerry) -> None:
    seen = json.loads(skerry("top", "--json", "--interval", "0.2").stdout)
    assert [(pool["region"], pool["nodes"]) for pool in seen["pools"]] == [("fra", 2), ("iad", 1)]
    assert {node["id"] for node in seen["nodes"]} == {*INSIDE, OUTSIDE}
    assert all(node["engine"]["blocks"] == 16 for node in seen["nodes"])
    assert [set(edge["rtt"]) for edge in seen["edges"]] == [{"fra", "iad"}, {"fra", "iad"}]
    shown = skerry("top", "--once", "--interval", "0.2")
    assert shown.returncode == 0
    assert "fra-a-1" in shown.stdout


def _names_of_blocks(skerry: Skerry, model: ModelFiles, prompts: list[str]) -> list[bytes]:
    """What the prompts' KV blocks are called."""
    from skerry_edge.text.model import TextModel

    config = json.loads((skerry.home / "config.json").read_text())
    text = TextModel(model, context_window=2048)
    scope = f"{config['account_id']}\0eu".encode()
    secret = (skerry.home / "secret").read_bytes()
    key = hashlib.blake2b(scope, key=secret, digest_size=32).digest()
    return [
        name
        for each in prompts
        for name in full_block_digests(model.model_key, key, text.encode(each, add_special=False))
    ]


def _files(home: Path) -> list[Path]:
    """All but the model and compiled kernels."""
    kept = [file for file in home.rglob("*") if file.is_file()]
    return [file for file in kept if "models" not in file.relative_to(home).parts]


def _holds_any(file: Path, traces: list[bytes]) -> bool:
    content = file.read_bytes()
    return any(trace in content for trace in traces)


def _is_inside(home: Path, file: Path) -> bool:
    """Whether the file belongs to a process that stands in the zone."""
    own = {hashlib.blake2b(node.encode(), digest_size=8).hexdigest() for node in INSIDE}
    place = file.relative_to(home)
    return (
        place.parts[:2] == ("zones", "eu")
        or (place.parts[0] == "logs" and "fra" in place.name)
        or (place.parts[:2] == ("cache", "kv") and bool(own & {*place.parts, place.stem}))
    )


def _cached_blocks(skerry: Skerry, node: str) -> int:
    socket = next(each["control"] for each in skerry.status()["nodes"] if each["id"] == node)
    transport = httpx.HTTPTransport(uds=socket.removeprefix("unix:"))
    with httpx.Client(transport=transport) as client:
        engines = client.get("http://localhost/status", timeout=10).json()["engines"]
    return sum(engine["blocks_cached"] + engine["blocks_filed"] for engine in engines.values())
