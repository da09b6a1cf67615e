"""The cheapest holders of a prefix, without a look at each where they are many."""

from __future__ import annotations

import numpy as np

from skerry_regions.routing.fast.arrays import Ask, RankingScratch, Rows, Weights
from skerry_regions.routing.fast.compiled import compiled, draw, wide
from skerry_regions.routing.fast.holders import Holders, holds
from skerry_regions.routing.fast.laws import BUSY_UNTIL, attended_pairs, likely_price

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
def keep_cheapest(
    rows: Rows,
    ask: Ask,
    weights: Weights,
    new: float,
    slot: int,
    count: int,
    scratch: RankingScratch,
) -> int:
    """Keep a slot among the cheapest so far, in order; return how many there are then.

    `new` tokens are left to compute there. A slot is thought of once: where it holds most.
    """
    if scratch.stamps[slot] >= scratch.epoch[0]:
        return count
    scratch.stamps[slot] = scratch.epoch[0]
    hold, keys = scratch.hold, scratch.hold_keys
    room, row = min(weights.num_holders, hold.shape[0]), rows.numbers[slot]
    pairs = attended_pairs(new, ask.prompt_tokens - new)
    key = max(row[BUSY_UNTIL], ask.now)
    key += likely_price(row, new, pairs, ask.output_tokens, weights.decode)
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
        return keep_cheapest(rows, ask, weights, new, value, count, scratch)
    if not (-2 - value) & 1:
        begin = told.starts[number]
        for j in range(begin, begin + told.counts[number]):
            count = keep_cheapest(rows, ask, weights, new, wide(told.pool[j]), count, scratch)
        return count
    seen = 0
    for j in range(idle):
        if holds(told, value, scratch.least[j]):
            count = keep_cheapest(rows, ask, weights, new, scratch.least[j], count, scratch)
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
            count = keep_cheapest(rows, ask, weights, new, slot, count, scratch)
        if seen == MAX_SAMPLED:
            break
        word = word + 1 if word + 1 < words else 0
    return count
