"""Which blocks of KV a simulated node holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from skerry_regions.prefix_news import PrefixPublisher


class BlockCache:
    """LRU of block digests; tells a publisher what comes and goes."""

    def __init__(self, capacity: int, publisher: PrefixPublisher) -> None:
        self.capacity = capacity
        self._blocks: OrderedDict[bytes, None] = OrderedDict()
        self._publisher = publisher

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, blocks: Sequence[bytes]) -> int:
        """Leading blocks held; they become the most recent, the first of them last."""
        count = 0
        for digest in blocks:
            if digest not in self._blocks:
                break
            count += 1
        for digest in reversed(blocks[:count]):
            self._blocks.move_to_end(digest)
        return count

    def insert(self, blocks: Sequence[bytes]) -> None:
        """Hold these, the first most recent, so that a chain is evicted from its end."""
        new = [digest for digest in blocks if digest not in self._blocks]
        for digest in reversed(blocks):
            self._blocks[digest] = None
            self._blocks.move_to_end(digest)
        evicted = []
        while len(self._blocks) > self.capacity:
            evicted.append(self._blocks.popitem(last=False)[0])
        self._publisher.sealed(new)
        self._publisher.evicted(evicted)
