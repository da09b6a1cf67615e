"""The price of a placement, compiled: what `costs.Costs` says, term by term and bit by bit."""

from __future__ import annotations

import math

import numpy as np

from skerry_regions.routing.fast.arrays import (
    BUILD,
    CACHED,
    D_CACHED,
    D_DECODE,
    D_NETWORK,
    D_SECONDS,
    D_STALL,
    D_STEP_WAIT,
    DECODE,
    DECODE_SLOT,
    FIRST,
    FLAGS,
    FORMAT,
    LAST,
    NOBODY,
    P_AFFINITY,
    P_BEHIND,
    P_CACHED,
    P_COMPUTE,
    P_EVICT,
    P_FETCH,
    P_FIRST,
    P_LAST,
    P_NETWORK,
    P_QUEUE,
    P_SECONDS,
    P_SOURCE,
    P_STALL,
    PREFILL_SLOT,
    REGION,
    RESIDENCY,
    ROLE,
    SOURCE,
    TAKES_KV,
    Ask,
    IndexArrays,
    RankingScratch,
    Rows,
    Weights,
)
from skerry_regions.routing.fast.compiled import Floats, Int64s, compiled, wide
from skerry_regions.routing.fast.laws import (
    BUSY_UNTIL,
    CACHE,
    CHUNK,
    CONTEXT,
    FILE_BANDWIDTH,
    FREE,
    KV_BYTES,
    LAG,
    PER_PAIR,
    PER_TOKEN,
    STREAMS,
    attended_pairs,
    running_step,
    step_seconds,
    work_seconds,
)
from skerry_regions.routing.fast.levels import is_among


@compiled
def usable(ask: Ask, weights: Weights, blocks: float) -> float:
    """See `Costs._usable`."""
    return min(blocks * weights.block_size, ask.prompt_tokens - 1)


@compiled
def evicted(row: Floats, stored: int, new_tokens: float, ask: Ask, weights: Weights) -> float:
    """See `Costs._evicted`."""
    if row[CACHE] == np.inf:
        return 0.0
    room = max(row[CACHE] - stored * weights.block_size, 0.0)
    displaced = max(new_tokens - room, 0.0)
    return weights.evict * (displaced * row[PER_TOKEN] * ask.reuse)


@compiled
def may_copy(
    rows: Rows, ask: Ask, excluded: Int64s, source: int, target: int, same_build: bool
) -> bool:
    """See `costs.may_copy`; `same_build`: whatever the request allows."""
    given, taking = rows.marks[source], rows.marks[target]
    if taking[FLAGS] & TAKES_KV == 0:
        return False
    if ask.residency != NOBODY and ask.residency != given[RESIDENCY]:
        return False
    if is_among(excluded, source):
        return False
    alike = given[BUILD] == taking[BUILD] and given[FORMAT] == taking[FORMAT]
    return alike or (ask.mixed_builds and not same_build)


@compiled
def prefill_after(
    row: Floats,
    side: Floats,
    ask: Ask,
    weights: Weights,
    blocks: float,
    transfer: float,
    source: int,
    first: int,
    last: int,
) -> None:
    """Write a way to prefill into a side, if it is the cheapest so far. See `_prefill_after`."""
    cached = usable(ask, weights, blocks)
    new = ask.prompt_tokens - cached
    pairs = attended_pairs(new, cached)
    compute = work_seconds(row, new, pairs, row[STREAMS], row[CONTEXT])
    harm = row[PER_TOKEN] * new + row[PER_PAIR] * pairs
    queue = side[P_QUEUE]
    mean = row[PER_TOKEN] * ask.mean_speed
    share = 1.0 / mean if mean > 0.0 else 1.0
    followers = ask.arrivals * share * (queue + compute)
    fetching = max(0.0, transfer - queue)
    stall = weights.decode * row[STREAMS] * harm
    behind = weights.behind * followers * compute
    wait = side[P_NETWORK] + queue + fetching + compute
    seconds = wait + stall + behind + side[P_EVICT] + side[P_AFFINITY]
    if seconds >= side[P_SECONDS]:
        return
    side[P_SECONDS], side[P_FETCH], side[P_COMPUTE] = seconds, fetching, compute
    side[P_STALL], side[P_BEHIND], side[P_CACHED] = stall, behind, cached
    side[P_SOURCE], side[P_FIRST], side[P_LAST] = source, first, last


@compiled
def price_prefill(
    rows: Rows,
    index: IndexArrays,
    ask: Ask,
    weights: Weights,
    excluded: Int64s,
    number: int,
    scratch: RankingScratch,
) -> None:
    """Fill a candidate's prefill side: the cheapest way to prefill there. See `Costs.prefill`."""
    slot, side = scratch.slots[number], scratch.sides[number]
    row, region = rows.numbers[slot], rows.marks[slot, REGION]
    resident, in_file = scratch.resident[number], scratch.in_file[number]
    rtt = rows.rtts[ask.origin, region]
    home = scratch.found[2]
    new = ask.prompt_tokens - usable(ask, weights, resident)
    side[P_SECONDS] = np.inf
    side[P_NETWORK] = rtt / 2
    side[P_QUEUE] = max(0.0, row[BUSY_UNTIL] - (ask.now + rtt / 2))
    side[P_EVICT] = evicted(row, wide(index.stored[slot]), new, ask, weights)
    is_home = home < 0 or home == slot
    side[P_AFFINITY] = 0.0 if is_home else weights.affinity_seconds
    prefill_after(row, side, ask, weights, resident, 0.0, NOBODY, 0, 0)
    block_bytes = row[KV_BYTES] * weights.block_size
    if in_file > 0 and row[FILE_BANDWIDTH] > 0.0:
        seconds = in_file * block_bytes / row[FILE_BANDWIDTH]
        blocks = scratch.blocks[number]
        prefill_after(row, side, ask, weights, blocks, seconds, slot, resident, blocks)
    for j in range(scratch.found[1]):
        peer, held = scratch.sources[j], scratch.source_blocks[j]
        if held <= resident or not may_copy(rows, ask, excluded, peer, slot, True):
            continue
        source_region = rows.marks[peer, REGION]
        transfer = (
            rows.rtts[source_region, region]
            + (held - resident) * block_bytes / rows.bandwidths[source_region, region]
        )
        seconds = running_step(rows.numbers[peer]) / 2 + transfer
        prefill_after(row, side, ask, weights, held, seconds, peer, resident, held)


