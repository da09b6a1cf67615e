"""What a hand-over costs beside moving the bytes: from one node's first token to the other's own.

    python -m bench.kv.handover [--quick] [--json FILE]

A prefill and a decode node, processes of one thread each on this machine, idle but for one stream
at a time. Times are those of the tokens' arrival here:

    arrival    from the prefill node's token until the decode node tells it, which has all KV then
    start      from there to the decode node's first own token, less a decode step
    raw        as many bytes as are left to move after the last prefill step, through a bare socket
    overhead   arrival + start - raw
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from bench.measuring import stats
from bench.measuring.node_stream import NodeStream
from bench.measuring.quiet import Watch
from bench.measuring.run import Run, parser
from bench.subjects.models import MODEL, default_model
from bench.subjects.platforms import share_files
from skerry_cli.home.state import Home
from skerry_core.config import BLOCK_SIZE, EngineConfig
from skerry_regions.address import Address
from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.wire.link import NodeLink, Patience
from skerry_regions.wire.protocol import (
    HandOverFrom,
    HandOverTo,
    Hello,
    ModelBuild,
    Sampling,
    Submit,
)

PROMPT_TOKENS = 2048
OUTPUT_TOKENS = 16
ROLES = ("prefill", "decode")
US = "Skerry"
START_SECONDS = 120.0


@contextmanager
def nodes(own: Path) -> Generator[list[int]]:
    """Both nodes as processes, with run-time state of their own; their pids."""
    share_files(own)
    env = {**os.environ, "SKERRY_HOME": str(own)}
    started = []
    try:
        for role in ROLES:
            command = [sys.executable, "-m", "skerry", "node", "--id", role, "--role", role,
                       "--model", MODEL, "--threads", "1", "--file-tier", "none",
                       "--address", f"unix:{own}/{role}", "--transfer", f"unix:{own}/{role}.kv",
                       "--control", f"unix:{own}/{role}.control"]  # fmt: skip
            started.append(subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL))
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


@asynccontextmanager
async def linked(own: Path) -> AsyncGenerator[list[NodeLink]]:
    spec, files = default_model()
    build = ModelBuild(id=spec.id, tokenizer=files.tokenizer_digest, template=files.template_digest)
    hello = Hello(versions=[1], id="bench", models=[build])
    links = [
        NodeLink(role, Address(path=f"{own}/{role}"), hello, Patience(silence=30)) for role in ROLES
    ]
    try:
        async with asyncio.timeout(START_SECONDS):
            while not all(link.is_up for link in links):  # noqa: ASYNC110  (none tells of it)
                await asyncio.sleep(0.005)
        yield links
    finally:
        for link in links:
            await link.close()


async def hand_over(links: list[NodeLink], kv_address: str, salt: int) -> dict[str, float]:
    """Milliseconds of one hand-over of a prompt that nobody has seen."""
    prefill, decode = links
    transfer, token = secrets.randbits(62), secrets.token_bytes(32)
    submit = Submit(
        stream=1,
        request_id=f"{salt}",
        model=MODEL,
        prompt_ids=[(i * 7919 + salt * 104_729) % 40_000 + 100 for i in range(PROMPT_TOKENS)],
        sampling=Sampling(max_tokens=OUTPUT_TOKENS),
        hand_over_from=HandOverFrom(transfer=transfer, token=token, lease_seconds=60.0),
    )
    first = replace(
        submit,
        sampling=Sampling(max_tokens=1),
        hand_over_from=None,
        hand_over_to=HandOverTo(address=kv_address, transfer=transfer, token=token),
    )
    decoding, prefilling = NodeStream(), NodeStream()
    decode.submit(submit, decoding)
    prefill.submit(first, prefilling)
    await asyncio.gather(prefilling.ended(), decoding.ended())
    gaps = [b - a for a, b in zip(decoding.times, decoding.times[1:], strict=False)]
    arrival = decoding.times[0] - prefilling.times[0]
    return {"arrival": 1e3 * arrival, "start": 1e3 * (gaps[0] - statistics.median(gaps[1:]))}


def raw_transfer(num_bytes: int) -> float:
    """Milliseconds of `num_bytes` through a unix socket between two threads."""
    data, received = bytes(num_bytes), bytearray(num_bytes)
    near, far = socket.socketpair()

    def receive() -> None:
        view = memoryview(received)
        while len(view):
            view = view[far.recv_into(view) :]

    with near, far:
        receiver = threading.Thread(target=receive)
        started = time.perf_counter()
        receiver.start()
        near.sendall(data)
        receiver.join()
        return 1e3 * (time.perf_counter() - started)


async def measure(rounds: int, console: Console) -> tuple[list[stats.Cell], int]:
    """Milliseconds, and how many rounds were disturbed by foreign load."""
    cells = {name: stats.Cell(name, "ms") for name in ("arrival", "start", "raw", "overhead")}
    disturbed = 0
    with tempfile.TemporaryDirectory() as folder, nodes(Path(folder)) as pids:
        async with linked(Path(folder)) as links:
            (decode,) = (
                member
                for member in SqliteRegistry(Home(Path(folder)).registry).members()
                if member.id == "decode"
            )
            left = min(EngineConfig().max_step_tokens, PROMPT_TOKENS) // BLOCK_SIZE * BLOCK_SIZE
            for number in range(rounds + 1):
                status = console.status(f"round {number} of {rounds} (round 0 warms up)")
                with status, Watch(pids) as watch:
                    took = await hand_over(links, decode.transfer_address, number)
                    took["raw"] = raw_transfer(int(left * decode.kv_bytes_per_token))
                took["overhead"] = took["arrival"] + took["start"] - took["raw"]
                if number:
                    disturbed += not watch.quiet
                    for name, value in took.items():
                        cells[name].add(US, value)
    return list(cells.values()), disturbed


def main() -> int:
    run = Run(parser(__doc__, quick="5 rounds instead of 30").parse_args())
    default_model()
    rounds = 5 if run.is_quick else 30
    cells, disturbed = asyncio.run(measure(rounds, run.console))
    run.console.print(stats.table(f"hand-over of {PROMPT_TOKENS:,} tokens, p50", cells, US, []))
    if disturbed:
        run.console.print(f"{disturbed} of {rounds} rounds were disturbed by foreign load")
    run.write(cells, disturbed=disturbed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
