"""Which nodes are worth a price, with the blocks of the prompt that each holds.

The holders of its prefix that are cheapest by a rough price, the nodes with the least work, those
with the fastest steps, a sample, the session's home, and an edge of every other region; or, where
nodes are few, all.
"""

from __future__ import annotations

import numpy as np

from skerry_regions.routing.fast.arrays import (
    DECODE,
    LIVE,
    MAX_LEAST,
    NOBODY,
    REGION,
    ROLE,
    Ask,
    IndexArrays,
    RankingScratch,
    Rows,
    Weights,
)
from skerry_regions.routing.fast.compiled import (
    Floats,
    Int64s,
    UInt64s,
    compiled,
    draw,
    mixed,
    wide,
)
from skerry_regions.routing.fast.holders import holds, num_holders, place_of
from skerry_regions.routing.fast.levels import MAX_SAMPLED, is_feasible, keep_holders
from skerry_regions.routing.fast.sources import leading_blocks, look_up, offer_source
from skerry_regions.routing.fast.trees import next_least, push

MAX_EDGES = 128  # of other regions that are looked at: twice as many as there are regions
MAX_WALKED = 96  # nodes of the least keys that are looked at, feasible or not


@compiled
def home_of(rows: Rows, ask: Ask, excluded: Int64s) -> int:
    """See `sessions.home_of`; `NOBODY` when there is none."""
    if ask.affinity == np.uint64(0):
        return NOBODY
    best, rank, most = NOBODY, -1, np.uint64(0)
    for slot in range(rows.counts[0]):
        if not is_feasible(rows, ask, excluded, slot):
            continue
        is_here = rows.marks[slot, REGION] == ask.origin
        level = (2 if rows.marks[slot, ROLE] != DECODE else 1) if is_here else 0
        weight = mixed(ask.affinity ^ rows.hashes[slot])
        if level > rank or (level == rank and weight > most):
            best, rank, most = slot, level, weight
    return best


@compiled
def add(
    rows: Rows, index: IndexArrays, names: UInt64s, known: int, slot: int, scratch: RankingScratch
) -> None:
    """Make a slot a candidate, with its blocks."""
    number = scratch.found[0]
    blocks = leading_blocks(index, scratch.values, known, slot)
    resident, in_file = blocks, 0
    if index.num_filed[slot]:
        for n in range(blocks - 1, -1, -1):
            at = place_of(index.filed, names[n])
            if at >= 0 and holds(index.filed, wide(index.filed.values[at]), slot):
                resident, in_file = n, in_file + 1
    scratch.slots[number] = slot
    scratch.blocks[number] = blocks
    scratch.resident[number] = resident
    scratch.in_file[number] = in_file
    scratch.found[0] = number + 1


@compiled
def take(
    rows: Rows,
    index: IndexArrays,
    ask: Ask,
    names: UInt64s,
    excluded: Int64s,
    known: int,
    slot: int,
    scratch: RankingScratch,
) -> bool:
    """Make a slot a candidate, unless it is one or cannot be; whether it was new."""
    if scratch.stamps[slot] > scratch.epoch[0] or scratch.found[0] >= scratch.slots.shape[0]:
        return False
    if not is_feasible(rows, ask, excluded, slot):
        return False
    scratch.stamps[slot] = scratch.epoch[0] + 1
    add(rows, index, names, known, slot, scratch)
    return True


@compiled
def walk_least(
    rows: Rows, ask: Ask, excluded: Int64s, tree: Floats, count: int, scratch: RankingScratch
) -> int:
    """Write down the feasible nodes with the least keys; return how many there are."""
    taken, slot = 0, 0
    length = push(scratch.front_keys, scratch.front, 0, tree[1], 1)
    for _ in range(MAX_WALKED):
        slot, length = next_least(tree, scratch.front_keys, scratch.front, length)
        if slot < 0 or taken == count:
            break
        if is_feasible(rows, ask, excluded, slot):
            scratch.least[taken] = slot
            taken += 1
    return taken


@compiled
def take_least(
    rows: Rows,
    index: IndexArrays,
    ask: Ask,
    names: UInt64s,
    excluded: Int64s,
    known: int,
    tree: Floats,
    count: int,
    scratch: RankingScratch,
) -> None:
    """Make candidates of the feasible nodes with the least keys."""
    for j in range(walk_least(rows, ask, excluded, tree, count, scratch)):
        take(rows, index, ask, names, excluded, known, scratch.least[j], scratch)


