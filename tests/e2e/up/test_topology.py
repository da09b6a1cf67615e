"""`skerry up --topology`: real processes, real signals; clients notice nothing but time."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.disks import fill, small_disk
from tests.e2e.command import MODEL, is_alive, new_home, until
from tests.e2e.up.topology_platform import (
    ASKED,
    EXAMPLES,
    NODES,
    PAGE,
    SYSTEM,
    TOY_SPLIT,
    TRIES,
    Platform,
    ask_node,
    children,
    listening_at,
    pids_of,
    start,
    supervisor_of,
)

from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles
) -> Iterator[Platform]:
    platform = start(tmp_path_factory.mktemp("split"), default_model, TOY_SPLIT)
    yield platform
    assert platform.skerry("down", "--timeout", "20").returncode == 0


def test_all_nodes_are_shown(platform: Platform) -> None:
    nodes = platform.skerry.status()["nodes"]
    assert [node["id"] for node in nodes] == NODES
    assert {node["state"] for node in nodes} == {"ready"}
    assert [node["role"] for node in nodes] == ["prefill"] * 2 + ["decode"] * 2
    assert len({node["pid"] for node in nodes}) == 4


def test_prompts_to_warm_up_are_cached_before_anybody_asks(platform: Platform) -> None:
    turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "High water?"}]
    usage = platform.ask({"messages": turns, "max_tokens": 2})["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 64


@pytest.mark.parametrize("end", ["SIGKILL", pytest.param("SIGTERM", marks=pytest.mark.slow)])
def test_a_stream_outlives_its_decode_node(platform: Platform, end: str) -> None:
    asked = ASKED | {"max_tokens": 1000, "frequency_penalty": 0.3}  # longer than it takes to look
    undisturbed = platform.stream(asked)
    assert undisturbed.completion_tokens > 500
    nodes, hit = platform.decode_nodes(), list[dict[str, Any]]()

    def strike() -> None:
        for node in platform.running(nodes):
            hit.append(node)
            os.kill(node["pid"], getattr(signal, end))

    for _ in range(TRIES):  # on a busy machine an answer may end before its node is found
        assert platform.stream(asked, after=10, then=strike) == undisturbed
        if hit:
            break
    assert undisturbed.num_done == 1
    assert len(hit) == 1
    platform.wait_for_restart(hit[0])
    assert until(lambda: platform.blocks_used() == 0)


def test_an_operator_can_drain_a_node(platform: Platform) -> None:
    before = platform.node("fra-prefill-0")
    assert ask_node(before, "GET", "/healthz").json() == {"status": "ok"}
    assert ask_node(before, "POST", "/drain").status_code == 202
    platform.wait_for_restart(before)
    for node in platform.skerry.status()["nodes"]:
        assert ask_node(node, "GET", "/status").json()["node"]["state"] == "ready"


def test_nothing_listens_beyond_loopback(platform: Platform) -> None:
    supervisor = json.loads((platform.skerry.home / "run" / "instance.json").read_text())["pid"]
    found = {host for pid in [supervisor, *children(supervisor)] for host in listening_at(pid)}
    assert found == {"127.0.0.1"}
    with socket.create_server(("0.0.0.0", 0)):
        assert "0.0.0.0" in listening_at(os.getpid())


def test_an_edge_that_dies_comes_back_at_its_address(platform: Platform) -> None:
    [edge] = platform.skerry.status()["edges"]
    os.kill(edge["pid"], signal.SIGKILL)
    answer = platform.stream(ASKED | {"max_tokens": 5})  # waits in the backlog meanwhile
    assert answer.num_done == 1
    [after] = platform.skerry.status()["edges"]
    assert (after["url"], after["pid"] != edge["pid"]) == (edge["url"], True)


@pytest.mark.slow
def test_what_a_supervisor_has_started_outlives_it(
    tmp_path: Path, default_model: ModelFiles
) -> None:
    """Nobody is refused meanwhile, the next one adopts it, and `down` ends it in any case."""
    platform = start(tmp_path, default_model, TOY_SPLIT)
    skerry, file = platform.skerry, tmp_path / "topology.yaml"
    before, killed = pids_of(skerry), supervisor_of(skerry)

    def strike() -> None:
        os.kill(killed, signal.SIGKILL)
        until(lambda: not is_alive(killed))

    asked = ASKED | {"max_tokens": 200}
    undisturbed = platform.stream(asked)
    assert platform.stream(asked, after=10, then=strike) == undisturbed
    assert platform.stream(asked) == undisturbed
    status = skerry("status")
    assert status.returncode == 1
    assert "Nothing supervises edge-0, fra-decode-0" in status.stderr
    assert "`skerry down` ends them" in skerry("up").stderr

    assert skerry("up", "--detach", "--topology", str(file)).returncode == 0
    until(lambda: {node["state"] for node in skerry.status()["nodes"]} == {"ready"})
    assert pids_of(skerry) == before
    assert skerry("reload").returncode == 0
    after = pids_of(skerry)
    assert after.keys() ^ before.keys() == {"edge-0", "edge-1"}
    assert {id for id in before if after.get(id) != before[id]} == {"edge-0"}
    os.kill(after["edge-1"], signal.SIGKILL)
    assert platform.stream(asked) == undisturbed  # it waits for another one at the same port

    os.kill(supervisor_of(skerry), signal.SIGKILL)
    until(lambda: skerry("status").returncode == 1)
    family = [*after.values()]
    assert skerry("down").returncode == 0
    assert not any(map(is_alive, family))
    left = {path.name for path in (skerry.home / "run").iterdir()}
    assert left == {"skerry.lock", "state.lock"}


@pytest.mark.slow
def test_a_successor_with_another_file_changes_what_differs(
    tmp_path: Path, default_model: ModelFiles
) -> None:
    """What is as before stays, edges at their port; the others have successors, and drain."""
    skerry = start(tmp_path, default_model, TOY_SPLIT).skerry
    before, url = pids_of(skerry), skerry.status()["url"]
    killed = supervisor_of(skerry)
    os.kill(killed, signal.SIGKILL)
    until(lambda: not is_alive(killed))
    file = tmp_path / "topology.yaml"
    file.write_text(TOY_SPLIT.replace("replicas: 2}\nedges", "replicas: 1, kv_blocks: 99}\nedges"))
    assert skerry("up", "--detach", "--topology", str(file)).returncode == 0
    until(lambda: len(pids_of(skerry)) == 4 and 0 not in pids_of(skerry).values())
    after = pids_of(skerry)
    stay = {"fra-prefill-0", "fra-prefill-1", "edge-0"}
    assert {id for id in after if after[id] == before.get(id)} == stay
    assert skerry.status()["url"] == url
    until(lambda: not is_alive(before["fra-decode-0"]) and not is_alive(before["fra-decode-1"]))
    assert skerry("down", "--timeout", "20").returncode == 0
    assert not any(map(is_alive, (*before.values(), *after.values())))
    left = {path.name for path in (skerry.home / "run").iterdir()}
    assert left == {"skerry.lock", "state.lock"}


@pytest.mark.parametrize(
    ("text", "options", "complaint"),
    [
        (TOY_SPLIT, ["--port", "0"], "--port and --topology exclude each other"),
        ("regions: []", [], "topology.yaml:1: regions"),
        ("regions: [{name: a, iata: FRA}]", [], "`edges` is empty"),
        (TOY_SPLIT.replace(MODEL, "@cf/no/such"), [], "`skerry models list`"),
        (TOY_SPLIT.replace("port: 0", "host: 192.0.2.1"), [], "cannot listen on 192.0.2.1"),
    ],
)
def test_a_topology_that_cannot_start_says_why(
    tmp_path: Path, default_model: ModelFiles, text: str, options: list[str], complaint: str
) -> None:
    skerry = new_home(tmp_path, default_model)
    file = tmp_path / "topology.yaml"
    file.write_text(text)
    done = skerry("up", "--topology", str(file), *options)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("pages", [0, 1])
def test_a_start_without_room_says_so(
    tmp_path: Path, default_model: ModelFiles, pages: int
) -> None:
    """For the record of who runs, or for what edges are told."""
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        skerry = new_home(disk, default_model)
        assert skerry("up", "--topology", str(disk / "none")).returncode == 1  # makes the folders
        file = tmp_path / "topology.yaml"
        file.write_text(TOY_SPLIT)
        reserved = disk / "reserved"
        reserved.write_bytes(bytes(pages * PAGE))
        fill(disk)
        reserved.unlink()
        done = skerry("up", "--topology", str(file))
        assert done.returncode == 1
        assert "No space left on device" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_real_model_survives_too(tmp_path: Path, default_model: ModelFiles) -> None:
    kernels = default_model.directory.parents[1] / "cache"  # compiled once for all test runs
    kernels.mkdir(exist_ok=True)
    text = (EXAMPLES / "split.yaml").read_text().replace("port: 8787", "port: 0")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "cache").symlink_to(kernels)
    platform = start(tmp_path, default_model, text)
    try:
        asked = ASKED | {"max_tokens": 120, "raw": False}
        undisturbed = platform.stream(asked)
        nodes, struck = platform.decode_nodes(), list[int]()

        def strike() -> None:
            node = platform.busy(nodes)
            struck.append(node["pid"])
            os.kill(node["pid"], signal.SIGKILL)

        assert platform.stream(asked, after=20, then=strike) == undisturbed
        assert struck
        assert undisturbed.num_done == 1
    finally:
        assert platform.skerry("down", "--timeout", "20").returncode == 0
