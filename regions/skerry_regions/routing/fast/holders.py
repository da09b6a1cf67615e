"""Block names and the slots that hold them, in few bytes: a hash table with open addressing.

A name is 64 bits of a block's digest: two blocks of one name cost time, never correctness. Its
value is the one slot that holds it, a list of slots, or a bitmap once that is smaller:

    value >= 0         that slot
    value = -2 - 2·i   list i: `counts[i]` slots from `starts[i]` in `pool`; room for 4 << class
    value = -3 - 2·i   bitmap i: a row of `maps`

Functions that add return a negative number when an array is full; whoever called makes it larger
and goes on from there (`index`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skerry_regions.routing.fast.compiled import (
    Bytes,
    Int32s,
    Int64s,
    UInt16s,
    UInt64s,
    compiled,
    wide,
)

EMPTY, GONE = np.uint64(0), np.uint64(1)  # keys of entries that never were, and that were removed
ADDED, HELD = 1, 0
FULL_ENTRIES, FULL_LISTS, FULL_POOL, FULL_MAPS = -1, -2, -3, -4
# Places in `heads`.
USED, LIVE, POOL_END, NUM_LISTS, NUM_MAPS, FREE_MAP, FREE_LISTS = range(7)
LIST_CLASSES = 14  # of room for 4 to 32,768 slots


class Holders(NamedTuple):
    """The arrays of one table."""

    keys: UInt64s  # a power of two of them
    values: Int32s
    pool: UInt16s  # slots of all lists
    starts: Int32s
    counts: Int32s  # of a list that is free: the next free one of its class
    classes: Bytes
    maps: UInt64s  # [maps, words]
    bits: Int32s  # set in each map; of a free one: the next free one
    heads: Int64s


@compiled
def place_of(holders: Holders, name: np.uint64) -> int:
    """Return where a name is, or -1."""
    mask = holders.keys.shape[0] - 1
    at = wide(name ^ (name >> np.uint64(29))) & mask
    while True:
        key = holders.keys[at]
        if key == name:
            return at
        if key == EMPTY:
            return -1
        at = (at + 1) & mask


@compiled
def holds(holders: Holders, value: int, slot: int) -> bool:
    """Return whether a slot is among those of a value."""
    if value >= 0:
        return value == slot
    number = (-2 - value) >> 1
    if (-2 - value) & 1:
        word = holders.maps[number, slot >> 6]
        return (word >> np.uint64(slot & 63)) & np.uint64(1) != np.uint64(0)
    begin = holders.starts[number]
    for j in range(begin, begin + holders.counts[number]):
        if holders.pool[j] == slot:
            return True
    return number < 0


@compiled
def num_holders(holders: Holders, value: int) -> int:
    """Return how many slots are among those of a value."""
    if value >= 0:
        return 1
    number = (-2 - value) >> 1
    return wide(holders.bits[number] if (-2 - value) & 1 else holders.counts[number])


@compiled
def is_holder(holders: Holders, name: np.uint64, slot: int) -> bool:
    """Return whether a slot holds the block of this name."""
    at = place_of(holders, name)
    return at >= 0 and holds(holders, wide(holders.values[at]), slot)


@compiled
def new_list(holders: Holders, size_class: int) -> int:
    """Return a list with room for `4 << size_class` slots, or what is full."""
    heads = holders.heads
    free = wide(heads[FREE_LISTS + size_class])
    if free:
        heads[FREE_LISTS + size_class] = holders.counts[free - 1]
        holders.counts[free - 1] = 0
        return free - 1
    number, room = wide(heads[NUM_LISTS]), 4 << size_class
    if number >= holders.starts.shape[0]:
        return FULL_LISTS
    if heads[POOL_END] + room > holders.pool.shape[0]:
        return FULL_POOL
    holders.starts[number] = heads[POOL_END]
    holders.classes[number] = size_class
    holders.counts[number] = 0
    heads[POOL_END] += room
    heads[NUM_LISTS] += 1
    return number


@compiled
def free_list(holders: Holders, number: int) -> None:
    """Keep a list's room for another one of its size."""
    head = FREE_LISTS + wide(holders.classes[number])
    holders.counts[number] = holders.heads[head]
    holders.heads[head] = number + 1


@compiled
def new_map(holders: Holders) -> int:
    """Return an empty bitmap, or `FULL_MAPS`."""
    heads = holders.heads
    free = wide(heads[FREE_MAP])
    if free:
        heads[FREE_MAP] = holders.bits[free - 1]
        number = free - 1
    elif heads[NUM_MAPS] >= holders.maps.shape[0]:
        return FULL_MAPS
    else:
        number = wide(heads[NUM_MAPS])
        heads[NUM_MAPS] += 1
    for word in range(holders.maps.shape[1]):
        holders.maps[number, word] = np.uint64(0)
    holders.bits[number] = 0
    return number


