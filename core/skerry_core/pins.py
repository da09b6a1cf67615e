"""Which cached blocks are pinned, by whom, and until when. Integers and a clock's readings only.

A tenant may pin its share of a pool. What it pins beyond makes its own oldest pins lapse: those of
the prompt that it pinned longest ago, from that prompt's end. All tenants together leave a part of
the pool unpinned; at that bound, too, only a tenant's own pins lapse for its new ones.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

Pin = tuple[float, bytes]
"""When it ends, and whose it is."""

PIN_SHARE = 0.25  # of a pool, by one tenant, unless the operator says otherwise
PINNABLE = 0.75  # of a pool, by all tenants, unless one may have more


@dataclass(frozen=True, slots=True)
class PinChange:
    """What pinning a prompt changed."""

    num_pinned: int  # of its leading blocks
    new: tuple[int, ...]  # places in the prompt of those that the tenant had not pinned before
    lapsed: tuple[int, ...]  # blocks of the tenant's older pins, whose time ended for these


class Pins:
    """Bounded book of pins. An owner is a tenant's cache key."""

    def __init__(self, num_blocks: int, share: float) -> None:
        """`share` (0 to 1) of the blocks may be pinned by one tenant."""
        self.blocks: dict[int, frozenset[bytes]] = {}  # by block: its owners
        self.next_end = math.inf  # nothing expires before
        self._most_of_one = int(num_blocks * share)
        self._most = max(int(num_blocks * PINNABLE), self._most_of_one)
        # Ends by block of each owner, the first to lapse first.
        self._of: dict[bytes, OrderedDict[int, float]] = {}
        self._ends: list[tuple[float, int, bytes]] = []  # a heap; entries may be outdated

    def add(self, blocks: Sequence[int], ends: Sequence[float], owner: bytes) -> PinChange:
        """Pin a prompt's blocks, each until its end, from the first on as far as the tenant may;
        pins that it has are prolonged."""
        own = self._of.setdefault(owner, OrderedDict())
        blocks = blocks[: self._most_of_one]
        for block in reversed(blocks):
            if block in own:
                own.move_to_end(block)
        new, lapsed, pinned, wanted = [], [], 0, set(blocks)
        for place, (block, end) in enumerate(zip(blocks, ends, strict=False)):
            if block not in own:
                while not self._has_room(own, block):
                    oldest = next(iter(own), None)
                    if oldest is None or oldest in wanted:
                        break
                    self._remove(oldest, owner)
                    lapsed.append(oldest)
                if not self._has_room(own, block):
                    break
                self.blocks[block] = self.blocks.get(block, frozenset()) | {owner}
                new.append(place)
            if own.get(block, -math.inf) < end:
                own[block] = end
                heapq.heappush(self._ends, (end, block, owner))
            pinned += 1
        for block in reversed(blocks[:pinned]):
            own.move_to_end(block)
        self._forget_if_done(owner)
        self._tidy()
        return PinChange(pinned, tuple(new), tuple(lapsed))

    def _has_room(self, own: OrderedDict[int, float], block: int) -> bool:
        in_all = len(self.blocks) < self._most or block in self.blocks
        return in_all and len(own) < self._most_of_one

    def remove(self, block: int) -> None:
        """Forget all pins of a block."""
        for owner in self.blocks[block]:
            self._remove(block, owner)
            self._forget_if_done(owner)

    def _remove(self, block: int, owner: bytes) -> None:
        del self._of[owner][block]
        if others := self.blocks[block] - {owner}:
            self.blocks[block] = others
        else:
            del self.blocks[block]

    def expire(self, now: float) -> list[int]:
        """Forget the pins whose time is over; return the blocks that nobody pins any more."""
        over = []
        while self._ends and self._ends[0][0] <= now:
            end, block, owner = heapq.heappop(self._ends)
            if self._end(block, owner) == end:
                self._remove(block, owner)
                self._forget_if_done(owner)
                if block not in self.blocks:
                    over.append(block)
        self.next_end = self._ends[0][0] if self._ends else math.inf
        return over

    def of(self, block: int) -> Pin:
        """Return the pin of a block that lasts longest."""
        return max((self._of[owner][block], owner) for owner in self.blocks[block])

    def _forget_if_done(self, owner: bytes) -> None:
        if not self._of[owner]:
            del self._of[owner]

    def _end(self, block: int, owner: bytes) -> float | None:
        own = self._of.get(owner)
        return None if own is None else own.get(block)

    def _tidy(self) -> None:
        """Drop outdated entries once they are most of the heap."""
        if len(self._ends) > 2 * self._most + 2 * len(self.blocks):
            self._ends = [
                (end, block, owner) for owner, own in self._of.items() for block, end in own.items()
            ]
            heapq.heapify(self._ends)
        self.next_end = self._ends[0][0] if self._ends else math.inf
