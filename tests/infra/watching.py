"""A real Prometheus with the project's rules, whose minutes are seconds here."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Set
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import httpx
from tests.e2e.command import SECONDS, Skerry, until
from tests.infra.test_monitoring import FOLDER
from tests.tools import program

WINDOWS = {"1m": "6s", "5m": "6s", "10m": "30s"}  # that rates are over
PENDING = {"30s": "3s", "1m": "8s", "2m": "8s", "5m": "12s", "10m": "20s"}  # `for`
SLOW = (("[6s]))) > 2", "[6s]))) > 60"), ("[6s]))) > 0.5", "[6s]))) > 20"))
"""Changes to the rules of latencies, where these say how busy the machine of the test is."""
SCRAPE = "scrape_interval: 1s, evaluation_interval: 1s, scrape_timeout: 1s"

Fault = Callable[[Skerry], AbstractContextManager[None]]


def metrics_token(skerry: Skerry) -> str:
    """Return a new token that reads figures."""
    made = skerry("tokens", "create", "--name", "prometheus", "--role", "viewer",
                  "--scope", "read", "--scope", "metrics")  # fmt: skip
    assert made.returncode == 0, made.stderr
    token = re.search(r"skerry_\S+", made.stdout)
    assert token is not None
    return token[0]


def quick_rules() -> str:
    """Return the project's rules, with windows and `for` of seconds."""
    rules = (FOLDER / "alerts.yml").read_text()
    rules = re.sub(r"\[(\w+)\]", lambda found: f"[{WINDOWS[found[1]]}]", rules)
    return re.sub(r"for: (\w+)", lambda found: f"for: {PENDING[found[1]]}", rules)


def quick_configuration(folder: Path, skerry: Skerry, dns: str) -> str:
    """Return the project's configuration, for a platform and a DNS server's metrics."""
    (folder / "token").write_text(metrics_token(skerry))
    config = json.loads((skerry.home / "config.json").read_text())
    text = (FOLDER / "prometheus.yml").read_text()
    text = text.replace("/etc/prometheus/skerry.token", str(folder / "token"))
    text = text.replace("http://127.0.0.1:8788", config["control_url"])
    text = re.sub(r"global:\n +scrape_interval: 5s", f"global: {{{SCRAPE}}}", text)
    text = re.sub(r"refresh_interval: \w+", "refresh_interval: 1s", text)
    if dns:
        return text.replace("127.0.0.1:9103", dns)
    return text.partition("  - job_name: skerry-dns")[0]


@contextlib.contextmanager
def running(skerry: Skerry, topology: Path, *down: str) -> Generator[None]:
    """Run a topology's platform while the block runs; `down` are options of its end."""
    done = skerry("up", "--detach", "--topology", str(topology))
    assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        assert skerry("down", *down).returncode == 0


class Prometheus:
    """A server at a port of its own. A context manager, which ends with it."""

    def __init__(
        self, folder: Path, skerry: Skerry, *changes: tuple[str, str], dns: str = ""
    ) -> None:
        """`changes` are made to the configuration and to the rules; `dns` is where a DNS server's
        metrics are."""
        self._folder = folder
        text, alerts = quick_configuration(folder, skerry, dns), quick_rules()
        for before, after in changes:
            assert before in text + alerts
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
            assert self._process.poll() is None, (self._folder / "log").read_text()
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

    def number(self, expression: str) -> float:
        """Return the sum of what an expression gives now."""
        data = self.get("query", query=expression)
        return sum(float(each["value"][1]) for each in (data or {"result": []})["result"])

    def firing(self) -> set[str]:
        """Return names of alerts that fire now."""
        return self._alerts('ALERTS{alertstate="firing"}')

    def fired(self, seconds: float) -> set[str]:
        """Return names of alerts that fired in the last seconds, however shortly."""
        return self._alerts(f'max_over_time(ALERTS{{alertstate="firing"}}[{seconds:.0f}s])')

    def _alerts(self, expression: str) -> set[str]:
        return {each["alertname"] for each in self.series(expression)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(SECONDS)
        self._log.close()


def assert_fires_alone(
    prometheus: Prometheus, skerry: Skerry, fault: Fault, alert: str, also: Set[str] = frozenset()
) -> None:
    """Do harm: its alert fires, no other one does until all is well again, and it ends then.

    What may fire `also` is what the harm consists of.
    """
    until(lambda: prometheus.firing() == set())
    began = time.monotonic()
    with fault(skerry):
        until(lambda: prometheus.firing() - also)
    until(lambda: prometheus.firing() == set())
    fired = prometheus.fired(time.monotonic() - began)
    assert fired - also == {alert}, fired