@compiled
def price_decode(
    rows: Rows, ask: Ask, weights: Weights, number: int, scratch: RankingScratch
) -> None:
    """Fill a candidate's decode side. See `Costs.decode`."""
    slot, side = scratch.slots[number], scratch.sides[number]
    row = rows.numbers[slot]
    context = row[CONTEXT] + ask.prompt_tokens + ask.output_tokens / 2
    pace = step_seconds(row, row[STREAMS] + 1, context)
    before = step_seconds(row, row[STREAMS], row[CONTEXT]) if row[STREAMS] > 0.0 else 0.0
    stall = row[STREAMS] * ask.output_tokens * (pace - before)
    if row[FREE] != np.inf:
        preempted = math.floor(max(0.0, ask.prompt_tokens + ask.output_tokens - row[FREE]))
        stall += work_seconds(row, preempted, attended_pairs(preempted, 0.0), 0.0, 0.0)
    network = rows.rtts[ask.origin, rows.marks[slot, REGION]] / 2
    stall *= weights.decode
    decode = weights.decode * ask.output_tokens * pace
    side[D_NETWORK], side[D_STEP_WAIT] = network, before / 2
    side[D_DECODE], side[D_STALL] = decode, stall
    side[D_CACHED] = usable(ask, weights, scratch.resident[number])
    side[D_SECONDS] = network + before / 2 + decode + stall


@compiled
def leaves_build(rows: Rows, ask: Ask, prefill: int, decode: int) -> float:
    """Return 1 of a pair that leaves the transcript's build, which ranks below all others, or 0."""
    builds = rows.marks[prefill, BUILD], rows.marks[decode, BUILD]
    same = builds[0] == builds[1] and builds[0] == ask.before
    return 0.0 if ask.before == NOBODY or same else 1.0


@compiled
def between(
    rows: Rows,
    index: IndexArrays,
    ask: Ask,
    weights: Weights,
    prefill: int,
    decode: int,
    scratch: RankingScratch,
) -> tuple[float, float, float, float]:
    """Return hand-over, lag, stall and eviction of a pair of two candidates. See `Costs.pair`."""
    p, d = scratch.sides[prefill], scratch.sides[decode]
    source, target = scratch.slots[prefill], scratch.slots[decode]
    given, taking = rows.numbers[source], rows.numbers[target]
    regions = rows.marks[source, REGION], rows.marks[target, REGION]
    rtt, bandwidth = rows.rtts[regions], rows.bandwidths[regions]
    missing = ask.prompt_tokens - d[D_CACHED]
    chunk = min(min(given[CHUNK], ask.prompt_tokens - p[P_CACHED]), missing)
    hidden = p[P_QUEUE] + p[P_FETCH] + p[P_COMPUTE]
    late = missing * given[KV_BYTES] / bandwidth - hidden
    handover = rtt / 2 + max(late, chunk * given[KV_BYTES] / bandwidth)
    arrives = hidden + handover + taking[LAG]
    stall = weights.decode * max(0.0, d[P_QUEUE] - arrives)
    evict = 0.0
    if rows.marks[target, ROLE] != DECODE:
        evict = evicted(taking, wide(index.stored[target]), missing, ask, weights)
    return handover, taking[LAG], stall, evict


@compiled
def write_down(
    prefill: int,
    decode: int,
    apart: tuple[float, float, float, float],
    place: int,
    scratch: RankingScratch,
) -> None:
    """Write a pair's nodes and terms as the answer's row `place`."""
    p, d = scratch.sides[prefill], scratch.sides[decode]
    handover, lag, stall, evict = apart
    chosen, terms = scratch.chosen[place], scratch.terms[place]
    chosen[PREFILL_SLOT], chosen[DECODE_SLOT] = scratch.slots[prefill], scratch.slots[decode]
    chosen[CACHED], chosen[SOURCE] = p[P_CACHED], p[P_SOURCE]
    chosen[FIRST], chosen[LAST] = p[P_FIRST], p[P_LAST]
    terms[0], terms[1], terms[2] = p[P_NETWORK] + d[D_NETWORK], p[P_QUEUE], p[P_FETCH]
    terms[3], terms[4], terms[5] = p[P_COMPUTE], handover, lag
    terms[6], terms[7] = d[D_STEP_WAIT], d[D_DECODE]
    terms[8] = p[P_STALL] + d[D_STALL] + stall
    terms[9], terms[10], terms[11] = p[P_BEHIND], p[P_EVICT] + evict, p[P_AFFINITY]
