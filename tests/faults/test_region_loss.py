"""A region is cut off from the others and comes back: clients of no edge notice but by time.

`fra` and `nrt` have nodes, `iad` has an edge alone: its streams run in `fra`, which is nearest.
While `fra` is cut off they go on in `nrt`, and afterwards they come home and stay. Clients in `fra`
are served by their own nodes all the while.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx
import pytest
from tests.e2e.command import MODEL, Skerry
from tests.faults.clients import Answer, Question, ask, questions
from tests.faults.relays import LOOK_SECONDS, Relay

from skerry_regions.process.emulation import relayed
from skerry_regions.process.socket_paths import SocketPaths

pytestmark = [pytest.mark.model, pytest.mark.slow]

logger = logging.getLogger(__name__)

REGIONS = "fra", "iad", "nrt"
LOST = "fra"
TOPOLOGY = """\
regions:
  - {{name: fra, iata: FRA}}
  - {{name: iad, iata: IAD}}
  - {{name: nrt, iata: NRT}}
pools:
  - {{name: a, region: fra, role: hybrid, model: "{model}", runner: {runner},
      replicas: {replicas}, threads: 1, kv_blocks: 256}}
  - {{name: a, region: nrt, role: hybrid, model: "{model}", runner: {runner},
      replicas: {replicas}, threads: 1, kv_blocks: 256}}
edges:
  - {{name: edge-fra, region: fra}}
  - {{name: edge-iad, region: iad}}
  - {{name: edge-nrt, region: nrt}}
links:
  - {{between: [fra, iad], rtt: 0.080}}
  - {{between: [iad, nrt], rtt: 0.150}}
  - {{between: [fra, nrt], rtt: 0.220}}
emulate: {{rtt: links}}
"""
BEFORE, CUT, SETTLE = 8.0, 20.0, 6.0  # seconds
NOTICE = 4.0  # until all have seen that a region is gone
AFTER = 24  # answers at the edge without nodes, however long they take
BACK = 0.25  # of the share that the region had before, at least
TOKENS_MADE = re.compile(r"^vllm:generation_tokens_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One loss of a region."""

    runner: str
    replicas: int  # nodes of each region that has some
    streams: int  # at once, at the edge without nodes; one at each of the others
    questions: int  # different ones
    tokens: int  # of an answer, at most
    with_registry: bool


