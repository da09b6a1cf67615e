"""A link to a node over several connections, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.regions.toy_nodes import RunningNode, hello, linked, submit, until

from skerry_regions.wire.listener import NodeServer
from skerry_regions.wire.protocol import Accepted, Done, Event, Failed

pytestmark = pytest.mark.anyio


async def test_who_ends_a_stream_of_a_lost_connection_ends_no_other(tmp_path: Path) -> None:
    node = RunningNode("n", tmp_path)
    async with linked([node]) as [link]:
        node.gate.hold_after(0)
        lost: list[Accepted | Event] = []
        first = link.submit(submit(), lost.append)
        await node.server.close()
        await until(lambda: bool(lost) and isinstance(lost[-1], Failed))
        node.server = NodeServer(node.node, hello("n"))
        await node.server.listen(node.address)
        await until(lambda: link.is_up)

        events: list[Accepted | Event] = []
        assert link.submit(submit(), events.append) != first
        link.abort(first)
        link.forget(first)
        node.gate.steps_left = None
        node.gate.open.set()
        await until(lambda: bool(events) and isinstance(events[-1], Done))
        assert isinstance(events[-1], Done)
        assert events[-1].finish_reason == "length"
