"""What a node reports of its cache, heard by a directory, is where the blocks really are."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest
from tests.core.kv.file_tiers import flush
from tests.regions.toy_node import MODEL, VOCAB, Events, node_of, submit

from skerry_core.blocks import chain_digests, root_digest
from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.engine.second_tier import open_file
from skerry_core.runners.toy import ToyRunner
from skerry_regions.node.node import Node
from skerry_regions.routing.prefixes import PrefixDirectory

KEY = b"toy"
NODE = "node-1"
PROMPTS = [[(salt * 17 + i * i) % VOCAB for i in range(64 * (1 + salt % 5))] for salt in range(12)]


def names(prompt: list[int]) -> list[bytes]:
    return chain_digests(root_digest(KEY, b""), np.array(prompt, np.int32), b"")


NAMES = {digest for prompt in PROMPTS for digest in names(prompt)}


def engine_of(path: Path | None, slots: int) -> Engine:
    runner = ToyRunner(num_blocks=10, vocab_size=VOCAB, max_context=1024)
    file = None
    if path is not None:
        file = open_file(path, runner, model_key=KEY, capacity_bytes=8192 + slots * (4096 + 64))
    return Engine(runner, EngineConfig(), model_key=KEY, file_tier=file)


def where(engine: Engine) -> dict[bytes, str]:
    tier = engine.second_tier
    places = {}
    for digest in NAMES:
        if engine.pool.match([digest]):
            places[digest] = "memory"
        elif tier is not None and digest in tier:
            places[digest] = "file"
    return places


def believed(directory: PrefixDirectory) -> dict[bytes, str]:
    matches = {digest: directory.match_all([digest]).get(NODE) for digest in NAMES}
    return {d: "file" if m.in_file else "memory" for d, m in matches.items() if m}


async def ask(node: Node, prompt: list[int]) -> None:
    events = Events()
    node.submit(submit(prompt, max_tokens=1), events)
    await events.all()


def hear(node: Node, directory: PrefixDirectory) -> float:
    [report] = node.reports()
    if report.prefixes is not None:
        directory.apply(report.prefixes)
    return report.file_bandwidth


@pytest.mark.parametrize("slots", [None, 1, 8, 100])
def test_a_directory_knows_where_the_blocks_are(tmp_path: Path, slots: int | None) -> None:
    async def scenario() -> None:
        path = None if slots is None else tmp_path / "kv"
        engine = engine_of(path, slots or 0)
        directory, rng = PrefixDirectory(), random.Random(slots)
        async with node_of(engine) as node:
            for _ in range(40):
                await ask(node, rng.choice(PROMPTS))
                if rng.random() < 0.3:
                    hear(node, directory)
            bandwidth = hear(node, directory)
            if engine.second_tier is not None:
                flush(engine)
            hear(node, directory)
            assert believed(directory) == where(engine)
            assert (bandwidth > 0) == (slots is not None)
            fresh = PrefixDirectory()
            [snapshot] = node.snapshots()
            assert snapshot.model == MODEL
            assert snapshot.prefixes is not None
            fresh.apply(snapshot.prefixes)
            assert believed(fresh) == where(engine)
            assert not fresh.wants_snapshot(NODE)

    asyncio.run(scenario())


def test_a_restarted_node_tells_what_its_file_holds(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_of(engine_of(tmp_path / "kv", 100)) as node:
            await ask(node, PROMPTS[4])
        async with node_of(engine := engine_of(tmp_path / "kv", 100)) as node:
            hear(node, directory := PrefixDirectory())
            assert believed(directory) == where(engine) == dict.fromkeys(names(PROMPTS[4]), "file")

    asyncio.run(scenario())
