"""A platform of a topology file, and what clients and operators ask of it."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.e2e.command import MODEL, SECONDS, Skerry, new_home, until

from skerry_regions.models.model_files import ModelFiles

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


def supervisor_of(skerry: Skerry) -> int:
    pid: int = json.loads((skerry.home / "run" / "instance.json").read_text())["pid"]
    return pid


def pids_of(skerry: Skerry) -> dict[str, int]:
    """Return the processes of the topology, by what they are called."""
    status = skerry.status()
    return {each["id"]: each["pid"] for each in [*status["nodes"], *status["edges"]]}
