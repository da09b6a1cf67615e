"""A dispatcher over a platform whose answers a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Raw

from skerry_edge.api.batch.dispatcher import Dispatcher
from skerry_edge.api.batch.execution import Answered
from skerry_edge.api.batch.wire import Reply
from skerry_edge.ledger.batches import Batches, BatchLimits
from skerry_edge.ledger.file_store import FileStore
from skerry_regions.drivers.sqlite_queue import SqliteQueue
from skerry_regions.queue import BatchRecord, Claim, NewBatch, NewItem

MODEL = "m"


def answered(status: int = 200, **headers: str) -> Answered:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answered(Reply(status, "id", Raw(b"{}")), named)


def a_claim(attempt: int = 1, *, is_last: bool = False) -> Claim:
    return Claim(
        item=1, owner="w", batch="b", index=0, tenant="t", token="", kind="", model=MODEL,
        target="", payload=b"", attempt=attempt, is_last=is_last,
    )  # fmt: skip


class Platform:
    """What a dispatcher needs, played."""

    def __init__(self, folder: Path, limits: BatchLimits) -> None:
        queue = SqliteQueue(folder / "queue.db")
        self.batches = Batches(queue=queue, files=FileStore(folder / "files.db"), limits=limits)
        self.models = frozenset({MODEL})
        self.interactive = 0
        self.running: dict[int, asyncio.Event] = {}  # by index; set to let it answer
        self.most_running = 0
        self.started = asyncio.Condition()
        self.script: Callable[[Claim], Answered] = lambda claim: answered()
        self.held = False
        self.closed: list[str] = []
        self.ended = asyncio.Event()

    @property
    def queue(self) -> SqliteQueue:
        queue = self.batches.queue
        assert isinstance(queue, SqliteQueue)
        return queue

    def dispatcher(self) -> Dispatcher:
        loop = asyncio.get_running_loop()

        def close_out(record: BatchRecord) -> None:
            self.closed.append(record.id)
            loop.call_soon_threadsafe(self.ended.set)

        return Dispatcher(
            self.batches,
            self.execute,
            close_out,
            models=lambda: self.models,
            in_progress=lambda: self.interactive + len(self.running),
        )

    async def execute(self, claim: Claim) -> Answered:
        gate = self.running[claim.index] = asyncio.Event()
        self.most_running = max(self.most_running, len(self.running))
        async with self.started:
            self.started.notify_all()
        try:
            await (gate.wait() if self.held else asyncio.sleep(0))
            return self.script(claim)
        finally:
            del self.running[claim.index]

    async def submit(self, count: int, id: str = "b") -> None:
        new = NewBatch(id=id, tenant="t", kind="k", model=MODEL, window_seconds=100.0)
        await self.batches.submit(new, [NewItem(str(i).encode()) for i in range(count)])

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self.started:
            await self.started.wait_for(condition)


@asynccontextmanager
async def dispatching(platform: Platform) -> AsyncGenerator[None]:
    dispatcher = platform.dispatcher()
    task = asyncio.create_task(dispatcher.run())
    try:
        yield
    finally:
        await dispatcher.stop(task)


def play(folder: Path, limits: BatchLimits, act: Callable[[Platform], Awaitable[None]]) -> None:
    async def main() -> None:
        platform = Platform(folder, limits)
        try:
            async with asyncio.timeout(30):
                await act(platform)
        finally:
            platform.batches.close()

    asyncio.run(main())
