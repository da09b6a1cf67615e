"""Cached blocks that others request: copied out beside steps, a few at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skerry_core.blocks import BlockPool, Digest
from skerry_core.device_pages import DevicePages
from skerry_core.kv.canonical import export_blocks
from skerry_core.request import KVBlock
from skerry_core.runner import ModelRunner

BLOCKS_PER_STEP = 8  # copied beside a step; one that is not under way yet waits that long

TakeBlocks = Callable[[tuple[KVBlock, ...], bool], None]
"""Gets copies in the order requested, and whether they are the last. On the engine's thread; it
should do no more than hand over to another."""


@dataclass(slots=True, eq=False)
class _Export:
    digests: Sequence[Digest]
    blocks: list[int]  # pinned; as many as were found
    take: TakeBlocks
    pages: DevicePages | None
    num_copied: int = 0


class Exports:
    """Of one engine, on its thread."""

    def __init__(self, runner: ModelRunner, pool: BlockPool) -> None:
        self._runner = runner
        self._pool = pool
        self.open: deque[_Export] = deque()  # what is left to copy, the oldest first

    def add(
        self, digests: Sequence[Digest], take: TakeBlocks, pages: DevicePages | None = None
    ) -> None:
        """Copy these blocks, up to the first that is not cached; into free pages, where some are
        given."""
        self.open.append(_Export(digests, self._pool.acquire(digests), take, pages))

    def remove(self, take: TakeBlocks) -> None:
        """Give up what was requested with this `take`, which gets nothing more. Unknown, or ended:
        ignored."""
        for export in [each for each in self.open if each.take == take]:
            self.open.remove(export)
            self._pool.release(export.blocks)

    def advance(self) -> None:
        """Copy some blocks of the oldest; there must be one."""
        export = self.open[0]
        start = export.num_copied
        export.num_copied = min(start + BLOCKS_PER_STEP, len(export.blocks))
        part = slice(start, export.num_copied)
        blocks, names = export.blocks[part], export.digests[part]
        copies = tuple(export_blocks(self._runner, blocks, names, export.pages))
        is_last = export.num_copied == len(export.blocks)
        if is_last:
            self._end_oldest()
        export.take(copies, is_last)

    def clear(self) -> None:
        """Give all up; what was requested ends without its last blocks."""
        while self.open:
            export = self.open[0]
            self._end_oldest()
            export.take((), True)

    def _end_oldest(self) -> None:
        self._pool.release(self.open.popleft().blocks)
