"""The event loop: arrivals, steps, reports and messages, in order of time."""

# pyright: reportArgumentType=false, reportReturnType=false
# An item of a column is a number; NumPy's types cannot say so of a record array.

from __future__ import annotations

from skerry_regions.routing.fast.arrays import (
    CACHED,
    DECODE_SLOT,
    LAST,
    NOBODY,
    PREFILL_SLOT,
    SOURCE,
    IndexArrays,
)
from skerry_regions.routing.fast.compiled import called, compiled, draw, wide
from skerry_regions.routing.fast.holders import NUM_LISTS, NUM_MAPS, POOL_END, USED
from skerry_regions.routing.fast.laws import KV_BYTES
from skerry_regions.routing.fast.ranking import rank
from skerry_regions.twin.kernel.caches import hold_chain, leading
from skerry_regions.twin.kernel.engine import enqueue
from skerry_regions.twin.kernel.heap import drop_first, push
from skerry_regions.twin.kernel.known import is_away, report_node, rows_of
from skerry_regions.twin.kernel.placing import RANK, ask_for, begin_placing, judge, note_choice
from skerry_regions.twin.kernel.state import (
    AGAIN,
    BY_CALLER,
    FAILED,
    FETCHED,
    FORWARDED,
    HANDED_OVER,
    NEXT,
    NONE,
    NUM_EVENTS,
    NUM_FORWARDED,
    NUM_SPLIT,
    ON_ITS_WAY,
    ONLY_REGION,
    PAUSED,
    PLACED,
    PLACED_AT,
    PLACED_BY,
    QUEUED,
    REPORT,
    STEP,
    SUMMARY,
    WANTS_PLACEMENT,
    WANTS_ROOM,
    Clock,
    World,
)
from skerry_regions.twin.kernel.steps import end_step, send_bytes, take_over, wake, way_seconds
from skerry_regions.twin.kernel.summaries import summarise

ROOM = 1 << 13  # index entries that one event may add; its lists take up to eight slots each
EVENT_ROOM = 64
AGAIN_SECONDS = 0.25  # between a request that found no node and its next try
TOKEN_BYTES = 4  # of a prompt that is forwarded


@compiled
def has_room(index: IndexArrays, clock: Clock) -> bool:
    """Return whether one more event fits into all that grows."""
    told = index.told
    return (
        10 * (told.heads[USED] + ROOM) < 7 * told.keys.shape[0]
        and 10 * (index.totals[0] + ROOM) < 7 * index.pending.shape[0]
        and told.heads[POOL_END] + 8 * ROOM < told.pool.shape[0]
        and told.heads[NUM_LISTS] + ROOM < told.starts.shape[0]
        and told.heads[NUM_MAPS] + ROOM < told.maps.shape[0]
        and clock.length[0] + EVENT_ROOM < clock.events.shape[0]
    )


@compiled
def some_edge(world: World, region: int) -> int:
    """Draw an edge of a region."""
    first = world.regions.first_edge[region]
    return first + draw(world.clock.random, world.regions.first_edge[region + 1] - first)


@compiled
def fetch(world: World, x: int, source: int, blocks: int, now: float) -> None:
    """Copy a prompt's first blocks to its prefill node, as many as the source really has."""
    requests, nodes, regions = world.requests, world.nodes, world.regions
    first, count, target = requests.first[x], requests.num_blocks[x], requests.prefill[x]
    blocks = min(leading(world.caches, source, world.names, first, count), blocks)
    held = leading(world.caches, target, world.names, first, count)
    if blocks <= held:
        return
    size = (blocks - held) * world.weights.block_size * nodes.truth[source, KV_BYTES]
    rtt = regions.rtts[nodes.region[source], nodes.region[target]]
    there = send_bytes(nodes, regions, source, target, size, now + rtt / 2, now)
    requests.ready[x], requests.fetched[x] = there, blocks
    push(world.clock, there, FETCHED, x, requests.attempt[x])


@compiled
def want_place(world: World, e: int, x: int, only_region: int) -> None:
    """Have an edge place a request next."""
    numbers = world.clock.numbers
    numbers[PLACED], numbers[PLACED_BY], numbers[ONLY_REGION] = x, e, only_region
    world.requests.phase[x] = ON_ITS_WAY


