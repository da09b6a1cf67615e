"""The cheapest placements among candidates: one call for each request."""

from __future__ import annotations

import numpy as np

from skerry_regions.routing.fast.arrays import (
    D_SECONDS,
    DECODE,
    HYBRID,
    NUM_CHOSEN,
    NUM_TERMS,
    P_SECONDS,
    PREFILL,
    REGION,
    ROLE,
    Ask,
    IndexArrays,
    RankingScratch,
    Rows,
    Weights,
)
from skerry_regions.routing.fast.candidates import gather
from skerry_regions.routing.fast.compiled import Int64s, UInt64s, compiled, draw, wide
from skerry_regions.routing.fast.price import (
    between,
    leaves_build,
    may_copy,
    price_decode,
    price_prefill,
    write_down,
)

TIES = 1 << 30
NOTHING = (0.0, 0.0, 0.0, 0.0)


@compiled
def place_for(scratch: RankingScratch, kept: int, leaves: float, seconds: float, tie: float) -> int:
    """Return where among the best a price belongs; their capacity when nowhere."""
    keys, place = scratch.keys, kept
    while place > 0:
        key = keys[place - 1]
        if (key[0], key[1], key[2]) <= (leaves, seconds, tie):
            break
        place -= 1
    return place


@compiled
def offer(
    prefill: int,
    decode: int,
    apart: tuple[float, float, float, float],
    leaves: float,
    kept: int,
    scratch: RankingScratch,
) -> int:
    """Keep a pair if it is among the best; return how many are kept."""
    sides, keys = scratch.sides, scratch.keys
    handover, lag, stall, evict = apart
    seconds = (
        sides[prefill, P_SECONDS] + sides[decode, D_SECONDS] + (handover + lag + stall + evict)
    )
    tie = draw(scratch.random, TIES) / TIES
    place = place_for(scratch, kept, leaves, seconds, tie)
    if place == keys.shape[0]:
        return kept
    kept = min(kept + 1, keys.shape[0])
    for j in range(kept - 1, place, -1):
        for column in range(3):
            keys[j, column] = keys[j - 1, column]
        for column in range(NUM_CHOSEN):
            scratch.chosen[j, column] = scratch.chosen[j - 1, column]
        for column in range(NUM_TERMS):
            scratch.terms[j, column] = scratch.terms[j - 1, column]
    keys[place, 0], keys[place, 1], keys[place, 2] = leaves, seconds, tie
    write_down(prefill, decode, apart, place, scratch)
    return kept


@compiled
def sort_in(numbers: Int64s, count: int, number: int, scratch: RankingScratch, column: int) -> None:
    """Insert a candidate into a list that is sorted by a column of its sides."""
    seconds = scratch.sides[number, column]
    place = count
    while place > 0 and scratch.sides[numbers[place - 1], column] > seconds:
        numbers[place] = numbers[place - 1]
        place -= 1
    numbers[place] = number


@compiled
def best_pairs(
    rows: Rows,
    index: IndexArrays,
    ask: Ask,
    weights: Weights,
    excluded: Int64s,
    scratch: RankingScratch,
) -> int:
    """Price all candidates and keep the cheapest pairs; return how many. See `exhaustive`."""
    offering = decoding = kept = 0
    regions_from = regions_to = np.uint64(0)
    for number in range(scratch.found[0]):
        slot = scratch.slots[number]
        role, region = rows.marks[slot, ROLE], np.uint64(rows.marks[slot, REGION])
        price_prefill(rows, index, ask, weights, excluded, number, scratch)
        if role != DECODE:
            sort_in(scratch.prefills, offering, number, scratch, P_SECONDS)
            offering += 1
            regions_from |= np.uint64(1) << region
        if role != PREFILL or ask.any_role:
            price_decode(rows, ask, weights, number, scratch)
            sort_in(scratch.decodes, decoding, number, scratch, D_SECONDS)
            decoding += 1
            regions_to |= np.uint64(1) << region
            leaves = leaves_build(rows, ask, slot, slot)
            kept = offer(number, number, NOTHING, leaves, kept, scratch)
    apart = np.inf  # no hand-over between two of these nodes takes less
    for i in range(min(rows.rtts.shape[0], 64)):
        for j in range(min(rows.rtts.shape[0], 64)):
            bits = (regions_from >> np.uint64(i)) & (regions_to >> np.uint64(j)) & np.uint64(1)
            if bits != np.uint64(0):
                apart = min(apart, rows.rtts[i, j] / 2)
    worst = scratch.keys.shape[0] - 1
    for a in range(decoding):
        decode = scratch.decodes[a]
        for b in range(offering):
            prefill = scratch.prefills[b]
            least = scratch.sides[prefill, P_SECONDS] + scratch.sides[decode, D_SECONDS] + apart
            if kept > worst and (0.0, least) > (scratch.keys[worst, 0], scratch.keys[worst, 1]):
                break
            source, target = wide(scratch.slots[prefill]), wide(scratch.slots[decode])
            if source == target or not may_copy(rows, ask, excluded, source, target, False):
                continue
            leaves = leaves_build(rows, ask, source, target)
            terms = between(rows, index, ask, weights, prefill, decode, scratch)
            kept = offer(prefill, decode, terms, leaves, kept, scratch)
    return kept


@compiled
def rank(
    rows: Rows,
    index: IndexArrays,
    ask: Ask,
    weights: Weights,
    names: UInt64s,
    excluded: Int64s,
    told: Int64s,
    scratch: RankingScratch,
) -> int:
    """Write the cheapest placements, best first, into the scratch; return how many."""
    gather(rows, index, ask, weights, names, excluded, told, scratch)
    return best_pairs(rows, index, ask, weights, excluded, scratch)


assert HYBRID not in (PREFILL, DECODE)
