"""Requests over pools of nodes that differ: by role, by build, by who may serve."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.regions.region.routed import platform
from tests.regions.toy_nodes import (
    MODEL,
    PROMPT,
    after_tokens,
    greedy_oracle,
    read,
    submit,
    until,
)

from skerry_regions.region.observations import PRIOR_HANDOVER_LAG
from skerry_regions.view import NodeLoad
from skerry_regions.wire.client import Explained
from skerry_regions.wire.reports import Report

pytestmark = pytest.mark.anyio


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
