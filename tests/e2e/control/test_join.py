"""`skerry node --join`: machines with homes of their own become part of a control plane's pools."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.command import MODEL, SECONDS, Skerry, new_home, until
from tests.e2e.control.control_client import ControlClient

from skerry import AI
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.process.process_lock import holder

pytestmark = pytest.mark.model

POOL = {"region": "fra", "role": "hybrid", "model": MODEL, "runner": "toy", "threads": 1}
ASKED: dict[str, Any] = {"prompt": "The sea is " * 30, "raw": True, "seed": 7, "max_tokens": 200}


class Process:
    """A command that runs until it is stopped, with its log."""

    def __init__(self, skerry: Skerry, name: str, *command: str) -> None:
        self.skerry = skerry
        self._name = name
        self._command = command
        self.start()

    def start(self) -> None:
        self._log = self.skerry.home / f"{self._name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "skerry", *self._command],
                env=self.skerry.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def says(self, pattern: str) -> re.Match[str]:
        def said() -> re.Match[str] | None:
            told = self._log.read_text()
            assert self.process.poll() is None, told
            return re.search(pattern, told)

        found: re.Match[str] = until(said)
        return found

    def end(self, number: signal.Signals = signal.SIGTERM) -> str:
        """What it said."""
        self.process.send_signal(number)
        try:
            self.process.wait(SECONDS)
        finally:
            self.process.kill()
        return self._log.read_text()


class Platform:
    """A control plane that takes machines, with an edge and a pool of none."""

    def __init__(self, folder: Path, model: ModelFiles) -> None:
        self.folder, self.model = folder, model
        self.skerry = new_home(folder, model)
        self._processes: list[Process] = []
        self._clients: list[ControlClient] = []

    def start(self, *arguments: str, port: str = "0") -> None:
        """The control plane, and a client of it."""
        self.control = self._run(
            self.skerry, "control", "control", "--port", "0", "--own",
            "--join-host", "127.0.0.1", "--join-port", port, *arguments,
        )  # fmt: skip
        self.url = self.control.says(r"Machines join at (\S+)\.\n")[1]
        self.control.says("is ready at")
        self.client = ControlClient(self.skerry)
        self._clients.append(self.client)

    def close(self) -> None:
        """Nothing runs on, whatever a test that failed has left."""
        for client in self._clients:
            client.http.close()
        for process in reversed(self._processes):
            process.end()
        for lock in (self.skerry.home / "run" / "launched").glob("*.lock"):
            if (pid := holder(lock)) is not None:
                os.kill(pid, signal.SIGKILL)

    def _run(self, skerry: Skerry, name: str, *command: str) -> Process:
        process = Process(skerry, name, *command)
        self._processes.append(process)
        return process

    def token(self, *arguments: str) -> str:
        made = self.skerry("control", "token", "create", *arguments)
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    def machine(self, name: str, token: str, *arguments: str) -> Process:
        """A node that joins from a home of its own."""
        (self.folder / name).mkdir()
        skerry = new_home(self.folder / name, self.model)
        (skerry.home / "token").write_text(token + "\n")
        return self._run(
            skerry, "node", "node", "--join", self.url, "--token-file", str(skerry.home / "token"),
            "--address", "tcp:127.0.0.1:0", "--file-tier", "none", *arguments,
        )  # fmt: skip

    def edge(self, name: str, token: str) -> Process:
        """An edge that joins from a home of its own."""
        (self.folder / name).mkdir()
        skerry = new_home(self.folder / name, self.model)
        return self._run(
            skerry, "edge", "edge", "--join", self.url, "--token", token, "--port", "0",
            "--gateway", "tcp:127.0.0.1:0",
        )  # fmt: skip

    def ai(self) -> AI:
        url = self.client.until_ready("edge_nodes/edge")["status"]["url"]
        return AI(base_url=url, account_id=self.client.account, api_token=self.client.token)


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles
) -> Iterator[Platform]:
    platform = Platform(tmp_path_factory.mktemp("join"), default_model)
    try:
        platform.start()
        platform.client.make("regions", name="fra", iata="FRA", residency="eu")
        platform.client.make("pools", name="gpu", replicas=0, **POOL)
        platform.client.make("edge_nodes", name="edge", region="fra")
        yield platform
    finally:
        platform.close()


@pytest.fixture(scope="module")
def machines(platform: Platform) -> list[Process]:
    """Two of the pool, which serve."""
    token = platform.token("--pool", "fra-gpu", "--uses", "3")
    machines = [platform.machine(name, token) for name in ("one", "two")]
    for machine in machines:
        machine.says(r"Node fra-gpu-[0-9a-f]{8} is ready at tcp:127\.0\.0\.1:")
    until(lambda: platform.client.get("pools/fra-gpu")["status"]["ready_replicas"] == 2)
    return machines


def test_an_edge_is_served_by_machines_that_joined(
    platform: Platform, machines: list[Process]
) -> None:
    with platform.ai() as ai:
        assert ai.run(MODEL, ASKED)["usage"]["completion_tokens"] > 0
    pool = platform.client.until_ready("pools/fra-gpu")
    assert pool["status"]["desired_replicas"] == 2
    nodes = [node for node in platform.client.nodes().values() if node["kind"] == "node"]
    assert [(node["owner"], node["updated"]) for node in nodes] == [("fra-gpu", True)] * 2
    home = machines[0].skerry.home
    for name in ("machine/key.pem", "cluster.key"):
        assert (home / name).stat().st_mode & 0o777 == 0o600


def test_a_token_that_was_deleted_lets_nobody_join(platform: Platform) -> None:
    token = platform.token("--pool", "fra-gpu", "--expires", "30m", "--name", "spare")
    listed = platform.skerry("control", "token", "list").stdout
    assert re.search(rf"{token.split('_')[1]}  fra-gpu +0 of 1 .* spare\n", listed), listed
    assert platform.skerry("control", "token", "delete", token).returncode == 0
    late = platform.machine("late", token)
    late.process.wait(SECONDS)
    assert "The join token is wrong, or was deleted." in late.end()


def test_what_is_known_stays_true_without_the_control_plane(
    platform: Platform, machines: list[Process]
) -> None:
    with platform.ai() as ai:
        before = sorted(platform.client.nodes())
        platform.control.end(signal.SIGKILL)
        assert ai.run(MODEL, ASKED)["usage"]["completion_tokens"] > 0
    machines[1].end()
    machines[1].start()
    machines[1].says("Going on as before")
    machines[1].says("is ready at")

    platform.start(port=platform.url.rpartition(":")[2])
    until(lambda: platform.client.get("pools/fra-gpu")["status"]["ready_replicas"] == 2)
    assert sorted(platform.client.nodes()) == before


@pytest.mark.slow
def test_a_changed_pool_rolls_over_its_machines_without_a_cut_stream(
    platform: Platform, machines: list[Process]
) -> None:
    with platform.ai() as ai:
        undisturbed = ai.run(MODEL, ASKED)["response"]
        answers: list[str] = []
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                answers.append(ai.run(MODEL, ASKED)["response"])

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for thread in asking:
            thread.start()
        pids = [machine.process.pid for machine in machines]
        try:
            platform.client.patch("pools/fra-gpu", kv_blocks=128)
            until(lambda: platform.client.get("pools/fra-gpu")["status"]["updated_replicas"] < 2)
            until(lambda: platform.client.get("pools/fra-gpu")["status"]["updated_replicas"] == 2)
        finally:
            stop.set()
            for thread in asking:
                thread.join()
    assert set(answers) == {undisturbed}
    assert [machine.process.pid for machine in machines] == pids, "it begins anew in its place"


def test_an_edge_joins_and_follows_the_platforms_tokens(
    platform: Platform, machines: list[Process]
) -> None:
    edge = platform.edge("edge", platform.token("--region", "fra", "--role", "edge"))
    url = edge.says(r"Edge fra-edge-[0-9a-f]{8} is ready at (\S+)\.\n")[1]
    http = platform.client.http
    made = http.post("/api_tokens", json={"name": "ci", "scopes": ["run", "read"]}).json()

    def status() -> int:
        verify = f"{url}/client/v4/user/tokens/verify"
        bearer = {"authorization": f"Bearer {made['secret']}"}
        return httpx.get(verify, headers=bearer, timeout=SECONDS).status_code

    until(lambda: status() == 200)
    with AI(base_url=url, account_id=platform.client.account, api_token=made["secret"]) as ai:
        assert ai.run(MODEL, ASKED)["usage"]["completion_tokens"] > 0
    until(lambda: url in {node["address"] for node in platform.client.nodes().values()})
    assert http.delete(f"/api_tokens/{made['id']}").status_code == 204
    until(lambda: status() == 401)
    home = edge.skerry.home
    for name in ("secret", "cluster.key"):
        assert (home / name).read_bytes() == (platform.skerry.home / name).read_bytes()
        assert (home / name).stat().st_mode & 0o777 == 0o600
    edge.end()


def test_a_revoked_machine_is_shut_out(platform: Platform, machines: list[Process]) -> None:
    id = machines[0].says(r"as (fra-gpu-[0-9a-f]{8})\.")[1]
    revoked = platform.skerry("control", "machine", "revoke", id)
    assert revoked.stdout == f"Machine {id} is revoked.\n", revoked.stderr
    assert "it can join again: `skerry control token delete" in revoked.stderr
    until(lambda: id not in platform.client.nodes())
    with platform.ai() as ai:
        assert ai.run(MODEL, ASKED)["usage"]["completion_tokens"] > 0
    machines[0].process.wait(SECONDS)
    assert f"The control plane has revoked the machine {id}." in machines[0].end()
    for home in (platform.skerry.home, machines[1].skerry.home):
        until(lambda home=home: id in (home / "machine" / "revoked").read_text().splitlines())
    machines[0].start()
    machines[0].process.wait(SECONDS)
    assert f"the machine '{id}' was revoked" in machines[0].end()
    listed = platform.skerry("control", "machine", "list").stdout
    assert re.search(rf"{id} .* revoked ", listed), listed


@pytest.mark.slow
def test_a_region_that_drains_pauses_its_machines(
    platform: Platform, machines: list[Process]
) -> None:
    platform.client.patch("regions/fra", draining=True)
    machines[1].says("Waiting: the region 'fra' drains")
    platform.client.patch("regions/fra", draining=False)
    until(lambda: platform.client.get("pools/fra-gpu")["status"]["ready_replicas"] == 1)


@pytest.mark.slow
def test_an_edge_in_another_zone_is_another_edge(
    platform: Platform, machines: list[Process]
) -> None:
    edge = platform.edge("moved", platform.token("--region", "fra", "--role", "edge"))
    edge.says("is ready at")
    platform.client.patch("regions/fra", residency="de")
    edge.says(r"(?s)starting again\..*is ready at")
    assert (edge.skerry.home / "zones" / "de").is_dir()
    edge.end()
