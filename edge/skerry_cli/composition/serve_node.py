"""The process behind `skerry node`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop

from skerry_cli.composition.prompts import tokenize
from skerry_cli.composition.starter import Starter
from skerry_cli.home.machine import keep_freed_memory
from skerry_regions.node.process import NodeOptions, NodeProcess
from skerry_regions.process.startup import from_threads, stop_on_signals
from skerry_regions.registry import Registry


def serve_node(
    options: NodeOptions,
    registry: Registry,
    lifeline: int | None,
    started: Callable[[Callable[[], None]], None] = lambda stop: None,
    told_to_stop: Callable[[], None] = lambda: None,
) -> None:
    """Run the node until it is to stop. Raises what `NodeProcess.run` raises.

    `lifeline` is the descriptor that a supervisor gave us; without one, progress goes to stderr.
    `started` is given what stops the node from any thread, as SIGTERM does; `told_to_stop` is
    called when a signal does.
    """
    keep_freed_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options, registry, lifeline, started, told_to_stop))


async def _serve(
    options: NodeOptions,
    registry: Registry,
    descriptor: int | None,
    started: Callable[[Callable[[], None]], None],
    told_to_stop: Callable[[], None],
) -> None:
    stop = stop_on_signals(told_to_stop)
    started(from_threads(stop.set))
    process = NodeProcess(options, registry, stop, tokenize)
    starter = Starter(descriptor)
    await process.run(
        progress=starter.progress,
        ready=lambda member: starter.ready(
            f"Node {member.id} is ready at {member.address}.", address=member.address
        ),
    )
