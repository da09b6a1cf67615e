"""What encrypting links between machines costs: first tokens of split requests, rate, CPU per GB.

    python -m bench.kv.link_tls [--quick] [--json FILE]

Two pairs of a prefill and a decode node, processes of one thread each on this machine, all over TCP
on loopback: one pair with TLS, one without. One request at a time, of prompts that nobody has seen,
in turns: both pairs within each round.

    first token   from the request until the decode node's tokens come, which has all KV then
    link          256 MiB through one link of the kind that KV goes over, to a process that drops it
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvloop
from msgspec.structs import replace
from rich.console import Console

from bench.measuring import stats
from bench.measuring.node_stream import NodeStream
from bench.measuring.quiet import Watch
from bench.measuring.run import Run, parser
from bench.subjects.models import MODEL, default_model
from bench.subjects.platforms import share_files
from bench.workers.link_sink import Sink
from skerry_cli.home.keys import LINK_VARIABLE, link_credentials
from skerry_cli.home.state import Home
from skerry_regions.address import Address
from skerry_regions.control.machines.authority import Authority, read_request
from skerry_regions.control.machines.folder import certificate_request, kept_key
from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.private_files import replace_file
from skerry_regions.wire import link_auth
from skerry_regions.wire.link import NodeLink, Patience
from skerry_regions.wire.link_auth import LinkCredentials
from skerry_regions.wire.protocol import (
    HandOverFrom,
    HandOverTo,
    Hello,
    ModelBuild,
    Sampling,
    Submit,
)

SIZES = (1000, 4000)  # tokens of a prompt
ROLES = ("prefill", "decode")
TLS, PLAIN = "TLS", "plain"
START_SECONDS = 180.0
LINK_BYTES, PIECE_BYTES = 256 << 20, 1 << 20


def certificates(folder: Path) -> None:
    """Folders of machines: two of nodes, and ours as an edge's and a node's."""
    authority = Authority.open(folder / "authority.pem")
    for name, runs in (("prefill", ["node"]), ("decode", ["node"]), ("bench", ["edge", "node"])):
        own = folder / name
        own.mkdir()
        request = read_request(certificate_request(kept_key(own / "tls.key")))
        replace_file(own / "tls.crt", authority.sign(request, name, *runs).pem.encode())
        replace_file(own / "ca.crt", authority.pem.encode())


def environment(own: Path, kind: str, machine: str) -> dict[str, str]:
    links = str(own / "links" / machine) if kind == TLS else "off"
    return {**os.environ, "SKERRY_HOME": str(own), LINK_VARIABLE: links}


@contextmanager
def nodes(own: Path) -> Generator[list[int]]:
    """Both pairs as processes; their pids."""
    share_files(own)
    started = []
    try:
        for kind in (TLS, PLAIN):
            for role in ROLES:
                name = f"{role}-{kind}"
                command = [sys.executable, "-m", "skerry", "node", "--id", name, "--role", role,
                           "--model", MODEL, "--threads", "1", "--file-tier", "none",
                           "--address", "tcp:127.0.0.1:0", "--transfer", "tcp:127.0.0.1:0",
                           "--control", f"unix:{own}/{name}.control"]  # fmt: skip
                env = environment(own, kind, role)
                started.append(subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL))
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


class Pair:
    """A prefill and a decode node over links of one kind."""

    def __init__(self, prefill: NodeLink, decode: NodeLink, kv_address: str) -> None:
        self.prefill, self.decode, self.kv_address = prefill, decode, kv_address

    async def first_token(self, num_tokens: int, salt: int) -> float:
        """Milliseconds of a request until the decode node's tokens come."""
        transfer, token = secrets.randbits(62), secrets.token_bytes(32)
        ids = [(i * 7919 + salt * 104_729) % 40_000 + 100 for i in range(num_tokens)]
        submit = Submit(
            stream=1, request_id=f"{salt}", model=MODEL, prompt_ids=ids,
            sampling=Sampling(max_tokens=4),
            hand_over_from=HandOverFrom(transfer=transfer, token=token, lease_seconds=60.0),
        )  # fmt: skip
        first = replace(
            submit,
            sampling=Sampling(max_tokens=1),
            hand_over_from=None,
            hand_over_to=HandOverTo(
                address=self.kv_address, transfer=transfer, token=token, machine=self.decode.machine
            ),
        )
        decoding, prefilling = NodeStream(), NodeStream()
        self.decode.submit(submit, decoding)
        self.prefill.submit(first, prefilling)
        await asyncio.gather(prefilling.ended(), decoding.ended())
        return 1e3 * decoding.first_seconds


