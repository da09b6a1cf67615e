"""Requests placed by cost: a real router and directory in front of nodes of the toy model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.regions.toy_nodes import (
    CALM,
    MODEL,
    PATIENCE,
    PROMPT,
    RunningNode,
    after_tokens,
    greedy_oracle,
    hello,
    read,
    submit,
    until,
)

from skerry.errors import Overloaded, Unavailable
from skerry_core.config import EngineConfig
from skerry_regions.digests import full_block_digests
from skerry_regions.prefix_news import PrefixPublisher
from skerry_regions.region.cluster_state import ClusterState
from skerry_regions.region.cost_placer import CostPlacer
from skerry_regions.region.directory import Directory
from skerry_regions.region.observations import PRIOR_HANDOVER_LAG, Observations
from skerry_regions.region.recovery import RecoveryPolicy
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.region.speed_learning import SpeedBook
from skerry_regions.registry import LEASE_SECONDS, Member
from skerry_regions.routing.block_index import NOTHING_CACHED
from skerry_regions.routing.prefixes import IndexState
from skerry_regions.speeds import StepSample
from skerry_regions.view import NodeLoad
from skerry_regions.wire.client import Explained
from skerry_regions.wire.link import Patience
from skerry_regions.wire.protocol import Sampling
from skerry_regions.wire.reports import Report

pytestmark = pytest.mark.anyio

DIGESTS = full_block_digests(b"toy", b"", PROMPT)


def member(node: RunningNode, **changes: Any) -> Member:
    kv_format = node.engine.runner.kv_format
    fields: dict[str, Any] = {
        "region": "here",
        "incarnation": node.node.incarnation,
        "address": str(node.address),
        "transfer_address": str(node.kv_address),
        "model": MODEL,
        "runner": "toy",
        "numeric_build": node.engine.runner.numeric_build,
        "batch_invariant": True,
        "kv_format": kv_format.dtype,
        "kv_bytes_per_token": kv_format.block_bytes / 64,
        "state": "ready",
        **changes,
    }
    return Member(id=node.node.id, kind="node", **fields)


class EqualSpeeds(SpeedBook):
    """Steps on a busy machine take what they take: here nobody learns from them."""

    def learn(self, node: str, sample: StepSample) -> None:
        pass


class FixedRegistry:
    """A registry whose members tests say."""

    def __init__(self, members: list[Member]) -> None:
        self.present = members

    def announce(self, member: Member, lease_seconds: float = LEASE_SECONDS) -> int:
        raise NotImplementedError

    def withdraw(self, member_id: str, incarnation: int) -> None:
        raise NotImplementedError

    def members(self) -> list[Member]:
        return self.present

    def close(self) -> None:
        pass


class Platform:
    """Nodes, and the regions' half of an edge before them."""

    def __init__(self, nodes: list[RunningNode], patience: Patience) -> None:
        self.nodes = {node.node.id: node for node in nodes}
        self.registry = FixedRegistry([member(node) for node in nodes])
        state = ClusterState("here")
        self.directory = Directory(self.registry, hello("edge"), state, patience=patience)
        self.placer = CostPlacer(self.directory, state, {MODEL: b"toy"}, Random(1))
        self.placer.observations.speeds = EqualSpeeds()
        policy = RecoveryPolicy(patience=1.0, pause=0.01)
        self.region = RemoteRegion(self.directory.links, self.placer, policy)

    def describe(self, **changes: dict[str, Any]) -> None:
        """What the registry says from now on of these nodes."""
        self.registry.present = [
            member(node, **changes.get(name, {})) for name, node in self.nodes.items()
        ]
        self.directory.apply(self.registry.present)

    @property
    def num_booked(self) -> int:
        return len(self.placer.router._bookings)

    def computed(self, name: str) -> int:
        """Tokens that a node's engine ran."""
        return self.nodes[name].num_computed

    def seems_idle(self) -> bool:
        """By the nodes' last reports."""
        nodes = self.placer.observations.view(MODEL).nodes.values()
        return not any(node.load.streams or node.load.prefill_tokens for node in nodes)

    def knows_prefix(self, name: str) -> bool:
        said = self.placer.observations.prefixes.match_all(DIGESTS, expected=False)
        return said.get(name, NOTHING_CACHED).blocks == len(DIGESTS)


