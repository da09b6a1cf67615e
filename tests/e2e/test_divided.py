"""A model over several ranks, in real nodes over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.docs.test_examples import blocks
from tests.e2e.command import MODEL, ROOT, SECONDS, Skerry, is_alive, new_home, until
from tests.e2e.small_model import NAME, home_with, write_small_model
from tests.e2e.up.topology_platform import ask_node
from tests.regions.wire.tls_links import Machines

from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.slow

STREAMS = 3
ASKED: dict[str, Any] = {
    "prompt": "The sea is " * 9,
    "raw": True,
    "seed": 7,
    "temperature": 1.0,
    "top_p": 1.0,
}
# A pipeline has the build of the whole; two parts of each layer have one of their own.
TOPOLOGY = """
regions: [{{name: here, iata: FRA}}]
pools:
  - {{name: stages, region: here, role: hybrid, model: "{model}", runner: {runner},
     threads: 1, kv_blocks: 40, parallel: {{pipeline: 2, stages: [{stages}]}}}}
  - {{name: whole, region: here, role: hybrid, model: "{model}", runner: {runner},
     threads: 1, kv_blocks: 40}}
edges: [{{name: edge, region: here, port: 0}}]
"""
EXAMPLE = ROOT / "examples" / "pipeline.yaml"


# With consent, since sums of two ranks are another build.
CONSENT = {"x-skerry-mixed-builds": "1"}
PLACES = """
regions: [{name: here, iata: FRA}]
edges: [{name: edge, region: here, port: 0}]
pools:
"""
POOL = """
  - {{name: {role}, region: here, role: {role}, model: "{model}", runner: torch, threads: 1,
     kv_blocks: 40, replicas: {replicas}, parallel: {{tensor: {ranks}}}}}
"""
LONG = "Such as the tide " * 112 + "and the wind"  # a token each byte, of 2,048 at most


@pytest.fixture
def skerry(tmp_path: Path) -> Iterator[Skerry]:
    """A home with a small random model."""
    skerry = home_with(write_small_model(tmp_path / "small"), tmp_path / "home")
    yield skerry
    assert skerry("down", "--timeout", "5").returncode == 0


def ranks_of(pid: int) -> list[int]:
    """Ranks that are children of a process: a node, or what serves stages."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    found = [child for task in tasks for child in (task / "children").read_text().split()]
    ways = ("ranks.child", "--connection-fd")
    return [int(child) for child in found if any(way in command_of(child) for way in ways)]


