"""`skerry up --topology`: real processes, real signals; clients notice nothing but time."""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.disks import fill, small_disk
from tests.e2e.command import MODEL, SECONDS, Skerry, is_alive, new_home, until

from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

EXAMPLES = Path(__file__).parents[3] / "examples"
SYSTEM = "You are the harbour master of a small port. " * 8
TOY_SPLIT = f"""\
regions:
  - {{name: fra, iata: FRA}}
pools:
  - {{name: prefill, region: fra, role: prefill, model: "{MODEL}", runner: toy, replicas: 2}}
  - {{name: decode, region: fra, role: decode, model: "{MODEL}", runner: toy, replicas: 2}}
edges:
  - {{name: edge, region: fra, port: 0}}
warm_up:
  - {{model: "{MODEL}", system_prompts: ["{SYSTEM}"]}}
"""
PAGE = os.sysconf("SC_PAGE_SIZE")
TRIES = 20
LISTENING = "0A"  # a socket's state in /proc/net/tcp
NODES = ["fra-prefill-0", "fra-prefill-1", "fra-decode-0", "fra-decode-1"]
ASKED = {"prompt": "The sea is " * 30, "raw": True, "seed": 7, "temperature": 1.0, "top_p": 1.0}


@dataclass(frozen=True)
class Answer:
    """A streamed answer as it came over the wire."""

    text: str
    completion_tokens: int
    num_done: int


class Platform:
    """A running topology and a client of it."""

    def __init__(self, skerry: Skerry) -> None:
        self.skerry = skerry
        config = json.loads((skerry.home / "config.json").read_text())
        self._url = f"{config['url']}/client/v4/accounts/{config['account_id']}/ai/run/{MODEL}"
        self._headers = {"authorization": f"Bearer {config['api_token']}"}

    def stream(
        self, asked: dict[str, Any], after: int = 0, then: Callable[[], object] = lambda: None
    ) -> Answer:
        """Ask; `then` is called when `after` chunks with text have come."""
        text, tokens, num_done, seen = "", 0, 0, 0
        body = asked | {"stream": True}
        with httpx.stream(
            "POST", self._url, json=body, headers=self._headers, timeout=SECONDS
        ) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    num_done += 1
                elif line.startswith("data: "):
                    chunk = json.loads(line.removeprefix("data: "))
                    text += chunk.get("response") or ""
                    tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
                    seen += 1
                    if seen == after:
                        then()
        return Answer(text, tokens, num_done)

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """The result of a request that is not streamed."""
        reply = httpx.post(self._url, json=body, headers=self._headers, timeout=SECONDS)
        assert reply.status_code == 200, reply.text
        result: dict[str, Any] = reply.json()["result"]
        return result

    def node(self, id: str) -> dict[str, Any]:
        return next(node for node in self.skerry.status()["nodes"] if node["id"] == id)

    def decode_nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.skerry.status()["nodes"] if node["role"] == "decode"]

    def busy(self, nodes: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the one of them that the one stream runs on, by its own word."""
        found: list[dict[str, Any]] = until(lambda: self.running(nodes))
        return found[0]

    def running(self, nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those of them that have running requests, by their own word."""
        return [
            node
            for node in nodes
            if any(
                engine["running"]
                for engine in ask_node(node, "GET", "/status").json()["engines"].values()
            )
        ]

    def wait_for_restart(self, before: dict[str, Any]) -> None:
        """Return once another serves in its place, with another number where it drained."""

        def is_back() -> bool:
            nodes = [
                node for node in self.skerry.status()["nodes"] if node["role"] == before["role"]
            ]
            pids = {node["pid"] for node in nodes if node["state"] == "ready"}
            return len(pids) == len(nodes) == 2 and before["pid"] not in pids

        until(is_back)

    def blocks_used(self) -> int:
        return sum(
            engine["blocks_used"]
            for node in self.skerry.status()["nodes"]
            for engine in ask_node(node, "GET", "/status").json()["engines"].values()
        )


def ask_node(node: dict[str, Any], method: str, path: str) -> httpx.Response:
    """Ask a node's control API."""
    path_of = node["control"].removeprefix("unix:")
    with httpx.Client(transport=httpx.HTTPTransport(uds=path_of)) as client:
        return client.request(method, f"http://localhost{path}", timeout=SECONDS)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def start(parent: Path, default_model: ModelFiles, topology: str) -> Platform:
    skerry = new_home(parent, default_model)
    file = parent / "topology.yaml"
    file.write_text(topology)
    done = skerry("up", "--detach", "--topology", str(file))
    assert done.returncode == 0, done.stderr
    return Platform(skerry)


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


def listening_at(pid: int) -> set[str]:
    """Return hosts at which a process listens, by TCP of either kind."""
    names = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()}
    hosts = set[str]()
    for kind in ("tcp", "tcp6"):
        for row in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in names:
                words = bytes.fromhex(fields[1].partition(":")[0])
                packed = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                hosts.add(str(ipaddress.ip_address(packed)))
    return hosts


def test_an_edge_that_dies_comes_back_at_its_address(platform: Platform) -> None:
    [edge] = platform.skerry.status()["edges"]
    os.kill(edge["pid"], signal.SIGKILL)
    answer = platform.stream(ASKED | {"max_tokens": 5})  # waits in the backlog meanwhile
    assert answer.num_done == 1
    [after] = platform.skerry.status()["edges"]
    assert (after["url"], after["pid"] != edge["pid"]) == (edge["url"], True)


def supervisor_of(skerry: Skerry) -> int:
    pid: int = json.loads((skerry.home / "run" / "instance.json").read_text())["pid"]
    return pid


def pids_of(skerry: Skerry) -> dict[str, int]:
    """Return the processes of the topology, by what they are called."""
    status = skerry.status()
    return {each["id"]: each["pid"] for each in [*status["nodes"], *status["edges"]]}


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
