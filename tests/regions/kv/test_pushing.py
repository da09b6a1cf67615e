"""KV leaves while the prompt is computed: how early it starts, how little is left at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.regions.toy_nodes import CALM, VOCABULARY, RunningNode, linked, read, submit, until

from skerry_core.config import BLOCK_SIZE, EngineConfig
from skerry_regions.region.placer import EarlierAttempts, Route
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.wire.protocol import Sampling, Submit

pytestmark = pytest.mark.anyio

PROMPT = [(5 * i + 1) % VOCABULARY for i in range(2048)]
CHUNK = 512  # tokens of a step


@pytest.mark.parametrize("steps_done", [1, 2, 3])
async def test_every_chunk_travels_while_the_next_is_computed(
    tmp_path: Path, steps_done: int
) -> None:
    """The prefill node is held in a step: all blocks of the steps before it arrive meanwhile. So
    the first ones are there before the second chunk ends, and at most the last chunk is left to
    move after the last step."""
    config = EngineConfig(max_step_tokens=CHUNK)
    prefill, decode = (RunningNode(name, tmp_path, config) for name in ("prefill", "decode"))
    async with linked([prefill, decode], CALM) as links:

        class Split:
            def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
                yield Route(decode=links[1], prefill=links[0], kv_address=str(decode.kv_address))

        prefill.gate.hold_after(steps_done)
        asked = submit(prompt_ids=PROMPT, sampling=Sampling(max_tokens=2))
        stream = await RemoteRegion(lambda: links, Split()).generate(asked)
        connector = decode.node.connector(asked.model)
        num_blocks = steps_done * CHUNK // BLOCK_SIZE
        await until(lambda: decode.engine.pool.num_cached == num_blocks)
        await until(lambda: connector.incoming.receiver.staged_bytes == 0)
        assert prefill.gate.tokens == [CHUNK] * steps_done
        prefill.gate.open.set()
        ids, _, _ = await read(stream)
        assert len(ids) == 2
        assert prefill.gate.tokens == [CHUNK] * (len(PROMPT) // CHUNK)
        assert decode.gate.tokens == [1]
