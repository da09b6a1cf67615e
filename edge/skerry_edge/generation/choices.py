"""The choices of one request, side by side: their pieces as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from skerry.wire import TokenUsage
from skerry_edge.generation.generation import Generation, Piece


class Choices:
    """Whoever has them must `close` them. Choices of several prompts are in the prompts' order."""

    def __init__(
        self,
        generations: Sequence[Generation],
        usage: Callable[[], TokenUsage],
        on_close: Callable[[], None],
    ) -> None:
        self.usage = usage
        """Returns the tokens so far: each prompt once, the output of every choice."""
        self._generations = generations
        self._on_close = on_close
        self._is_closed = False

    def close(self) -> None:
        """Abort what still runs and settle the request. Idempotent and synchronous."""
        if not self._is_closed:
            self._is_closed = True
            for generation in self._generations:
                generation.close()
            self._on_close()

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece]]:
        """Yield (choice index, piece) as they come."""
        if len(self._generations) == 1:
            async with aclosing(self._generations[0].pieces()) as pieces:
                async for piece in pieces:
                    yield 0, piece
            return
        arrived: asyncio.Queue[tuple[int, Piece] | BaseException | None] = asyncio.Queue(
            maxsize=len(self._generations)
        )
        tasks = [
            asyncio.create_task(_pump(index, generation, arrived))
            for index, generation in enumerate(self._generations)
        ]
        try:
            running = len(tasks)
            while running:
                match await arrived.get():
                    case None:
                        running -= 1
                    case BaseException() as exc:
                        raise exc
                    case item:
                        yield item
        finally:
            for task in tasks:
                task.cancel()


async def _pump(
    index: int,
    generation: Generation,
    arrived: asyncio.Queue[tuple[int, Piece] | BaseException | None],
) -> None:
    try:
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                await arrived.put((index, piece))
        await arrived.put(None)
    except Exception as exc:
        await arrived.put(exc)