@asynccontextmanager
async def platform(
    path: Path, *names: str, config: EngineConfig | None = None, patience: Patience = PATIENCE
) -> AsyncGenerator[Platform]:
    nodes = [RunningNode(name, path, config) for name in names]
    for each in nodes:
        await each.listen()
    made = Platform(nodes, patience)
    try:
        await until(lambda: len(made.directory.links()) == len(nodes))
        async with asyncio.timeout(60):
            await asyncio.gather(*(link.wait_until_up() for link in made.directory.links()))
        yield made
    finally:
        await made.directory.close()
        for each in made.nodes.values():
            await each.stop()


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
        assert p.placer.observations.prefixes.state("a") is IndexState.EXACT


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
        await link.wait_until_up()
        ids, _, done = await read(await p.region.generate(submit(request_id="again")))
        assert (ids, done.usage.cached_tokens) == (greedy_oracle(40), 0)
        await until(lambda: p.knows_prefix("a"))


async def test_prefill_and_decode_pools_share_a_request(tmp_path: Path) -> None:
    """While the decode node is busy; when it is idle it prefills itself."""
    async with platform(tmp_path, "p", "d") as p:
        p.describe(p={"role": "prefill"}, d={"role": "decode"})
        stream = await p.region.generate(submit())
        assert stream.explanation.startswith('"d";')
        assert (await read(stream))[0] == greedy_oracle(40)
        busy = NodeLoad(prefill_tokens=10_000.0, streams=4, context_tokens=400)
        p.placer.observations.take("d", Report(model=MODEL, load=busy), p.placer.clock())
        stream = await p.region.generate(submit(request_id="again", prompt_ids=[1, *PROMPT]))
        assert stream.explanation.startswith('"p>d";')
        ids, _, _ = await read(stream)
        assert len(ids) == 40
        assert p.computed("p") == len(PROMPT) + 1
        assert p.num_booked == 0
        lag = p.placer.observations.view(MODEL).nodes["d"].handover_lag
        assert lag != PRIOR_HANDOVER_LAG


async def test_without_a_decode_node_the_prefill_node_decodes(tmp_path: Path) -> None:
    async with platform(tmp_path, "p", "d") as p:
        p.describe(p={"role": "prefill"}, d={"role": "decode"})
        await p.nodes["d"].stop()
        await until(lambda: sum(link.is_up for link in p.directory.links()) == 1)
        assert (await read(await p.region.generate(submit())))[0] == greedy_oracle(40)
        assert p.computed("d") == 0


async def test_every_node_is_tried_before_a_region_is_full(tmp_path: Path) -> None:
    config = EngineConfig(max_running=1, max_waiting=1)
    names = [f"n{number}" for number in range(6)]  # more than one ranking tells
    async with platform(tmp_path, *names, config=config, patience=CALM) as p:
        for node in p.nodes.values():
            node.gate.hold_after(0)
        held = [await p.region.generate(submit(request_id=f"{n}")) for n in range(12)]
        with pytest.raises(Overloaded):
            await p.region.generate(submit(request_id="one too many"))
        assert p.num_booked == 12
        for stream in held:
            stream.abort()


