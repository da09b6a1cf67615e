"""Several control planes of one platform: processes with homes of their own, over one log."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
from tests.e2e.command import Skerry, until
from tests.regions.drivers.nats_server import NatsCluster, free_ports

SECRETS = ("authority.pem", "control.key", "cluster.key", "config.json")


class TurnTaker:
    """One `skerry control`."""

    def __init__(self, home: Path, state: str, port: int) -> None:
        self.skerry = Skerry(home)
        self.state = state
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self.log = home / "control.log"

    def start(self, *arguments: str) -> None:
        with self.log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "skerry", "control", "--port", str(self._port),
                 "--state", self.state, *arguments],
                env=self.skerry.environ, stdin=subprocess.DEVNULL, stderr=stderr,
            )  # fmt: skip
        until(lambda: self.metric("skerry_control_term") >= 0 or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()

    def metric(self, name: str) -> float:
        """One of its own; -1 while it does not answer."""
        try:
            text = self.call("GET", "/metrics").text
        except (httpx.HTTPError, FileNotFoundError):
            return -1.0
        [line] = [each for each in text.splitlines() if each.startswith(f"{name} ")]
        return float(line.split()[1])

    def call(self, method: str, path: str, body: object = None) -> httpx.Response:
        config = json.loads((self.skerry.home / "config.json").read_text())
        return httpx.request(
            method, f"{self.url}/control/v1{path}", json=body, timeout=30,
            headers={"authorization": f"Bearer {config['api_token']}"},
        )  # fmt: skip


class ControlPlanes:
    """They share secrets, as an operator copies them."""

    def __init__(self, folder: Path, cluster: NatsCluster, number: int = 2) -> None:
        self.all = [
            TurnTaker(folder / f"home{n}", cluster.url, port)
            for n, port in enumerate(free_ports(number))
        ]

    def start(self, *arguments: str) -> None:
        """Start the first, which draws the secrets, then the others."""
        for each in self.all:
            each.skerry.home.mkdir(mode=0o700)
        first, *others = self.all
        first.start(*arguments)
        until(lambda: first.metric("skerry_control_leader") == 1)
        for each in others:
            for name in SECRETS:
                shutil.copy2(first.skerry.home / name, each.skerry.home)
            each.start(*arguments)

    def leader(self, but: TurnTaker | None = None) -> TurnTaker:
        """Whoever leads, as soon as anyone does."""
        found: list[TurnTaker] = until(
            lambda: [
                each
                for each in self.all
                if each is not but and each.metric("skerry_control_leader") == 1
            ]
        )
        return found[0]

    @property
    def urls(self) -> str:
        return ",".join(each.url for each in self.all)

    def stop(self) -> None:
        for each in self.all:
            each.process.send_signal(signal.SIGCONT)
            each.process.terminate()
        for each in self.all:
            assert each.process.wait(60) == 0, each.log.read_text()
