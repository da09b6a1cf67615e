"""A node and an edge with homes of their own, as on two machines, find each other over NATS."""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command import MODEL, Skerry, new_home, until
from tests.regions.drivers.nats_server import NatsServer

from skerry import AI
from skerry_cli.home.control import EdgeStatus, NodeStatus, Status, ask_status
from skerry_regions.drivers.nats_registry import NatsRegistry
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model


TOPOLOGY = f"""\
regions:
  - {{name: fra, iata: FRA}}
  - {{name: iad, iata: IAD}}
pools:
  - {{name: near, region: fra, role: hybrid, model: "{MODEL}", runner: toy}}
  - {{name: far, region: iad, role: hybrid, model: "{MODEL}", runner: toy}}
edges:
  - {{name: edge-fra, region: fra}}
  - {{name: edge-iad, region: iad}}
"""
ASKED: dict[str, Any] = {"prompt": "The sea is", "max_tokens": 8}


class Machine:
    """A home, and one process of it that runs until the end."""

    def __init__(self, skerry: Skerry, registry: str, key: bytes, *command: str) -> None:
        self.skerry = skerry
        key_file = skerry.home / "cluster.key"
        key_file.touch(mode=0o600)
        key_file.write_bytes(key)
        self._log = skerry.home / "process.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "skerry", *command],
                env=skerry.environ | {"SKERRY_REGISTRY": registry},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def ready_at(self) -> str:
        deadline = time.monotonic() + 90
        while not (told := re.search(r"is ready at (\S+)\.\n", self._log.read_text())):
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)
        return told[1]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    yield server
    server.stop()


def test_an_edge_is_served_by_a_node_of_another_home(
    tmp_path: Path, default_model: ModelFiles, server: NatsServer
) -> None:
    homes = [tmp_path / name for name in ("a", "b")]
    for home in homes:
        home.mkdir()
    one, other = (new_home(home, default_model) for home in homes)
    key = secrets.token_bytes(32)
    node = Machine(
        one, server.url, key,
        "node", "--id", "n-1", "--model", MODEL, "--runner", "toy", "--address", "tcp:127.0.0.1:0",
    )  # fmt: skip
    assert node.ready_at().startswith("tcp:127.0.0.1:")
    edge = Machine(other, server.url, key, "edge", "--id", "e-1", "--model", MODEL, "--port", "0")
    url = edge.ready_at()
    made = other("tokens", "create", "--account", "new")
    account = re.search(r"of account ([0-9a-f]{32})", made.stderr)
    assert account is not None, made.stderr
    with AI(base_url=url, account_id=account[1], api_token=made.stdout.strip()) as ai:
        asked: dict[str, Any] = {"prompt": "The sea is", "max_tokens": 4}
        answer = ai.run(MODEL, asked)
        assert answer["usage"]["completion_tokens"] == 4
        server.kill()
        assert ai.run(MODEL, asked)["response"], "what was known last stays true"
    edge.stop()
    edge = Machine(other, server.url, key, "edge", "--id", "e-1", "--model", MODEL, "--port", "0")
    with AI(base_url=edge.ready_at(), account_id=account[1], api_token=made.stdout.strip()) as ai:
        assert ai.run(MODEL, asked) == answer, "for an edge that starts meanwhile, too"
    server.start()
    edge.stop()
    node.stop()
    assert not (one.home / "run" / "registry.db").exists()
    assert os.listdir(other.home / "run") == ["state.lock"]


@pytest.mark.slow
def test_a_topology_serves_without_its_registry(
    tmp_path: Path, default_model: ModelFiles, server: NatsServer
) -> None:
    """From its start on, through the deaths of its processes; and it is back in it at once."""
    skerry = replace(new_home(tmp_path, default_model), registry=server.url)
    server.kill()
    file = tmp_path / "topology.yaml"
    file.write_text(TOPOLOGY)
    done = skerry("up", "--detach", "--topology", str(file))
    assert done.returncode == 0, done.stderr
    try:
        [note] = json.loads(done.stdout)["notes"]
        assert note.startswith(f"the registry is away: {server.url}: ")
        assert "Traceback" not in (skerry.home / "logs" / "skerry.log").read_text()
        instance = json.loads((skerry.home / "run" / "instance.json").read_text())
        status = functools.partial(ask_status, instance["control"])
        with skerry.ai() as ai:
            first = ai.run(MODEL, ASKED)["response"]
            before = status()
            for each in (before.nodes[0], before.edges[0]):
                kill(each, status)
                assert ai.run(MODEL, ASKED)["response"] == first
            assert note in status().notes
            server.start()
            registry = NatsRegistry(server.url)
            ids = {each.id for each in (*before.nodes, *before.edges)}
            until(lambda: {member.id for member in registry.members()} == ids)
            registry.close()
            assert ai.run(MODEL, ASKED)["response"] == first
            until(lambda: not any("registry" in each for each in status().notes))

            lost = Path(before.nodes[0].control.removeprefix("unix:")).with_suffix(".node")
            lost.unlink()
            for edge in before.edges:
                kill(edge, status)

            def unserved() -> list[str]:
                return [each.partition(":")[0] for each in status().notes if "no edge" in each]

            until(lambda: unserved() == ["fra-near-0 serves no edge"])
    finally:
        assert skerry("down", "--timeout", "20").returncode == 0


def kill(process: NodeStatus | EdgeStatus, status: Callable[[], Status]) -> None:
    """Return when another process stands in its place, and is ready."""

    def now() -> NodeStatus | EdgeStatus:
        found = status()
        return next(each for each in (*found.nodes, *found.edges) if each.id == process.id)

    old = now().pid
    os.kill(old, signal.SIGKILL)
    until(lambda: now().pid not in (0, old) and getattr(now(), "state", "ready") == "ready")
