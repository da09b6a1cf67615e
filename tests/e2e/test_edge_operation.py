"""Edges of a running topology: replaced without losing a stream, TLS, limits, revoked tokens."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.command import MODEL, SECONDS, Skerry, is_alive, new_home, until

from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

PAIRS = Path(__file__).parents[1] / "edge" / "data" / "tls"
STREAM = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell me about the sea."}],
    "max_tokens": 200,
    "ignore_eos": True,
    "seed": 7,
    "stream": True,
}


class Platform:
    """A topology of two edges, the second one with TLS, in front of one toy node."""

    def __init__(self, folder: Path, default_model: ModelFiles) -> None:
        self.skerry: Skerry = new_home(folder, default_model)
        self.cert, self.key = folder / "edge.pem", folder / "edge.key"
        self.put_certificate("first")
        file = folder / "topology.yaml"
        file.write_text(f"""\
regions:
  - {{name: fra, iata: FRA}}
pools:
  - {{name: toy, region: fra, role: hybrid, model: "{MODEL}", runner: toy}}
edges:
  - {{name: plain, region: fra}}
  - {{name: secure, region: fra, tls: {{cert: "{self.cert}", key: "{self.key}"}}}}
""")
        done = self.skerry("up", "--detach", "--topology", str(file))
        assert done.returncode == 0, done.stderr
        config = json.loads((self.skerry.home / "config.json").read_text())
        self.account, self.token = config["account_id"], config["api_token"]

    def put_certificate(self, name: str) -> None:
        for source, target in ((f"{name}.pem", self.cert), (f"{name}.key", self.key)):
            shutil.copy(PAIRS / source, target.with_suffix(".draft"))
            os.replace(target.with_suffix(".draft"), target)

    def edge(self, name: str) -> dict[str, Any]:
        edges = self.skerry.status()["edges"]
        return next(edge for edge in edges if edge["id"].rpartition("-")[0] == name)

    def client(self, edge: str = "plain", token: str = "", trust: str = "first") -> httpx.Client:
        context = ssl.create_default_context(cafile=str(PAIRS / f"{trust}.pem"))
        base = f"{self.edge(edge)['url']}/client/v4/accounts/{self.account}/ai/"
        headers = {"authorization": f"Bearer {token or self.token}"}
        return httpx.Client(base_url=base, headers=headers, verify=context, timeout=SECONDS)

    @property
    def log(self) -> str:
        return "".join(log.read_text() for log in (self.skerry.home / "logs").glob("plain-*.log"))


def ask(client: httpx.Client) -> httpx.Response:
    return client.post(f"run/{MODEL}", json={"prompt": "hi", "max_tokens": 2})


def text_of(lines: Iterator[str]) -> tuple[str, int]:
    """What a stream says from here on, and how often it ends well."""
    text, num_done = "", 0
    for line in lines:
        if line == "data: [DONE]":
            num_done += 1
        elif line.startswith("data: "):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                text += choice["delta"].get("content", "")
    return text, num_done


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles
) -> Iterator[Platform]:
    platform = Platform(tmp_path_factory.mktemp("edges"), default_model)
    yield platform
    assert platform.skerry("down", "--timeout", "20").returncode == 0


def stream(client: httpx.Client) -> tuple[str, int]:
    with client.stream("POST", "v1/chat/completions", json=STREAM) as response:
        return text_of(response.iter_lines())


def test_edges_are_replaced_without_losing_a_stream_or_a_request(platform: Platform) -> None:
    before = {name: platform.edge(name)["pid"] for name in ("plain", "secure")}
    statuses: list[int] = []
    streams: list[tuple[str, int]] = []
    reloaded = threading.Event()

    def keep_asking() -> None:
        with platform.client() as client:
            while not reloaded.is_set():
                statuses.append(ask(client).status_code)

    def keep_streaming() -> None:
        with platform.client() as client:
            while not reloaded.is_set():
                streams.append(stream(client))

    with platform.client() as client:
        undisturbed = stream(client)
    askers = [threading.Thread(target=each) for each in (keep_asking, *[keep_streaming] * 3)]
    for each in askers:
        each.start()
    try:
        done = platform.skerry("reload")
    finally:
        reloaded.set()
        for each in askers:
            each.join()
    assert done.returncode == 0, done.stderr
    assert not {platform.edge(name)["pid"] for name in before} & set(before.values())
    assert undisturbed[1] == 1
    assert len(streams) >= 3
    assert set(streams) == {undisturbed}
    assert set(statuses) == {200}
    until(lambda: not any(map(is_alive, before.values())))
    with platform.client() as client:
        assert ask(client).status_code == 200


def test_a_new_certificate_is_shown_without_a_restart(platform: Platform) -> None:
    pid = platform.edge("secure")["pid"]
    with platform.client("secure") as old:
        assert ask(old).status_code == 200
        platform.put_certificate("second")

        def is_new() -> bool:
            assert ask(old).status_code == 200  # over its connection, which pools close when idle
            with platform.client("secure", trust="second") as client:
                try:
                    return ask(client).status_code == 200
                except httpx.ConnectError:
                    return False

        until(is_new)
    assert platform.edge("secure")["pid"] == pid


def test_limits_change_while_it_runs(platform: Platform) -> None:
    limits = platform.skerry.home / "limits.yaml"
    with platform.client() as client:
        assert "x-ratelimit-limit-requests" not in ask(client).headers
        limits.write_text("every_tenant: {requests_per_minute: 6}\n")
        until(lambda: ask(client).status_code == 429)
        refused = ask(client)
        assert refused.json()["errors"][0]["code"] == 2003
        assert refused.headers["x-ratelimit-limit-requests"] == "3"  # of two edges, each lets half
        limits.write_text("every_tenant: {requests_per_minute: fast}\n")
        until(lambda: "limits.yaml:1: every_tenant.requests_per_minute" in platform.log)
        assert ask(client).headers["x-ratelimit-limit-requests"] == "3"
        limits.unlink()
        until(lambda: ask(client).status_code == 200)


def test_a_revoked_token_ends_at_once(platform: Platform) -> None:
    created = platform.skerry("tokens", "create", "--name", "lost")
    token = created.stdout.strip()
    with (
        platform.client(token=token) as client,
        client.stream(
            "POST", "v1/chat/completions", json=STREAM | {"max_tokens": 4000}
        ) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        assert platform.skerry("tokens", "revoke", token).returncode == 0
        assert ask(client).status_code == 401
        rest = list(lines)
    assert "data: [DONE]" not in rest
    assert (
        json.loads([line for line in rest if line][-1].removeprefix("data: "))["error"]["code"]
        == "authentication_error"
    )


@pytest.mark.slow
def test_an_edge_whose_successor_does_not_start_serves_on(platform: Platform) -> None:
    before = {name: platform.edge(name)["pid"] for name in ("plain", "secure")}
    platform.cert.write_text("no certificate")
    done = platform.skerry("reload")
    assert done.returncode == 1
    assert "secure-" in done.stderr
    assert "plain-" not in done.stderr
    assert platform.edge("plain")["pid"] != before["plain"]
    assert platform.edge("secure")["pid"] == before["secure"]
    assert is_alive(before["secure"])
    platform.put_certificate("first")
    until(lambda: platform.edge("secure")["pid"] not in (0, before["secure"]))
    with platform.client("secure") as client:
        assert ask(client).status_code == 200


def test_one_process_with_tls_reads_again_when_it_is_told(
    tmp_path: Path, default_model: ModelFiles
) -> None:
    skerry = new_home(tmp_path, default_model)
    skerry.up("--tls-cert", str(PAIRS / "first.pem"), "--tls-key", str(PAIRS / "first.key"))
    try:
        config = json.loads((skerry.home / "config.json").read_text())
        assert config["url"].startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=str(PAIRS / "first.pem"))
        ready = httpx.get(f"{config['url']}/readyz", verify=trust, timeout=SECONDS)
        assert ready.json()["models"]
        (skerry.home / "limits.yaml").write_text("every_tenant: {concurrency: none}\n")
        told = skerry("reload")
        assert told.returncode == 0, told.stderr
        assert "reads its configuration again" in told.stdout
        log = skerry.home / "logs" / "skerry.log"
        until(lambda: "limits.yaml:1: every_tenant.concurrency" in log.read_text())
    finally:
        assert skerry("down", "--timeout", "20").returncode == 0
