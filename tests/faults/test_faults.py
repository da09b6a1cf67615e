"""Many streams while nodes die, freeze, drain and lose their links: every answer is the same."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx
import pytest
from tests.e2e.command import MODEL, Skerry
from tests.faults.clients import Answer, Question, ask, questions
from tests.faults.relays import Relays
from tests.faults.strikes import Strikes

from skerry_cli.home.control import ask_status
from skerry_regions.process.socket_paths import SocketPaths

pytestmark = [pytest.mark.model, pytest.mark.slow]

logger = logging.getLogger(__name__)

TOPOLOGY = """\
regions:
  - {{name: here, coordinates: [0, 0]}}
pools:
  - {{name: prefill, region: here, role: prefill, model: "{model}", runner: {runner},
      replicas: {replicas}, threads: 1, kv_blocks: 256}}
  - {{name: decode, region: here, role: decode, model: "{model}", runner: {runner},
      replicas: {replicas}, threads: 1, kv_blocks: 256}}
edges:
  - {{name: edge, region: here}}
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One fault run."""

    runner: str
    replicas: int  # of prefill and of decode nodes
    streams: int  # at once
    seconds: float  # of faults
    questions: int  # different ones
    tokens: int  # of an answer, at most
    pause: tuple[float, float]  # seconds between faults

    @property
    def nodes(self) -> list[str]:
        """Ids that nodes may have: the successor of one that is drained has another number."""
        numbers = range(2 * self.replicas + 1)
        return [f"here-{role}-{i}" for role in ("prefill", "decode") for i in numbers]


RUNS = [
    pytest.param(
        Run(runner="toy", replicas=2, streams=200, seconds=120, questions=24, tokens=32,
            pause=(0.5, 2.5)),
        id="toy",
    ),
    pytest.param(
        Run(runner="numba", replicas=1, streams=16, seconds=60, questions=12, tokens=48,
            pause=(1.0, 6.0)),
        id="numba",
    ),
]  # fmt: skip


@pytest.mark.timeout(900)
@pytest.mark.parametrize("run", RUNS)
def test_no_answer_changes_whatever_befalls_the_nodes(skerry: Skerry, run: Run) -> None:
    asyncio.run(Scenario(skerry, run, seed=1).play())


class Scenario:
    def __init__(self, skerry: Skerry, run: Run, seed: int) -> None:
        self._skerry, self._run = skerry, run
        self._rng = Random(seed)
        self._undisturbed: dict[int, Answer] = {}
        self.num_answers = 0

    async def play(self) -> None:
        relays = Relays(self._sockets, self._run.nodes, self._rng)
        try:
            await asyncio.to_thread(self._start)
            config = json.loads((self._skerry.home / "config.json").read_text())
            asked = questions(
                MODEL, config["account_id"], self._rng, self._run.questions, self._run.tokens
            )
            async with httpx.AsyncClient(
                base_url=config["url"],
                headers={"authorization": f"Bearer {config['api_token']}"},
                limits=httpx.Limits(max_connections=None),
            ) as client:
                for number, question in enumerate(asked):
                    self._undisturbed[number] = await self._asked(client, question)
                await self._disturb(client, asked, relays)
        finally:
            await relays.close()

    def _sockets(self) -> Path | None:
        return SocketPaths.of(self._skerry.home).root

    def _start(self) -> None:
        file = self._skerry.home.parent / "topology.yaml"
        file.write_text(
            TOPOLOGY.format(model=MODEL, runner=self._run.runner, replicas=self._run.replicas)
        )
        done = self._skerry("up", "--detach", "--topology", str(file))
        assert done.returncode == 0, done.stderr

    async def _asked(self, client: httpx.AsyncClient, question: Question) -> Answer:
        answer = await ask(client, question)
        assert not answer.errors, answer.errors
        assert answer.num_done == 1
        assert answer.completion_tokens > 0
        return answer

    async def _disturb(
        self, client: httpx.AsyncClient, asked: list[Question], relays: Relays
    ) -> None:
        control = json.loads((self._skerry.home / "run" / "instance.json").read_text())["control"]
        strikes = Strikes(control, self._run.nodes, relays, self._rng)
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(self._run.streams):
                group.create_task(self._keep_asking(client, asked, number, over))
            await strikes.run(self._run.seconds, self._run.pause)
            over.set()
        logger.info("%d answers, %s", self.num_answers, dict(strikes.counts))
        await self._pools_are_whole(control)

    async def _keep_asking(
        self, client: httpx.AsyncClient, asked: list[Question], number: int, over: asyncio.Event
    ) -> None:
        rng = Random(number)
        while not over.is_set():
            which = rng.randrange(len(asked))
            assert await self._asked(client, asked[which]) == self._undisturbed[which]
            self.num_answers += 1

    async def _pools_are_whole(self, control: str) -> None:
        """All nodes are there, and none holds a block for anybody."""
        deadline = time.monotonic() + 60
        while unlike := await _not_whole(control):
            assert time.monotonic() < deadline, unlike
            await asyncio.sleep(0.1)


async def _not_whole(control: str) -> list[str]:
    """What is still in use, or not ready."""
    status = await asyncio.to_thread(ask_status, control)
    found = [f"{node.id} is {node.state}" for node in status.nodes if node.state != "ready"]
    if not found:
        for node in status.nodes:
            try:
                used = await _blocks_used(node.control)
            except (OSError, httpx.TransportError) as error:  # it has just begun to drain
                found.append(f"{node.id}: {error!r}")
            else:
                found += [f"{node.id} has {used} blocks in use"] if used else []
    return found and [*found, *status.notes]


async def _blocks_used(control: str) -> int:
    path = control.removeprefix("unix:")
    os.stat(path)  # httpx leaks a socket where there is nobody
    transport = httpx.AsyncHTTPTransport(uds=path)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        engines = (await client.get("/status", timeout=30)).json()["engines"]
        return sum(engine["blocks_used"] for engine in engines.values())
