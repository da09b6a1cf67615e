"""Disks fill, the registry dies, and nodes are killed meanwhile: every answer is the same, each is
counted once, and all is back when room or the registry is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sqlite3
import tempfile
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal

import httpx
import pytest
from tests.disks import small_disk
from tests.e2e.command import MODEL, Skerry, new_home, until
from tests.faults.clients import Answer, Question, ask, questions
from tests.faults.outages import BACK_SECONDS, FileStore, Outages, Store
from tests.faults.relays import Relays
from tests.faults.strikes import Strikes
from tests.regions.drivers.nats_server import NatsServer

from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow]

logger = logging.getLogger(__name__)

SECONDS = float(os.environ.get("SKERRY_FAULT_SECONDS", "600"))  # of each run
DISK_BYTES = 512 << 20
PAUSE = (0.5, 3.0)  # seconds between kills

TOPOLOGY = """\
regions:
  - {{name: here, coordinates: [0, 0]}}
pools:
  - {{name: prefill, region: here, role: prefill, model: "{model}", runner: {runner},
      replicas: {replicas}, threads: 1, kv_blocks: 64, file_tier: 64MiB}}
  - {{name: decode, region: here, role: decode, model: "{model}", runner: {runner},
      replicas: {replicas}, threads: 1, kv_blocks: 64, file_tier: 64MiB}}
edges:
  - {{name: edge, region: here}}
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One fault run."""

    runner: str
    registry: Literal["nats", "file"]
    replicas: int  # of prefill and of decode nodes
    streams: int  # at once
    tokens: int  # of an answer, at most

    @property
    def nodes(self) -> list[str]:
        return [f"here-{role}-{i}" for role in ("prefill", "decode") for i in range(self.replicas)]


RUNS = [
    pytest.param(Run(runner="toy", registry="nats", replicas=2, streams=24, tokens=32), id="toy"),
    pytest.param(
        Run(runner="numba", registry="file", replicas=1, streams=6, tokens=24), id="numba"
    ),
]


@pytest.fixture
def skerry(default_model: ModelFiles) -> Generator[Skerry]:
    """A home on a small disk, but for what kernels were compiled to."""
    with (
        tempfile.TemporaryDirectory(prefix="skerry-faults-") as parent,
        small_disk(Path(parent) / "disk", DISK_BYTES) as disk,
    ):
        skerry = new_home(disk, default_model)
        kernels = default_model.directory.parents[1] / "cache"
        kernels.mkdir(exist_ok=True)
        cache = skerry.home / "cache"
        cache.mkdir(mode=0o700)
        for path in kernels.iterdir():
            if path.name != "kv":
                (cache / path.name).symlink_to(path)
        yield skerry


@contextlib.contextmanager
def store_of(run: Run, skerry: Skerry) -> Generator[tuple[Skerry, Store]]:
    """Have a registry that can be killed, and a command that uses it."""
    if run.registry == "file":
        yield skerry, FileStore(skerry.home / "run")
        return
    with tempfile.TemporaryDirectory(prefix="skerry-nats-") as folder:
        server = NatsServer(Path(folder))
        try:
            yield replace(skerry, registry=server.url), server
        finally:
            server.stop()


@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.runner)
def test_nothing_is_lost_for_want_of_room_or_a_registry(skerry: Skerry, run: Run) -> None:
    with store_of(run, skerry) as (command, store):
        file = command.home.parent / "topology.yaml"
        file.write_text(TOPOLOGY.format(model=MODEL, runner=run.runner, replicas=run.replicas))
        done = command("up", "--detach", "--topology", str(file))
        assert done.returncode == 0, done.stderr
        try:
            scenario = Scenario(command, run, store)
            asyncio.run(scenario.play())
            until(lambda: num_counted(command) >= scenario.num_asked)
            assert num_counted(command) == scenario.num_asked
        finally:
            assert command("down", "--timeout", "20").returncode == 0


def num_counted(skerry: Skerry) -> int:
    [path] = skerry.home.rglob("usage.db")
    with contextlib.closing(sqlite3.connect(path)) as database:
        (count,) = database.execute("SELECT COUNT(*) FROM usage").fetchone()
    return int(count)


class Scenario:
    """Clients that ask the same questions all the time."""

    def __init__(self, skerry: Skerry, run: Run, store: Store, seed: int = 1) -> None:
        self._skerry, self._run, self._rng = skerry, run, Random(seed)
        instance = json.loads((skerry.home / "run" / "instance.json").read_text())
        self._control: str = instance["control"]
        self._outages = Outages(self._control, skerry.home.parent, store, self._rng)
        self._undisturbed: list[Answer] = []
        self.num_asked = 0

    async def play(self) -> None:
        config = json.loads((self._skerry.home / "config.json").read_text())
        asked = questions(MODEL, config["account_id"], self._rng, 12, self._run.tokens)
        async with httpx.AsyncClient(
            base_url=config["url"],
            headers={"authorization": f"Bearer {config['api_token']}"},
            limits=httpx.Limits(max_connections=None),
        ) as client:
            for question in asked:
                self._undisturbed.append(await self._answer(client, question))
            over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for number in range(self._run.streams):
                    group.create_task(self._keep_asking(client, asked, number, over))
                killing = group.create_task(self._kill())
                await self._outages.run(SECONDS)
                over.set()
                killing.cancel()
        back = self._outages.back
        logger.info("%d answers, %s, back after %s", self.num_asked, self._outages.counts, back)
        assert max(back) < BACK_SECONDS, back

    async def _kill(self) -> None:
        """While something is away; never the last node that is whole."""
        relays = Relays(lambda: None, [], self._rng)
        strikes = Strikes(self._control, self._run.nodes, relays, self._rng)
        try:
            while True:
                await asyncio.sleep(self._rng.uniform(*PAUSE))
                node = self._rng.choice(self._run.nodes)
                if not self._outages.calm.is_set() and await strikes.others_are_whole(node):
                    await strikes.kill(node)
                    self._outages.counts["kill"] += 1
        finally:
            await relays.close()

    async def _keep_asking(
        self, client: httpx.AsyncClient, asked: list[Question], number: int, over: asyncio.Event
    ) -> None:
        rng = Random(number)
        while not over.is_set():
            which = rng.randrange(len(asked))
            assert await self._answer(client, asked[which]) == self._undisturbed[which]

    async def _answer(self, client: httpx.AsyncClient, question: Question) -> Answer:
        answer = await ask(client, question)
        assert not answer.errors, answer.errors
        assert answer.num_done == 1
        self.num_asked += 1
        return answer
