"""Prompts that a node computes before it is ready: found by every tenant, bounded in time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.regions.toy_node import (
    MODEL,
    VOCAB,
    Events,
    Gate,
    expected,
    node_of,
    submit,
    toy_engine,
)

from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.engine.second_tier import open_file
from skerry_core.runners.toy import ToyRunner
from skerry_regions.node.node import Node
from skerry_regions.node.warm_up import warm_up
from skerry_regions.wire.protocol import Done

PROMPTS = [[(i * i + salt) % VOCAB for i in range(150 + salt)] for salt in range(3)]


class Told:
    def __init__(self) -> None:
        self.shares: list[float] = []

    def __call__(self, what: str, share: float) -> None:
        self.shares.append(share)


async def cached_tokens(node: Node, prompt: list[int], tenant: str) -> int:
    events = Events()
    asked = submit(prompt, tenant=tenant)
    node.submit(msgspec.structs.replace(asked, cache_key=tenant.encode()), events)
    tokens, last = await events.all()
    assert tokens == expected(prompt, 5)
    assert isinstance(last, Done)
    return last.usage.cached_tokens


def test_every_tenant_finds_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine, told = toy_engine(), Told()
        for prompt in PROMPTS:
            assert engine.share(prompt) == 2
        async with node_of(engine) as node:
            assert await warm_up(node, MODEL, PROMPTS, told) == 3
            assert told.shares == [0, 1 / 3, 2 / 3]
            assert engine.statistics().running == 0
            for tenant in ("one", "two"):
                for prompt in PROMPTS:
                    assert await cached_tokens(node, [*prompt, 1, 2, 3], tenant) == 128
                assert await cached_tokens(node, PROMPTS[0][::-1], tenant) == 0

    asyncio.run(scenario())


def test_a_restarted_node_reads_them_from_its_file(tmp_path: Path) -> None:
    async def start() -> tuple[int, int]:
        runner = ToyRunner(num_blocks=32, vocab_size=VOCAB, max_context=1024)
        file = open_file(tmp_path / "kv", runner, model_key=b"m", capacity_bytes=1 << 20)
        engine = Engine(runner, EngineConfig(), model_key=b"m", file_tier=file)
        for prompt in PROMPTS:
            engine.share(prompt)
        async with node_of(engine) as node:
            assert await warm_up(node, MODEL, PROMPTS, Told()) == 3
            statistics = engine.statistics()
        return statistics.computed_tokens, statistics.restored_blocks

    assert asyncio.run(start()) == (sum(map(len, PROMPTS)), 0)
    assert asyncio.run(start()) == (sum(len(prompt) - 128 for prompt in PROMPTS), 6)


def test_what_takes_too_long_is_left(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with node_of(engine := toy_engine(before_step=gate)) as node:
            assert await warm_up(node, MODEL, PROMPTS, Told(), seconds=0.05) == 0
            gate.opened.set()
            assert await cached_tokens(node, [1, 2, 3], "one") == 0  # the node serves
        assert engine.pool.num_used == 0

    asyncio.run(scenario())
    assert [record.message for record in caplog.records] == ["0 of 3 prompts are warm after 0.05 s"]


def test_what_the_engine_refuses_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with node_of(toy_engine()) as node:
            await warm_up(node, MODEL, [[1] * 5000, PROMPTS[1]], Told())

    asyncio.run(scenario())
    [record] = caplog.records
    assert record.message.startswith("prompt 0 cannot be warmed up: 5000 prompt tokens")
