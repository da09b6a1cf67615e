"""A stream whose node dies goes on elsewhere, and is one row of the journal with all its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
import pytest
from tests.edge.byte_text import ByteText
from tests.edge.support import ACCOUNT, specs
from tests.regions.toy_nodes import MODEL, PROMPT, SAMPLINGS, InOrder, RunningNode, linked

from skerry_edge.answer_headers import AnswerHeaders
from skerry_edge.api.handler import job_of
from skerry_edge.gate.caller import Caller
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.generation.edge import Edge
from skerry_edge.generation.start import start
from skerry_edge.ledger.stores import Stores
from skerry_edge.ledger.usage_report import Totals, journals, totals
from skerry_edge.text.model import TextModel
from skerry_regions.models.catalog import Catalog
from skerry_regions.region.recovery import RecoveryPolicy
from skerry_regions.region.remote_region import RemoteRegion

pytestmark = pytest.mark.anyio


async def counted(folder: Path, *, kill_after: int | None) -> Totals:
    """What the journal has of one request, whose first node dies within so many tokens."""
    nodes = [RunningNode(f"node-{number}", folder) for number in range(2)]
    spec = msgspec.structs.replace(specs()[0], id=MODEL, aliases=())
    stores = Stores.in_folder(folder, edge="edge-1")
    async with linked(nodes) as links:
        edge = Edge(
            catalog=Catalog([spec]),
            texts={},
            region=RemoteRegion(lambda: links, InOrder(links), RecoveryPolicy()),
            tokens=TokenStore(folder / "tokens.json"),
            secret=b"s" * 32,
            stores=stores,
        )
        now = edge.clock()
        caller = Caller(request_id="r", tenant=ACCOUNT, started=now, deadline=now + 60.0)
        text = cast(TextModel, ByteText())
        job = job_of(caller, spec, text, list(PROMPT), SAMPLINGS["greedy"])
        if kill_after is not None:
            nodes[0].gate.hold_after(kill_after)
        choices = await start(edge, [job], AnswerHeaders())
        is_alive = True
        async for _ in choices.pieces():  # of several tokens each, as they come
            if kill_after is not None and is_alive:
                await nodes[0].stop()
                is_alive = False
        choices.close()
    stores.close()
    with journals([folder / "usage.db"]) as database:
        (total,) = totals(database)
    return total


async def test_a_failover_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    undisturbed = await counted(tmp_path / "a", kill_after=None)
    moved = await counted(tmp_path / "b", kill_after=5)
    for total in (undisturbed, moved):
        assert (total.requests, total.completed) == (1, 1)
        assert (total.prompt_tokens, total.output_tokens) == (150, 40)
    assert moved.cost == pytest.approx(undisturbed.cost)
