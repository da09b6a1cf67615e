"""Which nodes may take a request, and of a prefix's holders the cheapest without a look at each."""

from __future__ import annotations

import numpy as np

from skerry_regions.routing.fast.arrays import (
    CLOSED,
    FLAGS,
    LIVE,
    NOBODY,
    REGION,
    RESIDENCY,
    Ask,
    RankingScratch,
    Rows,
    Weights,
)
from skerry_regions.routing.fast.compiled import Int64s, compiled, draw, wide
from skerry_regions.routing.fast.holders import Holders, holds
from skerry_regions.routing.fast.laws import BUSY_UNTIL, attended_pairs, likely_price

LATER = 1e9  # seconds: behind all that may take a request
MAX_SAMPLED = 64  # holders that are looked at beside the idlest nodes, where many hold a block


@compiled
def number_of(bit: np.uint64) -> int:
    """Return which bit is set, of exactly one: the ones below it, counted in parallel."""
    x = bit - np.uint64(1)
    x -= (x >> np.uint64(1)) & np.uint64(0x5555555555555555)
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return wide((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled
def is_among(slots: Int64s, slot: int) -> bool:
    """Return whether a slot is among a few."""
    found = False
    for j in range(slots.shape[0]):
        found |= slots[j] == slot
    return found


@compiled
def is_feasible(rows: Rows, ask: Ask, excluded: Int64s, slot: int) -> bool:
    """See `exhaustive.is_feasible`."""
    marks = rows.marks[slot]
    if marks[LIVE] == 0 or marks[FLAGS] & CLOSED != 0:
        return False
    if ask.residency != NOBODY and ask.residency != marks[RESIDENCY]:
        return False
    if ask.only_region != NOBODY and ask.only_region != marks[REGION]:
        return False
    return not is_among(excluded, slot)


@compiled
def keep_cheapest(
    rows: Rows,
    ask: Ask,
    weights: Weights,
    excluded: Int64s,
    new: float,
    slot: int,
    count: int,
    scratch: RankingScratch,
) -> int:
    """Keep a slot among the cheapest so far, in order; return how many there are then.

    `new` tokens are left to compute there. A slot is thought of once: where it holds most. Nodes
    that drain or are out of reach come last: they may be fetched from.
    """
    if scratch.stamps[slot] >= scratch.epoch[0]:
        return count
    scratch.stamps[slot] = scratch.epoch[0]
    hold, keys = scratch.hold, scratch.hold_keys
    room, row = min(weights.num_holders, hold.shape[0]), rows.numbers[slot]
    pairs = attended_pairs(new, ask.prompt_tokens - new)
    key = max(row[BUSY_UNTIL], ask.now)
    key += likely_price(row, new, pairs, ask.output_tokens, weights.decode)
    if not is_feasible(rows, ask, excluded, slot):
        if rows.marks[slot, FLAGS] & CLOSED == 0:
            return count
        key += LATER
    if count == room and key >= keys[count - 1]:
        return count
    count = min(count + 1, room)
    place = count - 1
    while place > 0 and keys[place - 1] > key:
        hold[place], keys[place] = hold[place - 1], keys[place - 1]
        place -= 1
    hold[place], keys[place] = slot, key
    return count


@compiled
def keep_holders(
    rows: Rows,
    told: Holders,
    ask: Ask,
    weights: Weights,
    excluded: Int64s,
    new: float,
    value: int,
    idle: int,
    count: int,
    scratch: RankingScratch,
) -> int:
    """Keep a block's holders if they are among the cheapest so far; return how many there are then.

    Where many hold it, these are the ones among the idlest nodes, of which `idle` are written down,
    and unless a quarter of those hold it, some that follow one another from a random place on.
    """
    number = (-2 - value) >> 1
    if value >= 0:
        return keep_cheapest(rows, ask, weights, excluded, new, value, count, scratch)
    if not (-2 - value) & 1:
        begin = told.starts[number]
        for j in range(begin, begin + told.counts[number]):
            count = keep_cheapest(
                rows, ask, weights, excluded, new, wide(told.pool[j]), count, scratch
            )
        return count
    seen = 0
    for j in range(idle):
        if holds(told, value, scratch.least[j]):
            count = keep_cheapest(
                rows, ask, weights, excluded, new, scratch.least[j], count, scratch
            )
            seen += 1
    if 4 * seen >= idle:
        return count
    words, seen = (rows.counts[0] + 63) >> 6, 0
    word = draw(scratch.random, words)
    for _ in range(words):
        bits = told.maps[number, word]
        while bits != np.uint64(0) and seen < MAX_SAMPLED:
            low = bits & (~bits + np.uint64(1))
            bits ^= low
            seen += 1
            slot = 64 * word + number_of(low)
            count = keep_cheapest(rows, ask, weights, excluded, new, slot, count, scratch)
        if seen == MAX_SAMPLED:
            break
        word = word + 1 if word + 1 < words else 0
    return count