async def test_a_stream_goes_on_where_the_build_is_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with platform(tmp_path, "a1", "a2", "b") as p:
        p.describe(b={"numeric_build": "another"})
        busy = NodeLoad(prefill_tokens=1e6, prefill_pairs=1e9)
        p.placer.observations.take("a2", Report(model=MODEL, load=busy), p.placer.clock())
        p.placer.observations.take("b", Report(model=MODEL, load=busy), p.placer.clock())
        p.nodes["a1"].gate.hold_after(5)
        p.nodes["a2"].gate.hold_after(15)
        stream = await p.region.generate(submit())
        assert stream.explanation.startswith('"a1";')
        ids, _ = await after_tokens(stream, 5)
        p.placer.observations.take("b", Report(model=MODEL, load=NodeLoad()), p.placer.clock())
        await p.nodes["a1"].stop()
        ids, _ = await after_tokens(stream, 20, ids)
        assert stream.explanation.startswith('"a2";')
        assert "other-build" not in stream.explanation.split(", ")[0]
        await p.nodes["a2"].stop()
        with caplog.at_level(logging.WARNING, logger="skerry_regions.region.cost_placer"):
            ids, _, _ = await read(stream, ids)
        assert ids == greedy_oracle(40)
        assert stream.explanation.startswith('"b";')
        assert "other-build" in stream.explanation
        assert "leaves its numeric build" in caplog.text


async def test_the_answer_of_a_runner_that_is_not_batch_invariant_goes_on_as_well_as_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with platform(tmp_path, "a", "b") as p:
        p.describe(a={"batch_invariant": False}, b={"batch_invariant": False})
        for node in p.nodes.values():
            node.gate.hold_after(5)
        stream = await p.region.generate(submit())
        first = stream.explanation[1]
        assert "best-effort" not in stream.explanation
        ids, _ = await after_tokens(stream, 5)
        await p.nodes[first].stop()
        for node in p.nodes.values():
            node.gate.open.set()
        await read(stream, ids)
        assert "best-effort" in stream.explanation
        assert "other-build" not in stream.explanation
        assert "not batch-invariant" in caplog.text


async def test_a_prefix_is_fetched_from_a_node_that_must_not_serve(tmp_path: Path) -> None:
    async with platform(tmp_path, "a", "b") as p:
        await read(await p.region.generate(submit()))
        holder = next(name for name in p.nodes if p.computed(name))
        await until(lambda: p.knows_prefix(holder) and p.seems_idle())
        p.describe(**{holder: {"state": "draining"}})
        stream = await p.region.generate(submit(request_id="again"))
        (other,) = p.nodes.keys() - {holder}
        assert stream.explanation.startswith(f'"{other}";')
        assert f';from="{holder}";' in stream.explanation
        assert ";fetch=" in stream.explanation
        ids, _, done = await read(stream)
        assert (ids, done.usage.cached_tokens) == (greedy_oracle(40), 128)
        assert p.computed(other) == len(PROMPT) - 128 + 39


@pytest.mark.parametrize("mixed_builds", [False, True])
async def test_unlike_pools_share_a_request_that_consents(
    tmp_path: Path, mixed_builds: bool
) -> None:
    async with platform(tmp_path, "p", "d") as p:
        p.describe(p={"role": "prefill"}, d={"role": "decode", "numeric_build": "another"})
        busy = NodeLoad(prefill_tokens=10_000.0, streams=4, context_tokens=400)
        p.placer.observations.take("d", Report(model=MODEL, load=busy), p.placer.clock())
        stream = await p.region.generate(submit(mixed_builds=mixed_builds))
        assert stream.explanation.startswith('"p>d";' if mixed_builds else '"d";')
        assert ("mixed-builds" in stream.explanation) == mixed_builds
        assert "best-effort" not in stream.explanation
        assert (await read(stream))[0] == greedy_oracle(40)
        assert bool(p.computed("p")) == mixed_builds


async def test_a_stream_can_be_explained(tmp_path: Path) -> None:
    async with platform(tmp_path, "a", "b") as p:
        stream = await p.region.generate(submit())
        assert isinstance(stream, Explained)
        ways = stream.explanation.split(", ")
        assert sorted(way.split(";")[0] for way in ways) == ['"a"', '"a>b"', '"b"', '"b>a"']
        assert all("prefill=" in way for way in ways)
        await read(stream)
