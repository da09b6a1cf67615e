"""What regions send each other: how they do, and names of blocks."""

# pyright: reportArgumentType=false
# An item of a column is a number; NumPy's types cannot say so of a record array.

from __future__ import annotations

import numpy as np

from skerry_regions.routing.fast.arrays import CLOSED, FLAGS, LIVE, PREFILL, IndexArrays
from skerry_regions.routing.fast.compiled import called, compiled, wide
from skerry_regions.routing.fast.holders import holds, place_of
from skerry_regions.routing.fast.laws import (
    BUSY_UNTIL,
    CACHE,
    CONTEXT,
    FREE,
    GAP,
    KV_BYTES,
    NUM_COLUMNS,
    PER_PAIR,
    STREAMS,
)
from skerry_regions.routing.fast.pending import forget, tell
from skerry_regions.twin.kernel.known import SPARSE, put_report, refresh
from skerry_regions.twin.kernel.state import B_AT, World

SUMMARY_GAP = 0.03  # a summary does not say its nodes' (`NodeSpeed.gap_seconds`)


@compiled
def is_held(index: IndexArrays, name: np.uint64, first: int, last: int) -> bool:
    """Return whether a slot of a range holds a name."""
    told = index.told
    at = place_of(told, name)
    if at < 0:
        return False
    value = wide(told.values[at])
    if value >= 0:
        return first <= value < last
    found, number = False, (-2 - value) >> 1
    if (-2 - value) & 1:
        for s in range(first, last):
            found |= holds(told, value, s)
        return found
    begin = told.starts[number]
    for j in range(begin, begin + told.counts[number]):
        found |= first <= told.pool[j] < last
    return found


@called
def summarise(world: World, q: int, now: float) -> None:
    """Send others a region's summary: see `routing.summaries`. Its first edge makes it."""
    nodes, regions = world.nodes, world.regions
    e, s = regions.first_edge[q], world.settings.num_nodes + q
    refresh(world, e, now)
    rtt, count, best, least = regions.rtts[q, q], 0, -1, np.inf
    for v in range(regions.first_slot[q], regions.first_slot[q + 1]):
        marks = world.rows.marks[q, v]
        if marks[LIVE] == 0 or marks[FLAGS] & CLOSED != 0 or nodes.role[v] == PREFILL:
            continue
        queue = max(0.0, world.rows.numbers[e, v, BUSY_UNTIL] - (now + rtt / 2))
        if queue < least:
            best, least = v, queue
        place = count
        while place > 0 and world.clock.queues[place - 1] > queue:
            world.clock.queues[place] = world.clock.queues[place - 1]
            place -= 1
        world.clock.queues[place] = queue
        count += 1
    if best >= 0:
        for column in range(NUM_COLUMNS):
            nodes.believed[s, column] = nodes.believed[best, column]
        room = nodes.believed[best, CACHE] - world.index.stored[best] * world.weights.block_size
        nodes.believed[s, CACHE] = max(room, 0.0)
        nodes.believed[s, GAP], nodes.believed[s, KV_BYTES] = SUMMARY_GAP, 0.0
        nodes.believed[s, FREE] = np.inf
        residual = world.clock.queues[min(wide(0.1 * count), count - 1)]
        row = world.rows.numbers[e, best]
        put_report(
            nodes, s, now, 0.0, residual / max(row[PER_PAIR], 1e-15), row[STREAMS], row[CONTEXT],
            0.0,
        )  # fmt: skip
        size = nodes.bookings.shape[1]
        while nodes.booked[s, 0] < nodes.booked[s, 1]:
            if nodes.bookings[s, nodes.booked[s, 0] % size, B_AT] + 1.0 > now:
                break
            nodes.booked[s, 0] += 1
    first, last = regions.first_slot[q], regions.first_slot[q + 1]
    for n in range(regions.num_news[q]):
        name = regions.news[q, n : n + 1]
        if is_held(world.index, name[0], first, last):
            tell(world.index, name, 0, s, False, SPARSE)
        else:
            forget(world.index, name, s)
    regions.num_news[q] = 0
    world.index.stored[s] = 0  # what a region stores is no one node's
