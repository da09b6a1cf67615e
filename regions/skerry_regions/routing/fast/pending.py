"""Blocks that nodes are only expected to hold, with the time at which no one expects them any more.

They stand in the index like others; here is noted of which (name, slot) it is so. A second table
with open addressing; `totals` are its entries ever used, and those that are live.
"""

from __future__ import annotations

import numpy as np

from skerry_regions.routing.fast.arrays import IndexArrays
from skerry_regions.routing.fast.compiled import Floats, UInt64s, compiled, mixed, wide
from skerry_regions.routing.fast.holders import (
    ADDED,
    EMPTY,
    FULL_ENTRIES,
    GONE,
    insert,
    is_holder,
    remove,
)

FULL_PENDING, FULL_FILED = -5, -10  # of the file tier's table: `FULL_FILED` beyond its own numbers


@compiled
def key_of(name: np.uint64, slot: int) -> np.uint64:
    """Return the key of an expectation: never that of no entry.

    Names that differ in their last three bits alone are neighbours here, as they are in the index:
    those of a simulated prompt (`twin.workload.names_of`). A digest's last bits are as good as any.
    """
    last = np.uint64(7)
    key = mixed((name >> np.uint64(3)) ^ (np.uint64(slot) * np.uint64(0x9E3779B97F4A7C15)))
    return max((key & ~last) | (name & last), np.uint64(2))


@compiled
def expected_at(index: IndexArrays, name: np.uint64, slot: int) -> int:
    """Return where an expectation is, or -1."""
    if index.num_pending[slot] == 0:
        return -1
    key, mask = key_of(name, slot), index.pending.shape[0] - 1
    at = wide(key & np.uint64(mask))
    while True:
        found = index.pending[at]
        if found == key:
            return at
        if found == EMPTY:
            return -1
        at = (at + 1) & mask


@compiled
def drop(index: IndexArrays, at: int, slot: int) -> None:
    """Forget an expectation by its place."""
    index.pending[at] = GONE
    index.totals[1] -= 1
    index.num_pending[slot] -= 1


@compiled
def expect(
    index: IndexArrays, names: UInt64s, begin: int, slot: int, expiry: float, sparse: int
) -> int:
    """Expect blocks on a slot, those from `begin` on; where it stopped, and what was full, if so.

    Returns the number of names when all are taken in, else `-(position · 16 + what is full)`.
    """
    for x in range(begin, names.shape[0]):
        name = names[x]
        if 10 * index.totals[0] >= 7 * index.pending.shape[0]:
            return -(x * 16 - FULL_PENDING)
        outcome = insert(index.told, name, slot, sparse)
        if outcome < 0:
            return -(x * 16 - outcome)
        if outcome != ADDED:
            at = expected_at(index, name, slot)
            if at >= 0:
                index.expiries[at] = max(index.expiries[at], expiry)
            continue
        key, mask = key_of(name, slot), index.pending.shape[0] - 1
        at = wide(key & np.uint64(mask))
        while index.pending[at] > GONE:
            at = (at + 1) & mask
        if index.pending[at] == EMPTY:
            index.totals[0] += 1
        index.pending[at] = key
        index.expiries[at] = expiry
        index.totals[1] += 1
        index.num_pending[slot] += 1
    return names.shape[0]


@compiled
def expire(index: IndexArrays, names: UInt64s, slot: int, now: float) -> None:
    """Forget those of these blocks that are still only expected, if their time is over."""
    if index.num_pending[slot] == 0:
        return
    for x in range(names.shape[0]):
        at = expected_at(index, names[x], slot)
        if at >= 0 and index.expiries[at] <= now:
            drop(index, at, slot)
            remove(index.told, names[x], slot)


@compiled
def tell(
    index: IndexArrays, names: UInt64s, begin: int, slot: int, in_file: bool, sparse: int
) -> int:
    """Take in that a slot holds blocks; returns as `expect`."""
    for x in range(begin, names.shape[0]):
        name = names[x]
        outcome = insert(index.told, name, slot, sparse)
        if outcome < 0:
            return -(x * 16 - outcome)
        if outcome == ADDED:
            index.stored[slot] += 1
        else:
            at = expected_at(index, name, slot)
            if at >= 0:
                drop(index, at, slot)
                index.stored[slot] += 1
        if in_file:
            outcome = insert(index.filed, name, slot, sparse)
            if outcome < 0:
                return -(x * 16 - FULL_FILED - outcome)
            index.num_filed[slot] += outcome
        elif index.num_filed[slot] > 0 and remove(index.filed, name, slot):
            index.num_filed[slot] -= 1
    return names.shape[0]


@compiled
def forget(index: IndexArrays, names: UInt64s, slot: int) -> None:
    """Take in that a slot no longer holds blocks."""
    for x in range(names.shape[0]):
        name = names[x]
        if not remove(index.told, name, slot):
            continue
        at = expected_at(index, name, slot)
        if at >= 0:
            drop(index, at, slot)
        else:
            index.stored[slot] -= 1
        if index.num_filed[slot] > 0 and remove(index.filed, name, slot):
            index.num_filed[slot] -= 1


@compiled
def is_told(index: IndexArrays, name: np.uint64, slot: int) -> bool:
    """Return whether a slot has said itself that it holds a block."""
    if not is_holder(index.told, name, slot):
        return False
    return expected_at(index, name, slot) < 0


@compiled
def move_pending(index: IndexArrays, keys: UInt64s, expiries: Floats) -> None:
    """Fill empty arrays with what is expected, without what was dropped."""
    mask = keys.shape[0] - 1
    for i in range(index.pending.shape[0]):
        key = index.pending[i]
        if key > GONE:
            at = wide(key & np.uint64(mask))
            while keys[at] != EMPTY:
                at = (at + 1) & mask
            keys[at] = key
            expiries[at] = index.expiries[i]
    index.totals[0] = index.totals[1]


assert FULL_ENTRIES > FULL_PENDING > FULL_FILED
