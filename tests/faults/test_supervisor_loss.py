"""Whoever supervises is killed again and again under load: nobody notices, and all is adopted."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
import pytest
from tests.e2e.command import MODEL, Skerry, until
from tests.faults.clients import Answer, Question, ask, questions

from skerry_regions.process.launch_folder import LaunchFolder

pytestmark = [pytest.mark.model, pytest.mark.slow]

logger = logging.getLogger(__name__)

NUM_STREAMS = 60
NUM_KILLS = 10
TOPOLOGY = """\
regions:
  - {{name: fra, iata: FRA}}
  - {{name: iad, iata: IAD}}
pools:
  - {{name: prefill, region: fra, role: prefill, model: "{model}", runner: toy, kv_blocks: 512}}
  - {{name: decode, region: fra, role: decode, model: "{model}", runner: toy, kv_blocks: 512}}
  - {{name: hybrid, region: iad, role: hybrid, model: "{model}", runner: toy, kv_blocks: 512}}
edges:
  - {{name: edge-fra, region: fra}}
  - {{name: edge-iad, region: iad}}
links:
  - {{between: [fra, iad], rtt: 0.02}}
emulate: {{rtt: links}}
"""
NAMES = [
    "edge-fra-0", "edge-iad-0", "fra-decode-0", "fra-prefill-0", "iad-hybrid-0", "~relays-0",
]  # fmt: skip


@dataclass
class Load:
    """Streams that are asked for again and again, through both edges."""

    undisturbed: dict[int, Answer] = field(default_factory=dict)
    num_answers: int = 0
    failed: list[str] = field(default_factory=list)

    async def keep_asking(
        self,
        clients: list[httpx.AsyncClient],
        asked: list[Question],
        seed: int,
        over: asyncio.Event,
    ) -> None:
        rng = Random(seed)
        while not over.is_set():
            which = rng.randrange(len(asked))
            answer = await ask(clients[rng.randrange(len(clients))], asked[which])
            if answer != self.undisturbed[which]:
                self.failed.append(f"{answer} instead of {self.undisturbed[which]}")
            self.num_answers += 1


class Supervisor:
    """Whoever supervises a topology's processes, started again and again."""

    def __init__(self, skerry: Skerry, *command: str, text: str = TOPOLOGY) -> None:
        self._skerry, self._command = skerry, command
        self._file = skerry.home.parent / "topology.yaml"
        self._file.write_text(text.format(model=MODEL))
        self._log = (skerry.home.parent / "supervisor.log").open("ab")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "skerry", *self._command, "--topology", str(self._file)],
            env=self._skerry.environ,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self._log.close()


def ready(skerry: Skerry) -> bool:
    nodes = skerry.status().get("nodes", [])
    return len(nodes) == 3 and all(node["state"] == "ready" for node in nodes)


def pids(skerry: Skerry) -> dict[str, int]:
    return {r.id: pid for r, pid in LaunchFolder(skerry.home / "run" / "launched").running()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_of_the_supervisor_fails_no_request(skerry: Skerry, seed: int) -> None:
    supervisor = Supervisor(skerry, "up")
    try:
        until(lambda: ready(skerry))
        before = pids(skerry)
        assert sorted(before) == NAMES
        urls = [edge["url"] for edge in skerry.status()["edges"]]
        load = asyncio.run(kill_under_load(skerry, supervisor, urls, Random(seed)))
        logger.info("%d answers over %d kills", load.num_answers, NUM_KILLS)
        assert load.failed == []
        assert load.num_answers > NUM_STREAMS
        until(lambda: ready(skerry))
        assert pids(skerry) == before
        assert "restarted" not in skerry("status").stderr
    finally:
        supervisor.end()
    assert not Path(skerry.home / "run" / "launched").exists()


async def kill_under_load(
    skerry: Skerry, supervisor: Supervisor, urls: list[str], rng: Random
) -> Load:
    config = json.loads((skerry.home / "config.json").read_text())
    asked = questions(MODEL, config["account_id"], rng, 24, 48)
    load, over = Load(), asyncio.Event()
    clients = [
        httpx.AsyncClient(
            base_url=url,
            headers={"authorization": f"Bearer {config['api_token']}"},
            limits=httpx.Limits(max_connections=None),
        )
        for url in urls
    ]
    for number, question in enumerate(asked):
        load.undisturbed[number] = await ask(clients[0], question)
        assert load.undisturbed[number].num_done == 1
    async with asyncio.TaskGroup() as group:
        for number in range(NUM_STREAMS):
            group.create_task(load.keep_asking(clients, asked, number, over))
        for _ in range(NUM_KILLS):
            await asyncio.sleep(rng.uniform(0.1, 6.0))  # as it starts, or long after
            supervisor.kill()
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            supervisor.start()
        await asyncio.sleep(2.0)
        over.set()
    for client in clients:
        await client.aclose()
    return load