@compiled
def set_bit(holders: Holders, number: int, slot: int) -> int:
    """Add a slot to a bitmap; return `ADDED` or `HELD`."""
    bit = np.uint64(1) << np.uint64(slot & 63)
    if holders.maps[number, slot >> 6] & bit != np.uint64(0):
        return HELD
    holders.maps[number, slot >> 6] |= bit
    holders.bits[number] += 1
    return ADDED


@compiled
def insert(holders: Holders, name: np.uint64, slot: int, sparse: int) -> int:
    """Note that a slot holds a name; return `ADDED`, `HELD` or what is full.

    A list of `sparse` slots becomes a bitmap.
    """
    keys, heads = holders.keys, holders.heads
    mask = keys.shape[0] - 1
    at, gap = wide(name ^ (name >> np.uint64(29))) & mask, -1
    while keys[at] != name and keys[at] != EMPTY:
        if keys[at] == GONE and gap < 0:
            gap = at
        at = (at + 1) & mask
    if keys[at] == EMPTY:
        if gap < 0:
            if 10 * heads[USED] >= 7 * keys.shape[0]:
                return FULL_ENTRIES
            heads[USED] += 1
            gap = at
        keys[gap] = name
        holders.values[gap] = slot
        heads[LIVE] += 1
        return ADDED
    value = wide(holders.values[at])
    if value >= 0:
        if value == slot:
            return HELD
        number = new_list(holders, 0)
        if number < 0:
            return number
        begin = holders.starts[number]
        holders.pool[begin] = value
        holders.pool[begin + 1] = slot
        holders.counts[number] = 2
        holders.values[at] = -2 - 2 * number
        return ADDED
    number = (-2 - value) >> 1
    if (-2 - value) & 1:
        return set_bit(holders, number, slot)
    if holds(holders, value, slot):
        return HELD
    begin, count = wide(holders.starts[number]), wide(holders.counts[number])
    if count >= sparse:
        bitmap = new_map(holders)
        if bitmap < 0:
            return bitmap
        for j in range(begin, begin + count):
            set_bit(holders, bitmap, wide(holders.pool[j]))
        set_bit(holders, bitmap, slot)
        free_list(holders, number)
        holders.values[at] = -3 - 2 * bitmap
        return ADDED
    if count == 4 << wide(holders.classes[number]):
        longer = new_list(holders, wide(holders.classes[number]) + 1)
        if longer < 0:
            return longer
        for j in range(count):
            holders.pool[holders.starts[longer] + j] = holders.pool[begin + j]
        free_list(holders, number)
        holders.values[at] = -2 - 2 * longer
        number, begin = longer, wide(holders.starts[longer])
    holders.pool[begin + count] = slot
    holders.counts[number] = count + 1
    return ADDED


@compiled
def remove_at(holders: Holders, at: int, slot: int) -> bool:
    """Note at a name's place that a slot no longer holds it; return whether it did."""
    value = wide(holders.values[at])
    if not holds(holders, value, slot):
        return False
    number, left = (-2 - value) >> 1, 0
    if value < 0 and (-2 - value) & 1:
        holders.maps[number, slot >> 6] &= ~(np.uint64(1) << np.uint64(slot & 63))
        holders.bits[number] -= 1
        left = wide(holders.bits[number])
        if not left:
            holders.bits[number] = holders.heads[FREE_MAP]
            holders.heads[FREE_MAP] = number + 1
    elif value < 0:
        begin, left = wide(holders.starts[number]), wide(holders.counts[number]) - 1
        for j in range(begin, begin + left):
            if holders.pool[j] == slot:
                holders.pool[j] = holders.pool[begin + left]
        holders.counts[number] = left
        if left == 1:
            holders.values[at] = holders.pool[begin]
            free_list(holders, number)
    if not left:
        holders.keys[at] = GONE
        holders.heads[LIVE] -= 1
    return True


@compiled
def remove(holders: Holders, name: np.uint64, slot: int) -> bool:
    """Note that a slot no longer holds a name; return whether it did."""
    at = place_of(holders, name)
    return at >= 0 and remove_at(holders, at, slot)


@compiled
def remove_all(holders: Holders, slot: int) -> None:
    """Note that a slot holds nothing: a walk over the whole table."""
    for at in range(holders.keys.shape[0]):
        if holders.keys[at] > GONE:
            remove_at(holders, at, slot)


@compiled
def move_entries(holders: Holders, keys: UInt64s, values: Int32s) -> None:
    """Fill empty arrays with the entries of a table, without those that were removed."""
    mask = keys.shape[0] - 1
    for i in range(holders.keys.shape[0]):
        name = holders.keys[i]
        if name > GONE:
            at = wide(name ^ (name >> np.uint64(29))) & mask
            while keys[at] != EMPTY:
                at = (at + 1) & mask
            keys[at] = name
            values[at] = holders.values[i]
    holders.heads[USED] = holders.heads[LIVE]
