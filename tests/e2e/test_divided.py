"""A model over several ranks, in real nodes over HTTP."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command import MODEL, ROOT, SECONDS, Skerry, new_home, until
from tests.e2e.divided_nodes import (
    ASKED,
    TOPOLOGY,
    ask,
    check_streams_outlive,
    ranks_of,
    reply_to,
    start,
)
from tests.e2e.small_model import NAME, home_with, write_small_model
from tests.e2e.up.topology_platform import ask_node

from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.slow

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


def test_a_node_runs_parts_of_layers_in_two_processes(skerry: Skerry) -> None:
    skerry.up(f"--model={NAME}", "--tensor", "2", runner="torch")
    (node,) = skerry.status()["nodes"]
    assert len(ranks_of(node["pid"])) == 1
    asked: dict[str, Any] = ASKED | {"max_tokens": 20}
    with skerry.ai() as ai:
        first, again = (ai.run(NAME, asked) for _ in range(2))
    assert first["usage"]["completion_tokens"] == 20
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 64


@pytest.mark.parametrize("runner", ["torch-deterministic", "numba"])
def test_streams_go_on_elsewhere_when_a_rank_is_killed(
    skerry: Skerry, tmp_path: Path, runner: str
) -> None:
    topology = TOPOLOGY.format(model=NAME, runner=runner, stages="")
    start(skerry, tmp_path / "topology.yaml", topology)
    check_streams_outlive(skerry, lambda node: ranks_of(node["pid"]))


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


def computed_by(skerry: Skerry, node: str) -> int:
    """Tokens that a node has computed, by its own word."""
    found = next(each for each in skerry.status()["nodes"] if each["id"] == node)
    (engine,) = ask_node(found, "GET", "/status").json()["engines"].values()
    count: int = engine["computed_tokens"]
    return count


def metrics_of(skerry: Skerry, node: str) -> list[str]:
    found = next(each for each in skerry.status()["nodes"] if each["id"] == node)
    return ask_node(found, "GET", "/metrics").text.splitlines()


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
