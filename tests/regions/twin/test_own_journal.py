"""A fleet's usage journal, replayed in the twin: prompts share there what they shared."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import cast

import msgspec
import pytest
from tests.edge.byte_text import ByteText
from tests.edge.support import ACCOUNT, specs
from tests.regions.region.routed import Platform, platform
from tests.regions.toy_nodes import CALM, MODEL, until
from tests.regions.twin.worlds import in_plain_python

from skerry_edge.answer_headers import AnswerHeaders
from skerry_edge.api.handler import job_of
from skerry_edge.gate.caller import Caller
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.generation.edge import CacheKeys, Edge
from skerry_edge.generation.start import start
from skerry_edge.ledger.stores import Stores
from skerry_edge.ledger.usage_journal import UsageJournal
from skerry_edge.text.model import TextModel
from skerry_regions.digests import full_block_digests
from skerry_regions.models.catalog import Catalog
from skerry_regions.region.cost_placer import CostPlacer
from skerry_regions.twin.calibrated import journaled, trace_of
from skerry_regions.twin.traces import read_trace
from skerry_regions.wire.protocol import Sampling

pytestmark = pytest.mark.anyio

OTHER_ACCOUNT = "f" * 32
SYSTEM, OTHER_SYSTEM = ([(11 * i + at) % 257 for i in range(400)] for at in (5, 6))
PROMPTS = [
    (ACCOUNT, [*SYSTEM, *range(30)]),
    (ACCOUNT, [*SYSTEM, *range(1, 150)]),  # six blocks of the first
    (ACCOUNT, [*OTHER_SYSTEM, *range(200)]),
    (OTHER_ACCOUNT, [*SYSTEM, *range(30)]),  # none: another tenant's
    (ACCOUNT, [*SYSTEM, *range(1, 150), *range(90)]),  # eight of the second
    (OTHER_ACCOUNT, [*SYSTEM, *range(250)]),  # six of the fourth
    (ACCOUNT, [*OTHER_SYSTEM[:200], 7, *OTHER_SYSTEM]),  # three of the third
    (ACCOUNT, [*OTHER_SYSTEM, *range(200)]),  # all nine of the third
    (ACCOUNT, list(range(50))),  # none: it is no block
]
SHARED = [0, 6, 0, 0, 8, 6, 3, 9, 0]
HITS = [blocks * 64 for blocks in SHARED]
REPLAY = """
import json, sys
from pathlib import Path
from tests.regions.twin.worlds import pool, run, scenario
from skerry_regions.twin.scenario import SimulatedTraffic
found = []
for trace, block_size in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    traffic = SimulatedTraffic(regions={"a": 1.0}, trace=trace)
    given = scenario(pools=[pool(replicas=3)], traffic=[traffic], block_size=block_size)
    found.append(run(given).built.world.requests.hit.tolist())
print(json.dumps(found))
"""


async def served(fleet: Platform, folder: Path, *, keeps_chains: bool = True) -> list[int]:
    """Tokens of each prompt that the fleet found cached, one request after the other."""
    seconds = itertools.count(1000.0).__next__  # one at each admission and each end
    journal = UsageJournal(
        folder / "usage.db", edge="edge-1", keeps_chains=keeps_chains, clock=seconds
    )
    edge = Edge(
        catalog=Catalog([spec := msgspec.structs.replace(specs()[0], id=MODEL, aliases=())]),
        texts={},
        region=fleet.region,
        tokens=TokenStore(folder / "tokens.json"),
        secret=b"s" * 32,
        stores=Stores(journal=journal),
    )
    text, sampling = cast(TextModel, ByteText()), Sampling(max_tokens=3)
    placer, found = fleet.placer, []
    for number, (tenant, prompt) in enumerate(PROMPTS):
        now, key = edge.clock(), edge.cache_keys[tenant, None]
        caller = Caller(
            request_id=f"{number}", tenant=tenant, cache_key=key, started=now, deadline=now + 60.0
        )
        choices = await start(edge, [job_of(caller, spec, text, prompt, sampling)], AnswerHeaders())
        async for _ in choices.pieces():
            pass
        found.append(choices.usage().prompt_tokens_details.cached_tokens)
        choices.close()
        names = full_block_digests(b"toy", key, prompt)
        await until(lambda names=names: knows(placer, names) and fleet.seems_idle())  # type: ignore[misc]
    journal.close()
    return found


def knows(placer: CostPlacer, names: tuple[bytes, ...]) -> bool:
    """Whether some node has reported a prompt's blocks."""
    said = placer.observations.prefixes.match_all(names, expected=False)
    return not names or any(each.blocks == len(names) for each in said.values())


async def test_the_twin_hits_what_the_fleet_hit(tmp_path: Path) -> None:
    async with platform(tmp_path, "a", "b", "c", patience=CALM) as fleet:
        assert await served(fleet, tmp_path / "kept") == HITS
    journal = tmp_path / "kept" / "usage.db"
    with closing(sqlite3.connect(journal)) as database:
        said = database.execute("SELECT cached_tokens, chain FROM usage ORDER BY number").fetchall()
    assert [cached for cached, _ in said] == HITS
    assert [len(chain) for _, chain in said] == [8 * (len(ids) // 64) for _, ids in PROMPTS]
    fitted = tmp_path / "seen.csv"
    fitted.write_text(trace_of(journaled(journal, 0.0)))
    assert [each.blocks for each in read_trace(fitted).requests] == [
        each.blocks for each in read_trace(journal).requests
    ]
    of_journal, of_fit, coarse = in_plain_python(
        REPLAY, str(journal), "64", str(fitted), "64", str(journal), "128"
    )
    assert of_journal == of_fit == HITS
    assert coarse == [blocks // 2 * 128 for blocks in SHARED]


async def test_two_tenants_equal_prompts_have_unequal_names(tmp_path: Path) -> None:
    """Nor have they those of nodes; and without chains nothing is shared."""
    async with platform(tmp_path, "a", patience=CALM) as fleet:
        await served(fleet, tmp_path / "with")
        await served(fleet, tmp_path / "without", keeps_chains=False)
    trace = read_trace(tmp_path / "with" / "usage.db")
    assert (trace.block_size, trace.is_thinned) == (64, True)
    one, other = trace.requests[0].blocks, trace.requests[3].blocks
    assert PROMPTS[0][1] == PROMPTS[3][1]
    assert len(one) == len(other) == 6
    assert not set(one) & set(other)
    for tenant, names in ((ACCOUNT, one), (OTHER_ACCOUNT, other)):
        of_nodes = full_block_digests(b"toy", CacheKeys(b"s" * 32)[tenant, None], PROMPTS[0][1])
        assert not {name[:8] for name in of_nodes} & set(names)
    without = read_trace(tmp_path / "without" / "usage.db")
    assert without.block_size == 0
    assert {each.blocks for each in without.requests} == {()}