@compiled
def take_regions(
    rows: Rows,
    index: IndexArrays,
    ask: Ask,
    names: UInt64s,
    excluded: Int64s,
    known: int,
    scratch: RankingScratch,
) -> None:
    """Make a candidate of one edge of each other region.

    A region's edges are alike: with all of a hundred there were no room for nodes.
    """
    count, seen = rows.counts[1], np.uint64(0)
    if count == 0:
        return
    begin = draw(scratch.random, count)
    for j in range(min(count, MAX_EDGES)):
        slot = wide(rows.regions[(begin + j) % count])
        bit = np.uint64(1) << np.uint64(rows.marks[slot, REGION])
        if seen & bit == np.uint64(0) and take(
            rows, index, ask, names, excluded, known, slot, scratch
        ):
            seen |= bit


@compiled
def take_holders(
    rows: Rows,
    index: IndexArrays,
    ask: Ask,
    weights: Weights,
    names: UInt64s,
    excluded: Int64s,
    known: int,
    idle: int,
    scratch: RankingScratch,
) -> None:
    """Make candidates of the holders that are cheapest for what is left to compute there.

    Whoever holds a block holds those before it: blocks with no other holders than the last one that
    was looked at are passed over, and of blocks with many those with hardly more. `idle` nodes are
    written down.
    """
    count = looked = 0
    for level in range(known, 0, -1):
        value = scratch.values[level - 1]
        size = num_holders(index.told, value)
        if size == looked or (size > MAX_SAMPLED and 4 * size <= 5 * looked):
            continue
        new = max(ask.prompt_tokens - level * weights.block_size, 1.0)
        count = keep_holders(
            rows, index.told, ask, weights, excluded, new, value, idle, count, scratch
        )
        for j in range(count if looked == 0 else 0):  # of the deepest, though they may be dear
            slot = scratch.hold[j]
            offer_source(rows, index, names, known, slot, ask.now, weights.num_sources, scratch)
        looked = size
    for j in range(count):
        slot = scratch.hold[j]
        offer_source(rows, index, names, known, slot, ask.now, weights.num_sources, scratch)
        take(rows, index, ask, names, excluded, known, slot, scratch)


@compiled
def gather(
    rows: Rows,
    index: IndexArrays,
    ask: Ask,
    weights: Weights,
    names: UInt64s,
    excluded: Int64s,
    told: Int64s,
    scratch: RankingScratch,
) -> None:
    """Fill the scratch with candidates and sources. `told`: (slot, blocks) of other regions."""
    scratch.epoch[0] += 2
    scratch.found[0] = scratch.found[1] = 0
    known = look_up(index, names, scratch.values)
    home = home_of(rows, ask, excluded)
    scratch.found[2] = home
    if not ask.indexed:
        for slot in range(rows.counts[0]):
            if rows.marks[slot, LIVE] != 0:
                offer_source(rows, index, names, known, slot, ask.now, weights.num_sources, scratch)
                take(rows, index, ask, names, excluded, known, slot, scratch)
    else:
        take_regions(rows, index, ask, names, excluded, known, scratch)
        count = min(weights.num_least, MAX_LEAST)
        idle = walk_least(rows, ask, excluded, rows.offering, count, scratch)
        take_holders(rows, index, ask, weights, names, excluded, known, idle, scratch)
        for j in range(idle):
            take(rows, index, ask, names, excluded, known, scratch.least[j], scratch)
        if home >= 0:
            take(rows, index, ask, names, excluded, known, home, scratch)
        for tree in (rows.withheld, rows.pace):
            take_least(rows, index, ask, names, excluded, known, tree, count, scratch)
        for _ in range(weights.num_random):
            slot = draw(scratch.random, rows.counts[0])
            take(rows, index, ask, names, excluded, known, slot, scratch)
        if not scratch.found[0]:  # all of those were ruled out
            for slot in range(rows.counts[0]):
                if scratch.found[0] < weights.num_least:
                    take(rows, index, ask, names, excluded, known, slot, scratch)
    for j in range(told.shape[0]):
        for number in range(scratch.found[0]):
            if scratch.slots[number] == told[j, 0] and told[j, 1] > scratch.blocks[number]:
                scratch.blocks[number] = scratch.resident[number] = told[j, 1]
                scratch.in_file[number] = 0
