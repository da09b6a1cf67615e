"""Requests placed by cost: a real router and directory in front of nodes of the toy model."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.regions.region.routed import DIGESTS, platform
from tests.regions.toy_nodes import (
    CALM,
    PROMPT,
    RunningNode,
    after_tokens,
    greedy_oracle,
    read,
    submit,
    until,
)

from skerry.errors import Overloaded, Unavailable
from skerry_core.config import EngineConfig
from skerry_regions.prefix_news import PrefixPublisher
from skerry_regions.region.observations import Observations
from skerry_regions.wire.protocol import Sampling
from skerry_regions.wire.reports import Report

pytestmark = pytest.mark.anyio


async def test_a_prompt_goes_where_its_prefix_is(tmp_path: Path) -> None:
    async with platform(tmp_path, "a", "b", "c") as p:
        first = await p.region.generate(submit())
        assert (await read(first))[0] == greedy_oracle(40)
        holder = next(name for name in p.nodes if p.computed(name))
        for number in range(2):
            await until(lambda: p.knows_prefix(holder) and p.seems_idle())
            _, _, done = await read(await p.region.generate(submit(request_id=f"{number}")))
            assert done.usage.cached_tokens == 128
        assert [name for name in p.nodes if p.computed(name)] == [holder]


async def test_a_burst_spreads_before_any_report(tmp_path: Path) -> None:
    async with platform(tmp_path, "a", "b", "c") as p:
        for node in p.nodes.values():
            node.gate.hold_after(0)
        prompts = [[number, *PROMPT] for number in range(3)]
        streams = [
            await p.region.generate(submit(request_id=f"{n}", prompt_ids=prompt))
            for n, prompt in enumerate(prompts)
        ]
        assert p.num_booked == 3
        for node in p.nodes.values():
            node.gate.open.set()
        for stream in streams:
            await read(stream)
        assert all(p.computed(name) for name in p.nodes)
        assert p.num_booked == 0


async def test_a_node_in_a_long_step_still_counts_what_it_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reports go on, but they are about the time before."""
    ages: dict[str, float] = {}
    taken = Observations.take

    def take(seen: Observations, node: str, report: Report, now: float) -> bool:
        ages[node] = report.load_age
        return taken(seen, node, report, now)

    monkeypatch.setattr(Observations, "take", take)
    async with platform(tmp_path, "a", "b", patience=CALM) as p:
        for node in p.nodes.values():
            node.gate.hold_after(0)
        first = await p.region.generate(submit())
        busy = first.explanation[1]

        await until(lambda: ages[busy] > 0.3)
        other = submit(request_id="other", prompt_ids=[1, *PROMPT])
        second = await p.region.generate(other)
        assert second.explanation[1] != busy
        for node in p.nodes.values():
            node.gate.open.set()
        assert (await read(first))[0] == greedy_oracle(40)
        assert len((await read(second))[0]) == 40


async def test_bookings_end_with_what_they_stand_for(tmp_path: Path) -> None:
    async with platform(tmp_path, "a", "b") as p:
        for node in p.nodes.values():
            node.gate.hold_after(3)
        stream = await p.region.generate(submit())
        await after_tokens(stream, 3)
        assert p.num_booked == 1
        stream.abort()
        for node in p.nodes.values():
            node.gate.open.set()
        await until(lambda: p.num_booked == 0)
        for node in p.nodes.values():
            node.gate.hold_after(3)
        stream = await p.region.generate(submit())
        ids, _ = await after_tokens(stream, 3)
        for node in p.nodes.values():
            await node.stop()
        with pytest.raises(Unavailable):
            await read(stream, ids)
        assert p.num_booked == 0


async def test_a_stale_prefix_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """Node a is believed to hold what it has long lost."""
    async with platform(tmp_path, "a", "b") as p:
        publisher = PrefixPublisher("a", 0)
        publisher.sealed(DIGESTS)
        p.placer.observations.prefixes.apply(publisher.snapshot())
        stream = await p.region.generate(submit())
        assert "cached=128" in stream.explanation
        ids, _, done = await read(stream)
        assert ids == greedy_oracle(40)
        assert (p.computed("a"), p.computed("b")) == (len(PROMPT) + 39, 0)
        assert done.usage.cached_tokens == 0


async def test_evicted_blocks_are_told(tmp_path: Path) -> None:
    async with platform(tmp_path, "a") as p:
        await read(await p.region.generate(submit()))
        await until(lambda: p.knows_prefix("a"))
        for number in range(40):  # 64 blocks: not all prompts fit
            other = submit(
                request_id=f"{number}",
                prompt_ids=[number, *PROMPT],
                sampling=Sampling(max_tokens=1),
            )
            await read(await p.region.generate(other))
        await until(lambda: not p.knows_prefix("a"))
        held = p.nodes["a"].engine.pool.num_cached
        await until(lambda: p.placer.observations.prefixes.num_digests("a") == held)
        assert not p.placer.observations.prefixes.wants_snapshot("a")


async def test_a_node_that_comes_back_starts_with_an_empty_cache(tmp_path: Path) -> None:
    async with platform(tmp_path, "a") as p:
        await read(await p.region.generate(submit()))
        await until(lambda: p.knows_prefix("a"))
        await p.nodes["a"].stop()
        p.nodes["a"] = RunningNode("a", tmp_path, incarnation=1)
        await p.nodes["a"].listen()
        p.describe()
        await until(lambda: not p.knows_prefix("a"))
        (link,) = p.directory.links()
        await until(lambda: link.is_up)
        ids, _, done = await read(await p.region.generate(submit(request_id="again")))
        assert (ids, done.usage.cached_tokens) == (greedy_oracle(40), 0)
        await until(lambda: p.knows_prefix("a"))


async def test_every_node_is_tried_before_a_region_is_full(tmp_path: Path) -> None:
    config = EngineConfig(max_running=1, max_waiting=1)
    names = [f"n{number}" for number in range(6)]  # more than one ranking tells
    async with platform(tmp_path, *names, config=config, patience=CALM) as p:
        p.describe(**{name: {"transfer_address": ""} for name in names})  # a split takes two places
        for node in p.nodes.values():
            node.gate.hold_after(0)
        held = [await p.region.generate(submit(request_id=f"{n}")) for n in range(12)]
        with pytest.raises(Overloaded):
            await p.region.generate(submit(request_id="one too many"))
        assert p.num_booked == 12
        for stream in held:
            stream.abort()
