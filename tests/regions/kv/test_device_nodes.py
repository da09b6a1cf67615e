"""KV from the device of a node to another's: pushed, fetched, spoilt on its way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.core.host_device import DeviceToyRunner, HostDevice, HostDriver
from tests.regions.toy_nodes import (
    CALM,
    MODEL,
    PROMPT,
    OnlyOn,
    RunningNode,
    after_tokens,
    greedy_oracle,
    linked,
    read,
    submit,
    until,
)

from skerry_regions.digests import full_block_digests
from skerry_regions.kv import connector as kv_connector
from skerry_regions.region.placer import EarlierAttempts, KVFetch, Route
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.protocol import Done, Submit

pytestmark = pytest.mark.anyio


# --- between nodes -------------------------------------------------------------------------------


def device_node(name: str, path: Path, *, opens: bool = True) -> RunningNode:
    device = HostDevice(HostDriver(opens=opens))
    return RunningNode(name, path, make_runner=partial(DeviceToyRunner, device))


def runner_of(node: RunningNode) -> DeviceToyRunner:
    assert isinstance(node.runner, DeviceToyRunner)
    return node.runner


@pytest.fixture
def few_pages(monkeypatch: pytest.MonkeyPatch) -> int:
    """Of each node."""
    count = 8
    monkeypatch.setattr(kv_connector, "DEVICE_BYTES", count * 1024)
    return count


def all_free(node: RunningNode, count: int) -> Callable[[], bool]:
    pages = node.node.connector(MODEL)._pages
    assert pages is not None
    return lambda: pages.num_free == count


async def test_a_prompt_is_pushed_from_device_to_device(tmp_path: Path, few_pages: int) -> None:
    nodes = prefill, decode = [device_node(name, tmp_path) for name in ("prefill", "decode")]
    async with linked(nodes, CALM) as links:

        class Split:
            def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
                yield Route(decode=links[1], prefill=links[0], kv_address=str(decode.kv_address))

        prefill.gate.hold_after(0)
        stream = await RemoteRegion(lambda: links, Split()).generate(submit())
        streams = prefill.node._served[MODEL]._streams.values()
        await until(lambda: any(s.outgoing is not None and s.outgoing.pages() for s in streams))
        decode.gate.hold_after(1)
        prefill.gate.open.set()
        ids, _ = await after_tokens(stream, 2)
        for node in nodes:  # not only when the stream has ended
            await until(all_free(node, few_pages))
        decode.gate.open.set()
        ids, _, _ = await read(stream, ids)
        assert ids == greedy_oracle(40)
        assert decode.num_computed == 39
        assert runner_of(prefill).num_exported == runner_of(decode).num_admitted == 3


class Fetching:
    """Places on the second node, which fetches from the first."""

    def __init__(self, nodes: list[RunningNode], links: list[NodeLink]) -> None:
        self._kv_address, self._links = str(nodes[1].kv_address), links

    def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
        source, target = self._links
        names = full_block_digests(b"toy", submit.cache_key, submit.prompt_ids)
        fetch = KVFetch(
            source=source, digests=list(names), kv_address=self._kv_address, lease_seconds=60.0
        )
        yield Route(decode=target, fetch=fetch)


async def fetched(nodes: list[RunningNode], links: list[NodeLink]) -> Done:
    """Have the first node compute the prompt, and the second one answer."""
    await read(await RemoteRegion(lambda: links, OnlyOn(links[0])).generate(submit()))
    stream = await RemoteRegion(lambda: links, Fetching(nodes, links)).generate(submit())
    ids, _, done = await read(stream)
    assert ids == greedy_oracle(40)
    return done


@pytest.mark.parametrize("opens", [True, False])
async def test_a_prefix_is_fetched_from_device_to_device(
    tmp_path: Path, few_pages: int, opens: bool
) -> None:
    """And through the host, where the handle cannot be opened."""
    nodes = [device_node("holder", tmp_path), device_node("server", tmp_path, opens=opens)]
    async with linked(nodes, CALM) as links:
        done = await fetched(nodes, links)
        assert done.usage.cached_tokens == len(PROMPT) // 64 * 64
        assert [runner_of(nodes[0]).num_exported, runner_of(nodes[1]).num_admitted] == (
            [2, 2] if opens else [0, 0]
        )
        for node in nodes:
            await until(all_free(node, few_pages))


async def test_a_page_that_was_spoilt_on_its_way_is_computed(
    tmp_path: Path, few_pages: int, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [device_node(name, tmp_path) for name in ("holder", "server")]
    runner_of(nodes[1]).device.spoils = 1
    async with linked(nodes, CALM) as links:
        done = await fetched(nodes, links)
        assert done.usage.cached_tokens == 0, "the first block"
        assert runner_of(nodes[1]).num_admitted == 1
    assert "1 of 1 KV blocks were spoilt between devices" in caplog.text