RUNS = [
    pytest.param(
        Run(runner="toy", replicas=2, streams=6, questions=16, tokens=32, with_registry=True),
        id="toy",
    ),
    pytest.param(
        Run(runner="toy", replicas=2, streams=6, questions=16, tokens=32, with_registry=False),
        id="toy-without-registry",
    ),
    pytest.param(
        Run(runner="numba", replicas=1, streams=2, questions=8, tokens=32, with_registry=True),
        id="numba",
    ),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", RUNS)
def test_no_answer_changes_while_a_region_is_cut_off(skerry: Skerry, run: Run) -> None:
    asyncio.run(Scenario(skerry, run, seed=1).play())


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer as its client saw it."""

    edge: str
    began: float  # seconds of the event loop
    placed: float  # likewise: when its answer began
    region: str  # of the node that this was on
    tokens: int


class Scenario:
    def __init__(self, skerry: Skerry, run: Run, seed: int) -> None:
        self._skerry, self._run = skerry, run
        self._rng = Random(seed)
        self._undisturbed: dict[int, Answer] = {}
        self._asked: list[Asked] = []

    async def play(self) -> None:
        relays = self._relays()
        watch = asyncio.create_task(_interpose(relays))
        await asyncio.to_thread(self._start)
        config = json.loads((self._skerry.home / "config.json").read_text())
        asked = questions(
            MODEL, config["account_id"], self._rng, self._run.questions, self._run.tokens
        )
        clients = {
            edge["id"].rpartition("-")[0]: httpx.AsyncClient(
                base_url=edge["url"],
                headers={"authorization": f"Bearer {config['api_token']}"},
                limits=httpx.Limits(max_connections=None),
            )
            for edge in self._skerry.status()["edges"]
        }
        assert len(clients) == len(REGIONS)
        assert all(relay.is_interposed for relay in relays)
        try:
            for number, question in enumerate(asked):
                self._undisturbed[number] = await self._answer(clients["edge-fra"], question)
            made = [await _tokens_made(client) for client in clients.values()]
            cut, healed = await self._disturb(clients, asked, relays)
            made = [
                await _tokens_made(client) - before
                for client, before in zip(clients.values(), made, strict=True)
            ]
        finally:
            watch.cancel()
            for relay in relays:
                await relay.close()
            for client in clients.values():
                await client.aclose()
        assert sum(made) == sum(each.tokens for each in self._asked)
        await asyncio.to_thread(self._check_usage)
        self._check_where(cut, healed)

    def _start(self) -> None:
        file = self._skerry.home.parent / "topology.yaml"
        file.write_text(
            TOPOLOGY.format(model=MODEL, runner=self._run.runner, replicas=self._run.replicas)
        )
        done = self._skerry("up", "--detach", "--topology", str(file))
        assert done.returncode == 0, done.stderr
        if not self._run.with_registry:
            registry = self._skerry.home / "run" / "registry.db"
            for part in registry.parent.glob("registry.db*"):
                part.unlink()
            registry.mkdir()  # which no process can open as a file

    def _relays(self) -> list[Relay]:
        """On every path between the lost region and the others."""
        folder = SocketPaths.of(self._skerry.home).root
        sockets = {
            f"{region}-a-{number}.node": region
            for region in ("fra", "nrt")
            for number in range(self._run.replicas)
        } | {f"edge-{region}-0.gateway": region for region in REGIONS}
        return [
            Relay(Path(relayed(str(folder / socket), other)), self._rng)
            for socket, region in sockets.items()
            for other in REGIONS
            if other != region and LOST in (region, other)
        ]

    async def _disturb(
        self, clients: dict[str, httpx.AsyncClient], asked: list[Question], relays: list[Relay]
    ) -> tuple[float, float]:
        """Load on all edges, and a cut in the middle: when it began and when it ended."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for edge, client in clients.items():
                for number in range(self._run.streams if edge == "edge-iad" else 1):
                    group.create_task(self._keep_asking(edge, client, asked, number, over))
            await asyncio.sleep(BEFORE)
            cut = loop.time()
            await asyncio.gather(*(relay.hold_up(CUT) for relay in relays))
            healed = loop.time()
            await asyncio.sleep(SETTLE)
            while len(self._regions("edge-iad", healed + SETTLE)) < AFTER:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            over.set()
        return cut, healed

    async def _keep_asking(
        self,
        edge: str,
        client: httpx.AsyncClient,
        asked: list[Question],
        number: int,
        over: asyncio.Event,
    ) -> None:
        rng, loop = Random(f"{edge} {number}"), asyncio.get_running_loop()
        while not over.is_set():
            which = rng.randrange(len(asked))
            began = loop.time()
            answer = await self._answer(client, asked[which])
            assert answer == self._undisturbed[which]
            region = next(each for each in REGIONS if each in answer.placed)
            self._asked.append(Asked(edge, began, answer.began, region, answer.completion_tokens))

    async def _answer(self, client: httpx.AsyncClient, question: Question) -> Answer:
        answer = await ask(client, question)
        assert not answer.errors, answer.errors
        assert answer.num_done == 1
        assert answer.completion_tokens > 0
        return answer

    def _check_usage(self) -> None:
        """The journals have every answer once, whatever befell it; they are written in a moment."""
        answers = len(self._asked) + len(self._undisturbed)
        tokens = sum(each.tokens for each in self._asked)
        tokens += sum(each.completion_tokens for each in self._undisturbed.values())
        deadline = time.monotonic() + 10
        while (counted := self._counted()) != (answers, tokens):
            assert time.monotonic() < deadline, (counted, answers, tokens)
            time.sleep(0.1)

    def _counted(self) -> tuple[int, int]:
        """Completed requests, and output tokens."""
        edges = json.loads(self._skerry("usage", "--by", "edge", "--format", "json").stdout)
        completed = sum(each["completed"] for each in edges)
        return completed, sum(each["output_tokens"] for each in edges)

    def _check_where(self, cut: float, healed: float) -> None:
        """Load leaves the lost region, comes back, and stays."""
        before = self._regions("edge-iad", cut - BEFORE, cut)
        away = self._regions("edge-iad", cut + NOTICE, cut + CUT)
        after = self._regions("edge-iad", healed + SETTLE)
        home = self._regions("edge-fra", cut + NOTICE, cut + CUT)
        counts = [dict(Counter(regions)) for regions in (before, away, after)]
        logger.info("%d answers; edge-iad: %s", len(self._asked), counts)
        assert set(away) == {"nrt"}
        assert set(home) == {"fra"}
        for half in (after[: AFTER // 2], after[AFTER // 2 :]):
            assert _share(half, LOST) > BACK * _share(before, LOST) > 0

    def _regions(self, edge: str, first: float, last: float = math.inf) -> list[str]:
        """Where an edge's requests were placed that were asked and placed in that time: one that
        waited for the end of the cut is placed by what is true then.
        """
        return [
            each.region
            for each in self._asked
            if each.edge == edge and first <= each.began <= each.placed < last
        ]


def _share(regions: list[str], region: str) -> float:
    return regions.count(region) / len(regions)


async def _interpose(relays: list[Relay]) -> None:
    """Stand in every path as soon as it is there: before the first connection."""
    while True:
        for relay in relays:
            await relay.interpose()
        await asyncio.sleep(LOOK_SECONDS)


async def _tokens_made(client: httpx.AsyncClient) -> int:
    """By the edge's own count."""
    return sum(
        int(float(each)) for each in TOKENS_MADE.findall((await client.get("/metrics")).text)
    )