@asynccontextmanager
async def pairs(own: Path, known: dict[str, LinkCredentials]) -> AsyncGenerator[dict[str, Pair]]:
    spec, files = default_model()
    build = ModelBuild(id=spec.id, tokenizer=files.tokenizer_digest, template=files.template_digest)
    hello = Hello(versions=[1], id="bench", models=[build])
    registry, names = SqliteRegistry(Home(own).registry), [f"{r}-{k}" for r in ROLES for k in known]
    async with asyncio.timeout(START_SECONDS):
        while True:
            found = {m.id: m for m in registry.members() if m.state == "ready"}
            if found.keys() >= set(names):
                break
            await asyncio.sleep(0.2)
    links = {
        name: NodeLink(
            name, Address.parse(found[name].address), hello, Patience(silence=30),
            credentials=known[kind].towards(found[name].machine),
        )
        for kind in known
        for name in (f"{role}-{kind}" for role in ROLES)
    }  # fmt: skip
    try:
        async with asyncio.timeout(START_SECONDS):
            while not all(link.is_up for link in links.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        yield {
            kind: Pair(
                links[f"prefill-{kind}"],
                links[f"decode-{kind}"],
                found[f"decode-{kind}"].transfer_address,
            )
            for kind in known
        }
    finally:
        for link in links.values():
            await link.close()


@contextmanager
def sink(own: Path, kind: str) -> Generator[Address]:
    """A process that drops what it gets."""
    command = [sys.executable, "-m", "bench.workers.link_sink", str(own)]
    env = environment(own, kind, "bench")
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Address.parse(process.stdout.readline().strip())
    finally:
        process.terminate()
        process.wait()


async def through(address: Address, credentials: LinkCredentials) -> tuple[float, float]:
    """GB/s of a link, and seconds of CPU per GB at both ends."""
    pieces = [os.urandom(PIECE_BYTES)] * (LINK_BYTES // PIECE_BYTES)
    link = await link_auth.connect(address, Sink, credentials, "kv")
    cpu, started = time.process_time(), time.perf_counter()
    link.send(pieces)
    theirs = await link.answered
    seconds, ours = time.perf_counter() - started, time.process_time() - cpu
    link.close()
    gigabytes = LINK_BYTES / 1e9
    return gigabytes / seconds, (ours + theirs) / gigabytes


async def measure(rounds: int, console: Console) -> tuple[list[stats.Cell], int]:
    first = {n: stats.Cell(f"first token of {n:,}", "ms") for n in SIZES}
    rate, cpu = stats.Cell("link", "MB/s"), stats.Cell("CPU of both ends", "ms/GB")
    disturbed = 0
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder)
        (own / "links").mkdir()
        certificates(own / "links")
        known = {
            kind: link_credentials(Home(own), environment(own, kind, "bench"))
            for kind in (TLS, PLAIN)
        }
        for kind, credentials in known.items():
            with sink(own, kind) as address:
                for number in range(rounds + 1):
                    speed, cost = await through(address, credentials)
                    if number:
                        rate.add(kind, 1e3 * speed)
                        cpu.add(kind, 1e3 * cost)
        with nodes(own) as pids:
            async with pairs(own, known) as both:
                for number in range(rounds + 1):
                    status = console.status(f"round {number} of {rounds} (round 0 warms up)")
                    with status, Watch(pids) as watch:
                        order = (TLS, PLAIN) if number % 2 else (PLAIN, TLS)
                        for size in SIZES:
                            for kind in order:
                                took = await both[kind].first_token(size, number)
                                if number:
                                    first[size].add(kind, took)
                    disturbed += bool(number) and not watch.quiet
    return [*first.values(), rate, cpu], disturbed


def main() -> int:
    run = Run(parser(__doc__, quick="5 rounds instead of 20").parse_args())
    default_model()
    rounds = 5 if run.is_quick else 20
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        cells, disturbed = runner.run(measure(rounds, run.console))
    run.console.print(stats.table("links with TLS and without, p50", cells, TLS, [PLAIN]))
    if disturbed:
        run.console.print(f"{disturbed} of {rounds} rounds were disturbed by foreign load")
    run.write(cells, disturbed=disturbed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
