"""How much of a prompt nodes hold, and which of them to fetch it from."""

from __future__ import annotations

from skerry_regions.routing.fast.arrays import (
    FLAGS,
    IS_REGION,
    IndexArrays,
    RankingScratch,
    Rows,
)
from skerry_regions.routing.fast.compiled import Int64s, UInt64s, compiled, wide
from skerry_regions.routing.fast.holders import holds, place_of
from skerry_regions.routing.fast.laws import BUSY_UNTIL
from skerry_regions.routing.fast.pending import expected_at


@compiled
def look_up(index: IndexArrays, names: UInt64s, values: Int64s) -> int:
    """Write down who holds each of a prompt's blocks, to the first that no node does; how many."""
    for n in range(min(names.shape[0], values.shape[0])):
        at = place_of(index.told, names[n])
        if at < 0:
            return n
        values[n] = index.told.values[at]
    return min(names.shape[0], values.shape[0])


@compiled
def leading_blocks(index: IndexArrays, values: Int64s, known: int, slot: int) -> int:
    """Return how many of a prompt's first blocks a slot holds.

    A chain is evicted from its end, so that its end may be bisected. Most slots hold all or none of
    it, which its last and its first block say.
    """
    if known == 0 or holds(index.told, values[known - 1], slot):
        return known
    if not holds(index.told, values[0], slot):
        return 0
    low, high = 1, known - 1
    while low < high:
        middle = (low + high) >> 1
        if holds(index.told, values[middle], slot):
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def reported_blocks(index: IndexArrays, names: UInt64s, blocks: int, slot: int) -> int:
    """Return how many of a prompt's first blocks a slot has in memory by its own word."""
    for n in range(blocks):
        if index.num_filed[slot] > 0:
            at = place_of(index.filed, names[n])
            if at >= 0 and holds(index.filed, wide(index.filed.values[at]), slot):
                return n
        if expected_at(index, names[n], slot) >= 0:
            return n
    return blocks


@compiled
def place_among(rows: Rows, slot: int, blocks: int, now: float, scratch: RankingScratch) -> int:
    """Return where a node with so many blocks belongs among the sources so far."""
    busy = max(rows.numbers[slot, BUSY_UNTIL], now)
    place = scratch.found[1]
    while place > 0:
        other = scratch.sources[place - 1]
        other_busy = max(rows.numbers[other, BUSY_UNTIL], now)
        deeper = scratch.source_blocks[place - 1] - blocks
        if deeper > 0 or (deeper == 0 and other_busy < busy):
            break
        if deeper == 0 and other_busy == busy and rows.hashes[other] < rows.hashes[slot]:
            break
        place -= 1
    return place


@compiled
def offer_source(
    rows: Rows,
    index: IndexArrays,
    names: UInt64s,
    known: int,
    slot: int,
    now: float,
    num_sources: int,
    scratch: RankingScratch,
) -> None:
    """Consider a node to fetch from: the longest prefix that it reported, and of these the
    idlest."""
    count = scratch.found[1]
    blocks = leading_blocks(index, scratch.values, known, slot)
    if blocks == 0 or num_sources == 0 or rows.marks[slot, FLAGS] & IS_REGION != 0:
        return
    if count == num_sources and blocks < scratch.source_blocks[count - 1]:
        return
    for j in range(count):
        if scratch.sources[j] == slot:
            return
    # Most nodes of many alike are not among the idlest: no look at each of their blocks.
    place = place_among(rows, slot, blocks, now, scratch)
    if place == num_sources:
        return
    if index.num_pending[slot] > 0 or index.num_filed[slot] > 0:
        reported = reported_blocks(index, names, blocks, slot)
        if reported == 0:
            return
        if reported < blocks:
            blocks = reported
            place = place_among(rows, slot, blocks, now, scratch)
    if place == num_sources:
        return
    for j in range(min(count, num_sources - 1), place, -1):
        scratch.sources[j] = scratch.sources[j - 1]
        scratch.source_blocks[j] = scratch.source_blocks[j - 1]
    scratch.sources[place] = slot
    scratch.source_blocks[place] = blocks
    scratch.found[1] = min(count + 1, num_sources)
