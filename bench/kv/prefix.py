"""What a cached prefix is worth: time to the first token of a 2,000-token prompt.

    python -m bench.kv.prefix [--quick] [--json FILE]

    cold     nothing is cached: all of it is computed
    memory   the node has its blocks in memory
    file     the node evicted them: they come back from its file tier
    peer     another node of this host has them: it sends them, and computes nothing

Two nodes with the real model in this process, two threads each and never both at work; timed from
the submission to the first token on the event loop. Of the file, the page cache has what was just
written: a disk would add its own time.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.measuring import machine, stats
from bench.measuring.node_stream import NodeStream
from bench.measuring.quiet import Watch
from bench.subjects.models import default_model, home
from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.engine.second_tier import open_file
from skerry_core.runners.numba_cpu import NumbaRunner
from skerry_regions.address import Address
from skerry_regions.digests import full_block_digests
from skerry_regions.node.node import Node
from skerry_regions.wire.protocol import (
    HandOverFrom,
    HandOverTo,
    Sampling,
    ShareKV,
    Submit,
)

MODEL = "bench"
KEY = b"bench"
THREADS = 2
PROMPT_TOKENS = 2000
NUM_BLOCKS = 40  # one prompt and a bit: two others evict it
FILE_BYTES = 512 << 20
PLACES = ("memory", "file", "peer")
TRANSFER_TOKEN = b"0123456789abcdef"


class Bench:
    """Node A with a file tier, and node B, which fetches from A."""

    def __init__(self, weights: Path, folder: Path) -> None:
        self._weights, self._folder = weights, folder
        self._count = 0

    async def open(self, stack: AsyncExitStack) -> None:
        self.a, self._engine = self._node("a", self._folder / "kv")
        stack.push_async_callback(self.a.close)
        self.b, _ = self._node("b", None)
        stack.push_async_callback(self.b.close)
        address = Address.parse(f"unix:{self._folder / 'b.kv'}")
        self._kv_address = str(await self.b.connector(MODEL).listen(address))

    def _node(self, id: str, path: Path | None) -> tuple[Node, Engine]:
        runner = NumbaRunner.open(
            self._weights, num_blocks=NUM_BLOCKS, threads=THREADS, cache_dir=home() / "cache"
        )
        runner.warm_up(lambda _what, _share: None)
        file = None
        if path is not None:
            file = open_file(path, runner, model_key=KEY, capacity_bytes=FILE_BYTES)
        engine = Engine(runner, EngineConfig(), model_key=KEY, file_tier=file)
        node = Node(id=id, region="here", loop=asyncio.get_running_loop())
        node.serve(MODEL, engine)
        return node, engine

    async def round(self) -> dict[str, float]:
        """Seconds to the first token of a prompt that nobody has seen, by where its KV is."""
        self._count += 1
        prompt = prompt_of(self._count)
        seconds = {"cold": await self._ask(self.a, prompt, cached=False)}
        seconds["memory"] = await self._ask(self.a, prompt, cached=True)
        seconds["peer"] = await self._fetch(prompt)
        for other in (1, 2):
            await self._ask(self.a, prompt_of(-2 * self._count - other), cached=False)
        if self._engine.second_tier is not None:
            self._engine.second_tier._writer.submit(lambda: None).result()
        seconds["file"] = await self._ask(self.a, prompt, cached=True)
        return seconds

    async def _ask(self, node: Node, prompt: list[int], *, cached: bool) -> float:
        stream = NodeStream()
        node.submit(self._submit(prompt), stream)
        expect(await stream.ended(), cached=cached)
        return stream.first_seconds

    async def _fetch(self, prompt: list[int]) -> float:
        source = HandOverFrom(
            transfer=self._count, token=TRANSFER_TOKEN, lease_seconds=30.0, source="a"
        )
        target = HandOverTo(address=self._kv_address, transfer=self._count, token=TRANSFER_TOKEN)
        share = ShareKV(
            model=MODEL,
            digests=list(full_block_digests(KEY, b"", prompt)),
            to=target,
            lease_seconds=30.0,
        )
        stream = NodeStream()
        self.a.share(share)
        self.b.submit(msgspec.structs.replace(self._submit(prompt), hand_over_from=source), stream)
        expect(await stream.ended(), cached=True)
        return stream.first_seconds

    def _submit(self, prompt: list[int]) -> Submit:
        sampling = Sampling(max_tokens=1)
        return Submit(
            stream=1, request_id="bench", model=MODEL, prompt_ids=prompt, sampling=sampling
        )


def prompt_of(salt: int) -> list[int]:
    """Token ids that look like nothing cached: each salt has its own."""
    return [(i * 7919 + salt * 104_729) % 40_000 + 100 for i in range(PROMPT_TOKENS)]


def expect(cached_tokens: int, *, cached: bool) -> None:
    """Raises RuntimeError unless the prompt was where this figure says it is."""
    wanted = PROMPT_TOKENS // 64 * 64 if cached else 0
    if cached_tokens < wanted or (not cached and cached_tokens):
        raise RuntimeError(f"{cached_tokens} tokens were cached, expected {wanted}")


async def measure(weights: Path, rounds: int, console: Console) -> tuple[stats.Cell, int]:
    """Milliseconds by place, and how many rounds stayed disturbed by foreign load."""
    cell, disturbed = stats.Cell(f"first token of {PROMPT_TOKENS:,}", "ms"), 0
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bench = Bench(weights, folder)
        await bench.open(stack)
        for number in range(rounds + 1):
            status = console.status(f"round {number} of {rounds} (round 0 warms up)")
            with status, Watch([]) as watch:
                seconds = await bench.round()
            if number:
                disturbed += not watch.quiet
                for place, value in seconds.items():
                    cell.add(place, 1000 * value)
    return cell, disturbed


def table(cell: stats.Cell) -> Table:
    """A row for each place."""
    result = Table(title=f"time to the {cell.name} tokens, {cell.unit}, medians")
    for heading in ("where they are", cell.unit, "times faster than cold [min..max]"):
        result.add_column(heading, justify="left" if heading == "where they are" else "right")
    for place in ("cold", *PLACES):
        ratios = cell.ratios("cold", place)
        spread = f"{cell.ratio('cold', place):.1f} [{min(ratios):.1f}..{max(ratios):.1f}]"
        result.add_row(place, f"{cell.median(place):.0f}", spread if place != "cold" else "")
    return result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 9")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    parser.add_argument("--model", type=Path, metavar="GGUF", help="another model file")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    console = Console()
    weights = options.model or default_model()[1].weights
    description, ceilings = machine.describe(), machine.limits(THREADS)
    stats.heading(console, description, ceilings)
    rounds = 3 if options.quick else 9
    cell, disturbed = asyncio.run(measure(weights, rounds, console))
    console.print(table(cell))
    if disturbed:
        console.print(f"{disturbed} of {rounds} rounds were disturbed by foreign load")
    stats.write(
        options.json,
        {
            "machine": description,
            "limits": ceilings,
            "rows": stats.rows([cell]),
            "disturbed": disturbed,
            "ratios": {
                place: {"cold to it": round(cell.ratio("cold", place), 2)} for place in PLACES
            },
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
