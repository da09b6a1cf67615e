"""Which cached blocks are pinned, by whom, and until when. Integers and a clock's readings only."""

from __future__ import annotations

import heapq
import math
from collections import Counter

MAX_SHARE = 4  # a quarter of the pool may be pinned …
MAX_OWNER_SHARE = 8  # … and an eighth by one tenant


class Pins:
    """Bounded book of pins. `owner` is a tenant's cache key."""

    def __init__(self, num_blocks: int) -> None:
        self.blocks: dict[int, tuple[float, bytes]] = {}  # by block: until, owner
        self.next_end = math.inf  # nothing expires before
        self._most = num_blocks // MAX_SHARE
        self._most_of_one = num_blocks // MAX_OWNER_SHARE
        self._num_of: Counter[bytes] = Counter()
        self._ends: list[tuple[float, int]] = []  # a heap; entries may be outdated

    def add(self, block: int, until: float, owner: bytes) -> bool:
        """Pin a block, or prolong its pin; False when there are too many."""
        pin = self.blocks.get(block)
        if pin is None:
            if len(self.blocks) >= self._most or self._num_of[owner] >= self._most_of_one:
                return False
            self._num_of[owner] += 1
        elif pin[0] >= until:
            return True
        else:
            owner = pin[1]
        self.blocks[block] = (until, owner)
        heapq.heappush(self._ends, (until, block))
        if len(self._ends) > 2 * self._most + 2 * len(self.blocks):
            self._ends = [(until, block) for block, (until, _) in self.blocks.items()]
            heapq.heapify(self._ends)
        self.next_end = self._ends[0][0]
        return True

    def remove(self, block: int) -> None:
        """Forget a block's pin."""
        _, owner = self.blocks.pop(block)
        self._num_of[owner] -= 1
        if not self._num_of[owner]:
            del self._num_of[owner]

    def expired(self, now: float) -> list[int]:
        """Forget the pins whose time is over; return their blocks."""
        over = []
        while self._ends and self._ends[0][0] <= now:
            until, block = heapq.heappop(self._ends)
            if block in self.blocks and self.blocks[block][0] == until:
                self.remove(block)
                over.append(block)
        self.next_end = self._ends[0][0] if self._ends else math.inf
        return over
