"""`BlockIndex` in arrays: 1 to 30 bytes for each (block, node), and 50 ns to take one in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from skerry_regions.prefix_news import Tier
from skerry_regions.routing.block_index import CachedPrefix, DirectoryLimits
from skerry_regions.routing.fast import pending
from skerry_regions.routing.fast.arrays import IndexArrays
from skerry_regions.routing.fast.compiled import UInt64s
from skerry_regions.routing.fast.holders import (
    FREE_LISTS,
    FULL_ENTRIES,
    FULL_LISTS,
    FULL_MAPS,
    FULL_POOL,
    LIST_CLASSES,
    LIVE,
    NUM_LISTS,
    NUM_MAPS,
    POOL_END,
    USED,
    Holders,
    holds,
    is_holder,
    move_entries,
    place_of,
    remove_all,
)

SMALL = 1 << 10  # first length of arrays
BITMAP_WORD = 64  # bits
MAX_SLOTS = 1 << 16
LONGEST_LIST = 8  # slots, at least; longer lists take long to search


def make_holders(slots: int) -> Holders:
    """Return an empty table for so many slots."""
    return Holders(
        keys=np.zeros(SMALL, np.uint64),
        values=np.zeros(SMALL, np.int32),
        pool=np.zeros(SMALL, np.uint16),
        starts=np.zeros(SMALL // 4, np.int32),
        counts=np.zeros(SMALL // 4, np.int32),
        classes=np.zeros(SMALL // 4, np.uint8),
        maps=np.zeros((16, slots // BITMAP_WORD), np.uint64),
        bits=np.zeros(16, np.int32),
        heads=np.zeros(FREE_LISTS + LIST_CLASSES, np.int64),
    )


def names_of(digests: Sequence[bytes]) -> UInt64s:
    """Return the first 64 bits of each digest; the two numbers that mean something else are 2."""
    if not digests:
        return np.zeros(0, np.uint64)
    size = len(digests[0])
    joined = b"".join(digests)
    if size not in (8, 16, 24, 32) or len(joined) != size * len(digests):
        joined, size = b"".join(digest[:8].ljust(8, b"\0") for digest in digests), 8
    every = np.frombuffer(joined, np.uint64)[:: size // 8]
    return np.maximum(every, np.uint64(2))


class CompiledIndex:
    """`BlockIndex` of compiled tables. Beyond limits, new blocks are left out."""

    def __init__(self, limits: DirectoryLimits) -> None:
        self._limits = limits
        if limits.max_nodes > MAX_SLOTS:
            raise ValueError(f"at most {MAX_SLOTS:,} nodes, not {limits.max_nodes:,}")
        self.num_slots = BITMAP_WORD
        self.arrays = IndexArrays(
            told=make_holders(self.num_slots),
            filed=make_holders(self.num_slots),
            pending=np.zeros(SMALL, np.uint64),
            expiries=np.zeros(SMALL),
            stored=np.zeros(self.num_slots, np.int64),
            num_filed=np.zeros(self.num_slots, np.int64),
            num_pending=np.zeros(self.num_slots, np.int64),
            totals=np.zeros(2, np.int64),
        )
        self._expectations: deque[tuple[float, int, UInt64s]] = deque()
        self._num_expected = 0
        self._num_digests = 0

    @property
    def _sparse(self) -> int:
        """Return from how many holders on a bitmap beats a list: 8 bytes a holder at most."""
        return max(LONGEST_LIST, self.num_slots // BITMAP_WORD)

    def reserve(self, slot: int) -> None:
        """Have room for a slot."""
        while slot >= self.num_slots:
            self.num_slots *= 2
            arrays = self.arrays
            self.arrays = arrays._replace(
                told=_wider(arrays.told),
                filed=_wider(arrays.filed),
                stored=np.concatenate([arrays.stored, np.zeros_like(arrays.stored)]),
                num_filed=np.concatenate([arrays.num_filed, np.zeros_like(arrays.num_filed)]),
                num_pending=np.concatenate([arrays.num_pending, np.zeros_like(arrays.num_pending)]),
            )

    def make_room(self, names: int) -> None:
        """Have room for so many more (name, slot), reported or expected, without growing
        meanwhile."""
        arrays = self.arrays
        if 10 * (int(arrays.told.heads[USED]) + names) >= 7 * len(arrays.told.keys):
            length = _length(len(arrays.told.keys), int(arrays.told.heads[LIVE]) + names)
            self.arrays = arrays = arrays._replace(told=_rehashed(arrays.told, length))
        if 10 * (int(arrays.totals[0]) + names) >= 7 * len(arrays.pending):
            self._move_pending(_length(len(arrays.pending), int(arrays.totals[1]) + names))
        pool = ("pool", POOL_END, FULL_POOL, 2 * LONGEST_LIST)
        lists, maps = ("starts", NUM_LISTS, FULL_LISTS, 1), ("maps", NUM_MAPS, FULL_MAPS, 1)
        for array, head, full, each in (pool, lists, maps):
            wanted = int(self.arrays.told.heads[head]) + each * names
            while wanted >= len(getattr(self.arrays.told, array)):
                self._make_room(-full)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all arrays that grow."""
        arrays = self.arrays
        tables = sum(array.nbytes for table in (arrays.told, arrays.filed) for array in table)
        return tables + arrays.pending.nbytes + arrays.expiries.nbytes

    def tell(self, slot: int, digests: Sequence[bytes], tier: Tier) -> None:
        """See `BlockIndex`."""
        self.reserve(slot)
        names, stored = names_of(digests), self.arrays.stored
        room = min(
            self._limits.max_node_digests - int(stored[slot]),
            self._limits.max_digests - self._num_digests,
        )
        kept, before = names[: max(room, 0)], int(stored[slot])
        sparse, in_file = self._sparse, tier == "file"
        self._add(len(kept), lambda at: pending.tell(self.arrays, kept, at, slot, in_file, sparse))
        self._num_digests += int(stored[slot]) - before

    def forget(self, slot: int, digests: Sequence[bytes]) -> None:
        """See `BlockIndex`."""
        if digests and slot < self.num_slots:
            before = int(self.arrays.stored[slot])
            pending.forget(self.arrays, names_of(digests), slot)
            self._num_digests += int(self.arrays.stored[slot]) - before

    def clear(self, slot: int) -> None:
        """See `BlockIndex`. Walks over the whole table: 5 ms for a million blocks."""
        if slot >= self.num_slots:
            return
        for of, _, names in self._split(slot):
            pending.expire(self.arrays, names, of, np.inf)
        self._num_digests -= int(self.arrays.stored[slot])
        if self.arrays.stored[slot]:
            remove_all(self.arrays.told, slot)
        if self.arrays.num_filed[slot]:
            remove_all(self.arrays.filed, slot)
        self.arrays.stored[slot] = self.arrays.num_filed[slot] = 0

    remove = clear

    def expect(self, slot: int, digests: Sequence[bytes], now: float) -> None:
        """See `BlockIndex`."""
        self.reserve(slot)
        names = names_of(digests[: self._limits.max_expected])
        while self._expectations and self._num_expected + len(names) > self._limits.max_expected:
            self._expire_oldest(np.inf)
        if not len(names):
            return
        expiry = now + self._limits.expect_seconds
        self._expectations.append((expiry, slot, names))
        self._num_expected += len(names)
        sparse, count = self._sparse, len(names)
        self._add(count, lambda at: pending.expect(self.arrays, names, at, slot, expiry, sparse))

    def expire(self, now: float) -> None:
        """See `BlockIndex`."""
        while self._expectations and self._expectations[0][0] <= now:
            self._expire_oldest(now)

    def match_all(self, digests: Sequence[bytes], *, expected: bool) -> dict[int, CachedPrefix]:
        """See `BlockIndex`. For tests and figures: a ranking matches its candidates only."""
        arrays, names = self.arrays, names_of(digests)
        found: dict[int, CachedPrefix] = {}
        if not len(names) or (at := place_of(arrays.told, names[0])) < 0:
            return found
        value = int(arrays.told.values[at])
        for slot in range(self.num_slots):
            if not holds(arrays.told, value, slot):
                continue
            held = [
                is_holder(arrays.told, name, slot)
                and (expected or pending.expected_at(arrays, name, slot) < 0)
                for name in names
            ]
            blocks = held.index(False) if False in held else len(held)
            filed = [is_holder(arrays.filed, name, slot) for name in names[:blocks]]
            resident = filed.index(True) if True in filed else blocks
            if blocks:
                found[slot] = CachedPrefix(blocks, sum(filed), resident)
        return found

    def knows(self, digest: bytes) -> bool:
        """See `BlockIndex`."""
        return place_of(self.arrays.told, names_of([digest])[0]) >= 0

    def count(self, slot: int) -> int:
        """See `BlockIndex`."""
        return int(self.arrays.stored[slot]) if slot < self.num_slots else 0

    def _split(self, slot: int) -> list[tuple[int, float, UInt64s]]:
        """Take what is expected of one slot out of the queue."""
        if not self.arrays.num_pending[slot]:
            return []
        own = [(of, expiry, names) for expiry, of, names in self._expectations if of == slot]
        self._expectations = deque(each for each in self._expectations if each[1] != slot)
        self._num_expected -= sum(len(names) for _, _, names in own)
        return own

    def _expire_oldest(self, now: float) -> None:
        _, slot, names = self._expectations.popleft()
        self._num_expected -= len(names)
        pending.expire(self.arrays, names, slot, now)

    def _add(self, count: int, add: Callable[[int], int]) -> None:
        """Call `add` from where it stopped until it took in all, with more room each time."""
        at = 0
        while at < count:
            result = add(at)
            if result >= 0:
                return
            at, full = divmod(-result, 16)
            self._make_room(full)

    def _make_room(self, full: int) -> None:
        arrays = self.arrays
        if full == -pending.FULL_PENDING:
            self._move_pending(_doubled(len(arrays.pending), int(arrays.totals[1])))
        elif full > -pending.FULL_FILED:
            self.arrays = arrays._replace(filed=_larger(arrays.filed, full + pending.FULL_FILED))
        else:
            self.arrays = arrays._replace(told=_larger(arrays.told, full))

    def _move_pending(self, length: int) -> None:
        keys, expiries = np.zeros(length, np.uint64), np.zeros(length)
        pending.move_pending(self.arrays, keys, expiries)
        self.arrays = self.arrays._replace(pending=keys, expiries=expiries)


