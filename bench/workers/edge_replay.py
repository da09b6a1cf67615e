"""An edge process whose region replays token ids at a fixed pace: no engine, only the edge's work.

    python -m bench.workers.edge_replay SECONDS_PER_STEP

Answers one JSON line with its address, account and token, and ends with its standard input. The
application, the server, the tokenizer and the chat template are those of `skerry up`.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import tempfile
import threading
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import uvloop

from bench.subjects.models import MODEL, default_model
from skerry.errors import ModelNotFound
from skerry_edge.api.app import create_app
from skerry_edge.gate.admission import Admission
from skerry_edge.gate.token_file import new_account_id
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.generation.edge import Edge
from skerry_edge.http.server import listen, serve
from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits
from skerry_edge.text.model import TextModel
from skerry_regions.models.catalog import Catalog
from skerry_regions.wire.client import RegionClient
from skerry_regions.wire.protocol import Done, Embed, PhaseUsage, Submit, Tokens

TEXT = "Skerries are small rocky islands, too small to live on; seals and sea birds like them. "
STREAMS = 4096


class Steps:
    """A beat that all streams share, as the streams of one engine share its steps."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next: asyncio.Future[None] | None = None

    async def next(self) -> None:
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
            loop.call_later(self._seconds, self._beat)
        await asyncio.shield(self._next)

    def _beat(self) -> None:
        if self._next is not None:
            self._next.set_result(None)
            self._next = None


class ReplayStream:
    """The first token at once, then one per step, up to the request's `max_tokens`."""

    def __init__(self, submit: Submit, ids: Iterator[int], steps: Steps) -> None:
        self._submit, self._ids, self._steps = submit, ids, steps
        self._given = 0
        self._aborted = self._ended = False

    def abort(self) -> None:
        self._aborted = True

    def __aiter__(self) -> ReplayStream:
        return self

    async def __anext__(self) -> Tokens | Done:
        if self._ended:
            raise StopAsyncIteration
        if self._aborted or self._given == self._submit.sampling.max_tokens:
            return self._end()
        if self._given:
            await self._steps.next()
        self._given += 1
        return Tokens(stream=1, index=self._given - 1, token_ids=[next(self._ids)])

    def _end(self) -> Done:
        self._ended = True
        usage = PhaseUsage(
            prompt_tokens=len(self._submit.prompt_ids), cached_tokens=0, output_tokens=self._given,
            queue_seconds=0.0, prefill_seconds=0.0, decode_seconds=0.0,
        )  # fmt: skip
        return Done(stream=1, finish_reason="cancelled" if self._aborted else "length", usage=usage)


class ReplayRegion:
    """`RegionClient` of one model."""

    def __init__(self, model: str, ids: list[int], steps: Steps) -> None:
        self._model, self._ids, self._steps = model, ids, steps

    async def generate(self, submit: Submit) -> ReplayStream:
        return ReplayStream(submit, cycle(self._ids), self._steps)

    async def embed(self, embed: Embed) -> bytes:
        raise ModelNotFound(f"no node embeds by {embed.model}")

    def models(self) -> frozenset[str]:
        return frozenset({self._model})

    async def close(self) -> None:
        pass


async def serve_edge(region: RegionClient, text: TextModel, home: Path, stores: Stores) -> None:
    """An edge in front of `region`, on a free port, until standard input ends."""
    tokens = TokenStore(home / "tokens.json")
    account = new_account_id()
    token, _ = tokens.create(account_id=account, name="bench", now=0)
    limits = Limits(max_requests=STREAMS, max_connections=STREAMS)
    edge = Edge(
        catalog=Catalog.load(),
        texts={MODEL: text},
        region=region,
        tokens=tokens,
        secret=secrets.token_bytes(32),
        limits=limits,
        admission=Admission(max_requests=STREAMS),
        stores=stores,
    )

    listener = listen("127.0.0.1", 0, limits)

    def ready() -> None:
        host, port = listener.getsockname()
        about = {"url": f"http://{host}:{port}", "account": account, "token": token}
        say({**about, "pid": os.getpid()})

    stop = until_input_ends()
    await serve(create_app(edge), listener=listener, limits=limits, ready=ready, stop=stop)


def say(about: dict[str, Any]) -> None:
    """Answer the bench: see `bench.subjects.peers`."""
    sys.stdout.write(json.dumps(about) + "\n")
    sys.stdout.flush()


def until_input_ends() -> asyncio.Event:
    """Wait for the bench's one request; the event is set when there will be no other."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait_for_the_end() -> None:
        while sys.stdin.readline():
            pass
        loop.call_soon_threadsafe(stop.set)

    sys.stdin.readline()
    threading.Thread(target=wait_for_the_end, daemon=True).start()
    return stop


async def run(seconds_per_step: float, home: Path) -> None:
    spec, files = default_model()
    text = TextModel(files, context_window=spec.context_window)
    region = ReplayRegion(spec.id, text.encode(TEXT * 4), Steps(seconds_per_step))
    await serve_edge(region, text, home, Stores())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(run(float(sys.argv[1]), Path(folder)))
