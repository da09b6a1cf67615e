"""A real Prometheus finds a platform of three regions by itself: every panel has data, and alerts
fire in their faults."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.command import MODEL, SECONDS, Skerry, new_home, until
from tests.infra.test_monitoring import FOLDER, NAME, panels, rules
from tests.tools import program

from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow]

POOL = f'model: "{MODEL}", runner: toy, threads: 1'
TOPOLOGY = f"""\
regions:
  - {{name: fra, iata: FRA}}
  - {{name: iad, iata: IAD}}
  - {{name: gru, iata: GRU}}
pools:
  - {{name: prefill, region: fra, role: prefill, {POOL}}}
  - {{name: decode, region: fra, role: decode, replicas: 2, {POOL}}}
  - {{name: all, region: iad, role: hybrid, {POOL}}}
  - {{name: all, region: gru, role: hybrid, {POOL}}}
edges:
  - {{name: edge-fra, region: fra}}
  - {{name: edge-iad, region: iad}}
  - {{name: edge-gru, region: gru}}
"""
LAUNCHED = f"""\
regions: [{{name: ams, iata: AMS}}]
pools: [{{name: own, region: ams, role: hybrid, file_tier: none, {POOL}}}]
"""
LOST = f'{LAUNCHED[:-2]}, {{name: lost, region: ams, role: hybrid, model: "@cf/no/such"}}]\n'
STREAMED = {"prompt": "The sea is " * 600, "raw": True, "max_tokens": 400, "stream": True}
TARGETS = {
    "skerry-control": {"control"},
    "skerry-edge": {"edge-fra", "edge-iad", "edge-gru"},
    "skerry-node": {
        "fra-prefill-0", "fra-decode-0", "fra-decode-1", "iad-all-0", "gru-all-0", "ams-own-0",
    },
}  # fmt: skip


def metrics_token(skerry: Skerry) -> str:
    """Return a new token that reads figures."""
    made = skerry("tokens", "create", "--name", "prometheus", "--role", "viewer",
                  "--scope", "read", "--scope", "metrics")  # fmt: skip
    assert made.returncode == 0, made.stderr
    token = re.search(r"skerry_\S+", made.stdout)
    assert token is not None
    return token[0]


class Prometheus:
    """A server with the project's rules and configuration, at a port of its own."""

    def __init__(self, folder: Path, skerry: Skerry, *changes: tuple[str, str]) -> None:
        """`changes` are made to the configuration and to the rules."""
        config = json.loads((skerry.home / "config.json").read_text())
        (folder / "token").write_text(metrics_token(skerry))
        text = (FOLDER / "prometheus.yml").read_text()
        text = text.replace("/etc/prometheus/skerry.token", str(folder / "token"))
        text = text.replace("http://127.0.0.1:8788", config["control_url"])
        text = text.partition("  - job_name: skerry-dns")[0]  # there is none here
        text = text.replace("scrape_interval: 5s", "{scrape_interval: 1s, evaluation_interval: 1s}")
        text = re.sub(r"refresh_interval: \w+", "refresh_interval: 5s", text)
        text = text.replace("global:\n  ", "global: ")
        alerts = re.sub(r"\n +for: \w+", "", (FOLDER / "alerts.yml").read_text())
        alerts = alerts.replace("[5m]", "[30s]")  # what lasts for minutes, lasts for seconds here
        for before, after in changes:
            text, alerts = text.replace(before, after), alerts.replace(before, after)
        (folder / "prometheus.yml").write_text(text)
        (folder / "alerts.yml").write_text(alerts)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [program("prometheus", "prometheus", alone=True),
             f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={self._address}"],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def get(self, path: str, **params: str) -> Any:
        """Return the data of an answer; None while there is none."""
        try:
            answer = httpx.get(f"http://{self._address}/api/v1/{path}", params=params)
        except httpx.TransportError:
            return None
        assert answer.status_code in (200, 503), answer.text
        return answer.json()["data"] if answer.status_code == 200 else None

    def up(self) -> dict[str, set[str]]:
        """Return instances that answer, by job."""
        found: dict[str, set[str]] = {}
        for series in self.series("up == 1"):
            found.setdefault(series["job"], set()).add(series["instance"])
        return found

    def series(self, expression: str) -> list[dict[str, str]]:
        """Return the labels of what an expression gives now; not-a-numbers are none."""
        data = self.get("query", query=expression.replace("$__rate_interval", "1m"))
        return [each["metric"] for each in (data or {"result": []})["result"]
                if each["value"][1] != "NaN"]  # fmt: skip

    def firing(self) -> set[str]:
        """Return names of alerts."""
        return {
            each["labels"]["alertname"] for each in (self.get("alerts") or {"alerts": []})["alerts"]
        }

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(SECONDS)
        self._log.close()


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles) -> Iterator[Skerry]:
    parent = tmp_path_factory.mktemp("watched")
    skerry = new_home(parent, default_model)
    for name, text in (("topology", TOPOLOGY), ("own", LAUNCHED), ("lost", LOST)):
        (parent / f"{name}.yaml").write_text(text)
    done = skerry("up", "--detach", "--topology", str(parent / "topology.yaml"))
    assert done.returncode == 0, done.stderr
    applied = skerry("apply", "-f", str(parent / "own.yaml"))
    assert applied.returncode == 0, applied.stderr
    yield skerry
    assert skerry("down").returncode == 0