@called
def send_off(world: World, is_placed: int, now: float) -> int:
    """Send the request that was placed; return the node that it came to, or -1."""
    requests, clock, regions = world.requests, world.clock, world.regions
    x, e = clock.numbers[PLACED], clock.numbers[PLACED_BY]
    clock.numbers[PLACED] = NONE
    if not is_placed:
        if world.settings.placement == BY_CALLER:
            return NONE  # who brings it back with an event
        if now - requests.since[x] >= world.settings.patience:
            requests.phase[x] = FAILED
        else:
            push(clock, now + AGAIN_SECONDS, AGAIN, x, requests.attempt[x])
        return NONE
    note_choice(world, e, x, now)
    chosen, here = world.scratch.chosen[0], world.edges.region[e]
    p, d = wide(chosen[PREFILL_SLOT]), wide(chosen[DECODE_SLOT])
    if p >= world.settings.num_nodes:
        there = p - world.settings.num_nodes
        requests.way[x] += way_seconds(clock, regions, there, here)
        regions.crossed[here, there] += requests.prompt[x] * TOKEN_BYTES
        clock.numbers[NUM_FORWARDED] += 1
        at = now + way_seconds(clock, regions, here, there)
        push(clock, at, FORWARDED, there * requests.shape[0] + x, requests.attempt[x])
        return NONE
    clock.numbers[NUM_SPLIT] += p != d
    requests.way[x] += regions.rtts[here, here]
    requests.edge[x], requests.prefill[x], requests.decode[x] = e, p, d
    requests.cached[x], requests.computed[x] = -1.0, 0.0
    requests.assumed[x] = max(requests.prompt[x] - chosen[CACHED], 1.0)
    requests.began[x], requests.ready[x], requests.fetched[x] = now, now, 0
    source = wide(chosen[SOURCE])
    if source != NOBODY and source != p:
        fetch(world, x, source, wide(chosen[LAST]), now)
    requests.phase[x] = QUEUED
    enqueue(requests, world.nodes, p, x)
    return p


@called
def arrive(world: World, x: int, now: float) -> None:
    """Have a request placed that comes from its client, or have another region called instead."""
    requests, regions = world.requests, world.regions
    region = requests.region[x]
    requests.way[x] = requests.base_way[x]
    home = regions.home[region]
    if home == region:
        want_place(world, some_edge(world, region), x, NOBODY)
        return
    if home == NONE:
        requests.phase[x] = FAILED
        return
    requests.base_way[x] += regions.rtts[region, home]
    requests.region[x] = home
    requests.since[x] = max(now, regions.moved_at[region])
    push(world.clock, requests.since[x], AGAIN, x, requests.attempt[x])


@called
def handle(world: World, now: float) -> int:
    """Handle the first event; return a node to wake, or -1."""
    clock, requests, settings = world.clock, world.requests, world.settings
    kind, subject, stamp = clock.events.kinds[0], clock.events.subjects[0], clock.events.stamps[0]
    drop_first(clock)
    if kind == STEP:
        if stamp != world.nodes.step_id[subject]:
            return NONE
        if stamp & 1:
            end_step(world, subject, now)
        return subject
    if kind == REPORT:
        if not is_away(world, subject):
            report_node(world, subject, now)
        if now < settings.until:
            push(clock, now + settings.report_seconds, REPORT, subject, 0)
        return NONE
    if kind == SUMMARY:
        summarise(world, subject, now)
        if now < settings.until:
            push(clock, now + settings.summary_seconds, SUMMARY, subject, 0)
        return NONE
    x = subject % requests.shape[0]
    if stamp != requests.attempt[x]:
        return NONE
    if kind == HANDED_OVER:
        take_over(world, x, now)
        return requests.decode[x]
    if kind == FETCHED:
        first, target = requests.first[x], requests.prefill[x]
        hold_chain(world.caches, world.nodes, target, world.names, first, requests.fetched[x])
        return target
    region, only = requests.region[x], NOBODY
    if kind == FORWARDED:
        region = only = subject // requests.shape[0]
    else:
        requests.way[x] = requests.base_way[x]
    want_place(world, some_edge(world, region), x, only)
    return NONE


@called
def advance(world: World, until: float) -> int:
    """Run to a time of the virtual clock, or to where the caller is needed; return why it
    stopped."""
    clock, requests = world.clock, world.requests
    while True:
        if not has_room(world.index, clock):
            return WANTS_ROOM
        now, to_wake = clock.placed[PLACED_AT], NONE
        if clock.numbers[PLACED] == NONE:
            x = clock.numbers[NEXT]
            is_arrival = x < requests.shape[0] and (
                clock.length[0] == 0 or requests.arrival[x] <= clock.events.times[0]
            )
            if not is_arrival and clock.length[0] == 0:
                return PAUSED
            now = requests.arrival[x] if is_arrival else clock.events.times[0]
            if now > until:
                return PAUSED
            clock.placed[PLACED_AT] = now
            if is_arrival:
                clock.numbers[NEXT] += 1
                arrive(world, x, now)
            else:
                to_wake = handle(world, now)
            clock.numbers[NUM_EVENTS] += 1
        if clock.numbers[PLACED] != NONE:
            x, e = clock.numbers[PLACED], clock.numbers[PLACED_BY]
            if world.settings.placement == BY_CALLER:
                if clock.asked[5] == 0:
                    return WANTS_PLACEMENT
                clock.asked[5] = 0
            found = begin_placing(world, now)
            while found == RANK:
                first = requests.first[x]
                names = world.names[first : first + requests.num_blocks[x]]
                # Nothing is excluded; what regions hold is in the index, in slots of their own.
                nothing, untold = world.scratch.front[:0], world.scratch.chosen[:0]
                count = rank(
                    rows_of(world, e), world.index, ask_for(world, now), world.weights, names,
                    nothing, untold, world.scratch,
                )  # fmt: skip
                found = judge(world, count, now)
            to_wake = send_off(world, found, now)
        if to_wake != NONE:
            wake(world, to_wake, now)
