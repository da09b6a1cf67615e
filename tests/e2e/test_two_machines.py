"""A model over two machines, each a home with a certificate, over HTTP."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.docs.test_examples import blocks
from tests.e2e.command import MODEL, ROOT, SECONDS, Skerry, until
from tests.e2e.divided_nodes import ASKED, TOPOLOGY, ask, check_streams_outlive, ranks_of, start
from tests.e2e.small_model import NAME, home_with, write_small_model
from tests.regions.wire.tls_links import Machines

pytestmark = pytest.mark.slow


@pytest.fixture
def skerry(tmp_path: Path) -> Iterator[Skerry]:
    """The machine of the node."""
    skerry = home_with(write_small_model(tmp_path / "small"), tmp_path / "home")
    yield skerry
    assert skerry("down", "--timeout", "5").returncode == 0


@pytest.fixture
def machine(skerry: Skerry, tmp_path: Path) -> Iterator[tuple[int, str]]:
    """Another machine, which serves stages by the commands of the page: its process, and where.
    Both have certificates of one authority."""
    machines = Machines(tmp_path / "authority")
    other = home_with(tmp_path / "small", tmp_path / "other")
    for name, each in (("10.0.0.6", skerry), ("10.0.0.7", other)):
        (each.home / "machine").symlink_to(machines.issue(name, "node"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        at = f"127.0.0.1:{free.getsockname()[1]}"
    commands = next(code for _, code in blocks("docs/operations.md", "sh") if " stage " in code)
    pull, serve = [line for line in commands.splitlines() if line.startswith("skerry ")][:2]
    assert other(*pull.replace(MODEL, NAME).split()[1:]).returncode == 0
    log = (tmp_path / "stage.log").open("w+")
    process = subprocess.Popen(
        [sys.executable, "-m", *serve.replace("10.0.0.7:8795", at).split()],
        env=other.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
    )  # fmt: skip
    until(lambda: f"Stages are served at {at}" in (tmp_path / "stage.log").read_text())
    yield process.pid, at
    process.terminate()
    assert process.wait(SECONDS) == 0
    log.close()


def test_two_machines_answer_as_one(
    skerry: Skerry, tmp_path: Path, machine: tuple[int, str]
) -> None:
    """The example of the page, and the same without the other machine."""
    pid, at = machine
    topology = (ROOT / "examples" / "two-machines.yaml").read_text().replace("8787", "0")
    topology = topology.replace(MODEL, NAME).replace("kv_blocks: 1024", "kv_blocks: 24")
    two = topology.replace("10.0.0.7:8795", at)
    asked: dict[str, Any] = ASKED | {"max_tokens": 40}
    texts = []
    for written in (two, two.replace("parallel:", "#")):
        start(skerry, tmp_path / "topology.yaml", written)
        assert len(ranks_of(pid)) == (written == two)
        texts.append(ask(skerry, asked, {}))
        assert skerry("down", "--timeout", "5").returncode == 0
        until(lambda: not ranks_of(pid))
    assert texts[0] == texts[1]


def test_one_process_has_a_stage_elsewhere(skerry: Skerry, machine: tuple[int, str]) -> None:
    pid, at = machine
    skerry.up(f"--model={NAME}", "--pipeline", "2", "--stages", at, runner="numba")
    assert len(ranks_of(pid)) == 1
    asked: dict[str, Any] = ASKED | {"max_tokens": 20}
    with skerry.ai() as ai:
        assert ai.run(NAME, asked)["usage"]["completion_tokens"] == 20
    (node,) = skerry.status()["nodes"]
    assert ranks_of(node["pid"]) == []


def test_streams_go_on_elsewhere_when_a_rank_of_another_machine_is_killed(
    skerry: Skerry, tmp_path: Path, machine: tuple[int, str]
) -> None:
    pid, at = machine
    topology = TOPOLOGY.format(model=NAME, runner="numba", stages=f'"{at}"')
    start(skerry, tmp_path / "topology.yaml", topology)
    check_streams_outlive(skerry, lambda node: ranks_of(pid))
    ready = {"here-stages-0", "here-whole-0"}
    until(lambda: {n["id"] for n in skerry.status()["nodes"] if n["state"] == "ready"} == ready)