@pytest.fixture(scope="module")
def prometheus(skerry: Skerry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    prometheus = Prometheus(tmp_path_factory.mktemp("prometheus"), skerry)
    yield prometheus
    prometheus.stop()


@pytest.fixture(scope="module")
def asking(skerry: Skerry) -> Iterator[None]:
    """Streams at every edge, and requests that fail, until the tests are over."""
    config = json.loads((skerry.home / "config.json").read_text())
    headers = {"authorization": f"Bearer {config['api_token']}"}
    stop = threading.Event()

    def ask(edge: str) -> None:
        url = f"{edge}/client/v4/accounts/{config['account_id']}/ai/run/{MODEL}"
        number = 0
        while not stop.is_set():
            number += 1
            asked = STREAMED | {"seed": number, "prompt": f"{number} {STREAMED['prompt']}"}
            try:
                httpx.post(url, json=asked, headers=headers, timeout=SECONDS)
            except httpx.TransportError:
                continue

    threads = [
        threading.Thread(target=ask, args=(edge["url"],)) for edge in skerry.status()["edges"]
    ]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


RARE = r"handover_seconds|generation_errors"
"""Of KV, which toy models do not need; and of generations that failed, which none is to do here."""
WRONG = "resumes"  # what has data once something went wrong


def expressions() -> dict[bool, set[str]]:
    """Return what panels show, by whether something went wrong for that."""
    found = {target["expr"] for panel in panels() for target in panel["targets"]}
    shown = {each for each in found if not re.search(RARE, each)}
    wrong = {each for each in shown if re.search(WRONG, each)}
    return {True: wrong, False: shown - wrong}


def test_all_is_found_and_all_is_well(prometheus: Prometheus, asking: None) -> None:
    until(lambda: prometheus.up() == TARGETS)
    until(lambda: all(map(prometheus.series, expressions()[False])))
    asked = {name for rule in rules() for name in NAME.findall(rule["expr"])}
    events = {"skerry_resumes_total", "skerry_generation_errors_total"}
    elsewhere = {"skerry_control_crash_loops", "skerry_certificate_end_timestamp_seconds"}
    for name in asked - events - elsewhere:
        assert name.startswith("skerry_dns_") or prometheus.series(name), name
    assert prometheus.firing() == set()


def test_a_node_that_is_killed_again_and_again(
    skerry: Skerry, prometheus: Prometheus, asking: None
) -> None:
    until(lambda: prometheus.up() == TARGETS)
    for count in range(1, 6):
        before = node(skerry, "fra-decode-0")
        os.kill(before["pid"], signal.SIGKILL)
        until(lambda: node(skerry, "fra-decode-0")["pid"] not in (0, before["pid"]))  # noqa: B023
        until(lambda: number(prometheus, RESTARTS) >= count)  # noqa: B023
    until(lambda: "SkerryCrashLoop" in prometheus.firing())


def test_streams_that_lose_their_node_are_seen(
    skerry: Skerry, prometheus: Prometheus, asking: None
) -> None:
    def struck() -> bool:
        near = node(skerry, "iad-all-0")
        if near["streams"] and near["pid"]:
            os.kill(near["pid"], signal.SIGKILL)
        return all(map(prometheus.series, expressions()[True]))

    until(struck)


def test_a_pool_that_cannot_run(skerry: Skerry, prometheus: Prometheus) -> None:
    assert prometheus.firing().isdisjoint({"SkerryPoolDegraded", "SkerryNoNodes"})
    lost = skerry.home.parent / "lost.yaml"
    assert skerry("apply", "-f", str(lost)).returncode == 0
    until(lambda: {"SkerryPoolDegraded", "SkerryNoNodes"} <= prometheus.firing())
    told = skerry("status")
    assert "pool ams-lost is degraded: 5007" in told.stderr
    assert skerry("rollback").returncode == 0
    until(lambda: prometheus.firing().isdisjoint({"SkerryPoolDegraded", "SkerryNoNodes"}))


def test_an_edge_that_freezes(skerry: Skerry, prometheus: Prometheus) -> None:
    until(lambda: prometheus.up() == TARGETS)
    edge = next(each for each in skerry.status()["edges"] if each["id"] == "edge-gru")
    os.kill(edge["pid"], signal.SIGSTOP)
    until(lambda: "SkerryDown" in prometheus.firing())
    os.kill(edge["pid"], signal.SIGCONT)
    until(lambda: prometheus.up() == TARGETS)  # or its successor, had it been given up


def node(skerry: Skerry, id: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in skerry.status()["nodes"] if each["id"] == id)
    return found


RESTARTS = 'skerry_process_restarts_total{id="fra-decode-0"}'


def number(prometheus: Prometheus, expression: str) -> float:
    data = prometheus.get("query", query=expression)
    return sum(float(each["value"][1]) for each in data["result"])
