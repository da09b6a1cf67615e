"""The dispatcher of one edge, for as long as the edge serves."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from skerry_edge.api.batch.dispatcher import Dispatcher
from skerry_edge.api.batch.execution import execute
from skerry_edge.api.batch.output_files import write_files
from skerry_edge.gate.inside import Serve
from skerry_edge.generation.edge import Edge
from skerry_regions.operations import Errors


@asynccontextmanager
async def dispatching(
    serve: Serve, edge: Edge, errors_of: Callable[[str], Errors]
) -> AsyncGenerator[None]:
    """Do the edge's part of the queue's work while entered, through `serve`, its own rim."""
    batches = edge.batches
    if batches is None:
        yield
        return
    served = frozenset(spec.id for spec in edge.served_specs())
    dispatcher = Dispatcher(
        batches,
        functools.partial(execute, serve, edge.tokens, errors_of),
        functools.partial(write_files, batches),
        models=lambda: served & edge.region.models(),
        in_progress=lambda: edge.metrics.running.value,
        count=functools.partial(edge.metrics.batch_attempts.add, 1),
    )
    task = asyncio.create_task(dispatcher.run(), name="batch dispatcher")
    try:
        yield
    finally:
        await dispatcher.stop(task)
        await asyncio.to_thread(batches.close)