def _larger(holders: Holders, full: int) -> Holders:
    """Return a table with more room of the kind that ran out."""
    if full == -FULL_ENTRIES:
        return _rehashed(holders, _doubled(len(holders.keys), int(holders.heads[LIVE])))
    if full == -FULL_LISTS:
        starts, counts, classes = (
            np.concatenate([array, np.zeros(max(len(array) // 2, 64), array.dtype)])
            for array in (holders.starts, holders.counts, holders.classes)
        )
        return holders._replace(starts=starts, counts=counts, classes=classes)
    if full == -FULL_POOL:
        more = np.zeros(max(len(holders.pool) // 2, 1 << 16), np.uint16)
        return holders._replace(pool=np.concatenate([holders.pool, more]))
    if full != -FULL_MAPS:
        raise ValueError(f"no part of an index is full by {full}")
    more_maps = np.zeros((max(len(holders.maps) // 2, 16), holders.maps.shape[1]), np.uint64)
    bits = np.concatenate([holders.bits, np.zeros(len(more_maps), np.int32)])
    return holders._replace(maps=np.concatenate([holders.maps, more_maps]), bits=bits)


def _wider(holders: Holders) -> Holders:
    """Return a table with bitmaps for twice as many slots."""
    return holders._replace(maps=np.hstack([holders.maps, np.zeros_like(holders.maps)]))


def _rehashed(holders: Holders, length: int) -> Holders:
    """Return a table with so many entries, without those that were removed."""
    moved = holders._replace(keys=np.zeros(length, np.uint64), values=np.zeros(length, np.int32))
    move_entries(holders, moved.keys, moved.values)
    return moved


def _doubled(length: int, live: int) -> int:
    """Return twice the length, unless most entries had been removed."""
    return length * (2 if 10 * live >= 4 * length else 1)


def _length(length: int, live: int) -> int:
    """Return a length, this one or longer, of which so many entries are less than 70 %."""
    while 10 * live >= 7 * length:
        length *= 2
    return length


assert all(a > b for a, b in pairwise((FULL_ENTRIES, FULL_LISTS, FULL_POOL, FULL_MAPS)))
