"""Prompts that stay cached, through the death of a node that has them: what usage says."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.regions.region.routed import Platform, platform
from tests.regions.toy_nodes import CALM, PROMPT, read, submit, until

from skerry_regions.wire.pins import Pinned
from skerry_regions.wire.protocol import PhaseUsage, Sampling

pytestmark = pytest.mark.anyio

BLOCKS = len(PROMPT) // 64 * 64  # tokens
OTHERS = 40  # prompts of three blocks each: twice a node's 64


async def ask(p: Platform, name: str) -> PhaseUsage:
    """Have the prompt kept for five minutes; what the request used."""
    asked = submit(
        request_id=name, sampling=Sampling(max_tokens=1), pins=((len(PROMPT), 300.0),),
        cache_key=b"agent", tenant="agent",
    )  # fmt: skip
    _, _, done = await read(await p.region.generate(asked))
    return done.usage


async def press(p: Platform) -> None:
    """Fill every node with others' prompts, twice over."""
    for name in p.nodes:
        p.describe(**{other: {"state": "draining"} for other in p.nodes if other != name})
        for number in range(OTHERS):
            other = submit(
                request_id=f"{name}-{number}", prompt_ids=[number, *PROMPT],
                sampling=Sampling(max_tokens=1), cache_key=b"others", tenant="others",
            )  # fmt: skip
            await read(await p.region.generate(other))
    p.describe()


def holders(p: Platform) -> list[str]:
    return [name for name in p.nodes if p.nodes[name].engine.pool.num_pinned]


@pytest.mark.parametrize("has_second_holder", [True, False])
async def test_a_kept_prompt_outlives_a_node_where_another_one_has_it(
    tmp_path: Path, has_second_holder: bool
) -> None:
    async with platform(tmp_path, "a", "b", patience=CALM) as p:
        assert (await ask(p, "first")).pinned == Pinned((BLOCKS,))
        [holder] = holders(p)
        if has_second_holder:
            p.describe(**{holder: {"state": "draining"}})
            await ask(p, "elsewhere")
            assert len(holders(p)) == 2
            p.describe()
        await press(p)
        again = await ask(p, "again")
        assert (again.cached_tokens, again.pinned) == (BLOCKS, Pinned((0,)))
        await p.nodes[holder].stop()
        await until(lambda: len([link for link in p.directory.links() if link.is_up]) == 1)
        after = await ask(p, "after")
        if has_second_holder:
            assert (after.cached_tokens, after.pinned) == (BLOCKS, Pinned((0,)))
        else:
            assert (after.cached_tokens, after.pinned) == (0, Pinned((BLOCKS,)))
