"""A node with toy engines in this process, and what tests of it need."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import numpy as np

from skerry_core.batch import ForwardBatch
from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.runners.toy import ToyRunner, next_token
from skerry_regions.node.node import Node
from skerry_regions.wire.protocol import Accepted, Done, Event, Failed, Sampling, Submit, Tokens

MODEL = "@cf/toy/toy"
VOCAB = 251
NUM_BLOCKS = 32


def toy_engine(
    *, before_step: Callable[[ForwardBatch], None] | None = None, **config: int
) -> Engine:
    runner = ToyRunner(
        num_blocks=NUM_BLOCKS, vocab_size=VOCAB, max_context=1024, before_step=before_step
    )
    return Engine(runner, EngineConfig(**config), model_key=b"toy")


@asynccontextmanager
async def node_of(*engines: Engine, model: str = MODEL) -> AsyncGenerator[Node]:
    node = Node(id="node-1", region="here", loop=asyncio.get_running_loop())
    try:
        for index, engine in enumerate(engines):
            node.serve(model if index == 0 else f"{model}-{index}", engine)
        yield node
    finally:
        await node.close()


def submit(
    prompt_ids: list[int] | None = None,
    *,
    model: str = MODEL,
    output_ids: list[int] | None = None,
    request_id: str = "r",
    epoch: int = 0,
    stream: int = 1,
    seconds_left: float | None = None,
    tenant: str = "",
    prompt_logprobs: int | None = None,
    **sampling: object,
) -> Submit:
    return Submit(
        stream=stream,
        request_id=request_id,
        epoch=epoch,
        model=model,
        prompt_ids=[3, 1, 4] if prompt_ids is None else prompt_ids,
        output_ids=output_ids or [],
        sampling=Sampling(**({"max_tokens": 5} | sampling)),  # type: ignore[arg-type]
        seconds_left=seconds_left,
        tenant=tenant,
        prompt_logprobs=prompt_logprobs,
    )


def expected(prompt_ids: list[int], count: int) -> list[int]:
    """What the toy model says after a prompt."""
    ids = list(prompt_ids)
    for _ in range(count):
        ids.append(next_token(np.array(ids, np.int64), VOCAB))
    return ids[len(prompt_ids) :]


class Events:
    """A sink that can be waited on."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Event] = asyncio.Queue()

    def __call__(self, event: Accepted | Event) -> None:
        if not isinstance(event, Accepted):
            self.queue.put_nowait(event)

    async def all(self, start: int = 0) -> tuple[list[int], Done | Failed]:
        """Token ids up to the last event, at indices without a gap from `start`; and that event."""
        ids: list[int] = []
        while isinstance(event := await self.queue.get(), Tokens):
            assert event.index == start + len(ids)
            ids += event.token_ids
        return ids, event


class Gate:
    """Holds an engine in its first step until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, batch: ForwardBatch) -> None:
        self.entered.set()
        assert self.opened.wait(30)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 30)
