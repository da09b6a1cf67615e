"""The dispatcher of one edge, for as long as the edge serves."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from skerry_edge.api.batch.dispatcher import Dispatcher
from skerry_edge.api.batch.execution import execute
from skerry_edge.api.batch.output_files import write_files
from skerry_edge.generation.edge import Edge


@asynccontextmanager
async def dispatching(app: ASGIApp, edge: Edge) -> AsyncGenerator[None]:
    """While entered, the edge does its part of the queue's work through `app`, its own."""
    batches = edge.batches
    if batches is None:
        yield
        return
    served = frozenset(spec.id for spec in edge.served_specs())
    dispatcher = Dispatcher(
        batches,
        functools.partial(execute, app, edge.tokens),
        functools.partial(write_files, batches),
        models=lambda: served & edge.region.models(),
        in_progress=lambda: edge.metrics.in_progress,
        count=functools.partial(edge.metrics.batch_attempts.add, 1),
    )
    task = asyncio.create_task(dispatcher.run(), name="batch dispatcher")
    try:
        yield
    finally:
        await dispatcher.stop(task)
        await asyncio.to_thread(batches.close)