def command_of(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_a_node_runs_parts_of_layers_in_two_processes(skerry: Skerry) -> None:
    skerry.up(f"--model={NAME}", "--tensor", "2", runner="torch")
    (node,) = skerry.status()["nodes"]
    assert len(ranks_of(node["pid"])) == 1
    asked: dict[str, Any] = ASKED | {"max_tokens": 20}
    with skerry.ai() as ai:
        first, again = (ai.run(NAME, asked) for _ in range(2))
    assert first["usage"]["completion_tokens"] == 20
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 64


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


@pytest.mark.parametrize("runner", ["torch-deterministic", "numba"])
def test_streams_go_on_elsewhere_when_a_rank_is_killed(
    skerry: Skerry, tmp_path: Path, runner: str
) -> None:
    topology = TOPOLOGY.format(model=NAME, runner=runner, stages="")
    start(skerry, tmp_path / "topology.yaml", topology)
    check_streams_outlive(skerry, lambda node: ranks_of(node["pid"]))


def test_streams_go_on_elsewhere_when_a_rank_of_another_machine_is_killed(
    skerry: Skerry, tmp_path: Path, machine: tuple[int, str]
) -> None:
    pid, at = machine
    topology = TOPOLOGY.format(model=NAME, runner="numba", stages=f'"{at}"')
    start(skerry, tmp_path / "topology.yaml", topology)
    check_streams_outlive(skerry, lambda node: ranks_of(pid))
    ready = {"here-stages-0", "here-whole-0"}
    until(lambda: {n["id"] for n in skerry.status()["nodes"] if n["state"] == "ready"} == ready)


def check_streams_outlive(skerry: Skerry, ranks: Callable[[dict[str, Any]], list[int]]) -> None:
    """Kill a rank of a node of two stages; streams go on at one that has the whole model, and the
    same build."""
    divided = next(n for n in skerry.status()["nodes"] if n["id"] == "here-stages-0")
    (rank,) = ranks(divided)
    running = threading.Barrier(STREAMS + 1)

    def text_of(seed: int, wait: Callable[[], object]) -> str:
        # Many tokens: a node makes them faster than a busy machine's client reads them.
        asked: dict[str, Any] = ASKED | {"max_tokens": 500, "seed": seed, "stream": True}
        text = ""
        with skerry.ai() as ai:
            stream: Any = ai.run(NAME, asked)
            for number, chunk in enumerate(stream):
                text += chunk["response"] or ""
                if number == 10:
                    wait()
        return text

    def strike() -> None:
        running.wait(timeout=SECONDS)
        assert is_running(divided)
        os.kill(rank, signal.SIGKILL)

    with ThreadPoolExecutor(STREAMS + 1) as threads:
        struck = threads.submit(strike)
        disturbed = threads.map(lambda seed: text_of(seed, running.wait), range(STREAMS))
        texts = list(disturbed)
        struck.result()
    assert texts == [text_of(seed, lambda: None) for seed in range(STREAMS)]
    until(lambda: not is_alive(divided["pid"]))


@pytest.mark.parametrize(("prefill", "decode"), [(2, 1), (1, 2)])
def test_kv_goes_from_one_number_of_ranks_to_another(
    skerry: Skerry, tmp_path: Path, prefill: int, decode: int
) -> None:
    """A prefill pool of two ranks hands over to a decode pool of one, and the other way.

    The decode pool has its node later: the router sends it a prompt by way of the prefill node
    because that has it cached, however long two ranks of a busy CPU would take for it.
    """
    topology = tmp_path / "topology.yaml"

    def pools(nodes: int) -> str:
        numbers = [("prefill", prefill, 1), ("decode", decode, nodes)]
        each = [POOL.format(role=r, ranks=n, replicas=c, model=NAME) for r, n, c in numbers]
        return PLACES + "".join(each)

    start(skerry, topology, pools(0))
    asked = ASKED | {"max_tokens": 20, "temperature": 0, "prompt": LONG}
    texts = [ask(skerry, asked, {})]  # by the one node that there is
    topology.write_text(pools(1))
    done = skerry("apply", "-f", str(topology))
    assert done.returncode == 0, done.stderr
    short, explain = asked | {"prompt": "A", "max_tokens": 1}, {"x-skerry-explain": "1"}
    until(lambda: "decode-0" in reply_to(skerry, short, explain).headers["x-skerry-explain"])
    texts.append(ask(skerry, asked, CONSENT))
    computed = computed_by(skerry, "here-decode-0")
    texts.append(ask(skerry, asked, {}))  # by the decode node alone
    assert texts == texts[:1] * 3
    assert computed < 64 + 20 < len(LONG) < computed_by(skerry, "here-decode-0")
    sent = -(-len(LONG) // 64) * 2 * 2 * 4 * 64 * 16 * 4  # blocks: layers, K and V, heads, …, bytes
    for node, direction in (("here-prefill-0", "send"), ("here-decode-0", "receive")):
        labels = f'model_name="{NAME}",direction="{direction}"'
        page = metrics_of(skerry, node)
        assert f'skerry_handovers_total{{{labels},outcome="whole"}} 1' in page
        assert f"skerry_handover_bytes_total{{{labels}}} {sent}" in page


def start(skerry: Skerry, file: Path, topology: str) -> None:
    file.write_text(topology)
    done = skerry("up", "--detach", "--topology", str(file))
    assert done.returncode == 0, done.stderr


def reply_to(skerry: Skerry, asked: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
    config = json.loads((skerry.home / "config.json").read_text())
    url = f"{config['url']}/client/v4/accounts/{config['account_id']}/ai/run/{NAME}"
    headers = headers | {"authorization": f"Bearer {config['api_token']}"}
    reply = httpx.post(url, json=asked, headers=headers, timeout=SECONDS)
    assert reply.status_code == 200, reply.text
    return reply


def ask(skerry: Skerry, asked: dict[str, Any], headers: dict[str, str]) -> str:
    text: str = reply_to(skerry, asked, headers).json()["result"]["response"]
    return text


def computed_by(skerry: Skerry, node: str) -> int:
    """Tokens that a node has computed, by its own word."""
    found = next(each for each in skerry.status()["nodes"] if each["id"] == node)
    (engine,) = ask_node(found, "GET", "/status").json()["engines"].values()
    count: int = engine["computed_tokens"]
    return count


def metrics_of(skerry: Skerry, node: str) -> list[str]:
    found = next(each for each in skerry.status()["nodes"] if each["id"] == node)
    return ask_node(found, "GET", "/metrics").text.splitlines()


def is_running(node: dict[str, Any]) -> bool:
    """Whether a node has streams, by its own word."""
    engines = ask_node(node, "GET", "/status").json()["engines"]
    return any(engine["running"] for engine in engines.values())


@pytest.fixture
def home(default_model: ModelFiles, tmp_path: Path) -> Iterator[Skerry]:
    """A home with the default model, and kernels that were compiled before."""
    skerry = new_home(tmp_path, default_model)
    kernels = default_model.directory.parents[1] / "cache"
    kernels.mkdir(exist_ok=True)
    (skerry.home / "cache").symlink_to(kernels)
    yield skerry
    assert skerry("down", "--timeout", "5").returncode == 0


def limited(skerry: Skerry, kilobytes: int, topology: Path) -> subprocess.CompletedProcess[str]:
    """Bring a topology up in processes none of which may have more memory."""
    command = [sys.executable, "-m", "skerry", "up", "--detach", "--topology", str(topology)]
    return subprocess.run(
        ["bash", "-c", f'ulimit -v {kilobytes}; exec "$@"', "bash", *command],
        env=skerry.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip


@pytest.mark.model
def test_two_processes_hold_what_one_may_not(home: Skerry, tmp_path: Path) -> None:
    """The example, with the limit that it names, which the whole model does not fit; its text is
    that of one process without a limit."""
    example = EXAMPLE.read_text().replace("port: 8787", "port: 0")
    (found,) = re.findall(r"ulimit -v (\d+)", example)
    topology = tmp_path / "pipeline.yaml"
    asked: dict[str, Any] = {
        "prompt": "The harbour master", "raw": True, "max_tokens": 40, "seed": 3,
        "temperature": 1.0,
    }  # fmt: skip

    def text() -> str:
        with home.ai() as ai:
            return str(ai.run(MODEL, asked)["response"])

    topology.write_text(example)
    done = limited(home, int(found), topology)
    assert done.returncode == 0, done.stderr
    (node,) = home.status()["nodes"]
    assert len(ranks_of(node["pid"])) == 1
    divided = text()
    assert home("down", "--timeout", "5").returncode == 0
    topology.write_text(example.replace("parallel: {pipeline: 2}", "parallel: {pipeline: 1}"))
    refused = limited(home, int(found), topology)
    assert refused.returncode != 0
    assert "too little memory for the model and its KV" in refused.stderr
    home("down", "--timeout", "5")
    done = home("up", "--detach", "--topology", str(topology))
    assert done.returncode == 0, done.stderr
    assert text() == divided
