"""Nodes whose model is divided over ranks: what they are asked, and what their streams outlive."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from tests.e2e.command import SECONDS, Skerry, is_alive, until
from tests.e2e.small_model import NAME
from tests.e2e.up.topology_platform import ask_node

STREAMS = 3
ASKED: dict[str, Any] = {
    "prompt": "The sea is " * 9,
    "raw": True,
    "seed": 7,
    "temperature": 1.0,
    "top_p": 1.0,
    "ignore_eos": True,
}
# All streams are at the node of stages while it is there. A pipeline has the build of the whole.
TOPOLOGY = """
regions: [{{name: here, iata: FRA}}]
pools:
  - {{name: stages, region: here, role: decode, model: "{model}", runner: {runner},
     threads: 1, kv_blocks: 40, parallel: {{pipeline: 2, stages: [{stages}]}}}}
  - {{name: whole, region: here, role: prefill, model: "{model}", runner: {runner},
     threads: 1, kv_blocks: 40}}
edges: [{{name: edge, region: here, port: 0}}]
"""


def ranks_of(pid: int) -> list[int]:
    """Ranks that are children of a process: a node, or what serves stages."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    found = [child for task in tasks for child in (task / "children").read_text().split()]
    ways = ("ranks.child", "--connection-fd")
    return [int(child) for child in found if any(way in command_of(child) for way in ways)]


def command_of(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


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


def is_running(node: dict[str, Any]) -> bool:
    """Whether a node has streams, by its own word."""
    engines = ask_node(node, "GET", "/status").json()["engines"]
    return any(engine["running"] for engine in engines.values())


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
