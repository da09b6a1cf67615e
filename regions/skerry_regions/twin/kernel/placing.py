"""Where an edge sends a request: the router's ranking, and the rules that it is compared with."""

# pyright: reportArgumentType=false
# An item of a column is a number; NumPy's types cannot say so of a record array.

from __future__ import annotations

import math

import numpy as np

from skerry_regions.routing.fast.arrays import (
    CACHED,
    CLOSED,
    DECODE_SLOT,
    FLAGS,
    LAST,
    LIVE,
    NOBODY,
    NUM_TERMS,
    PREFILL_SLOT,
    ROLE,
    SOURCE,
    Ask,
    RankingScratch,
)
from skerry_regions.routing.fast.arrays import DECODE as DECODE_ROLE
from skerry_regions.routing.fast.arrays import PREFILL as PREFILL_ROLE
from skerry_regions.routing.fast.compiled import called, compiled, wide
from skerry_regions.routing.fast.laws import PER_TOKEN, attended_pairs, work_seconds
from skerry_regions.routing.fast.pending import expect, expire
from skerry_regions.twin.kernel.known import (
    SPARSE,
    arrivals,
    book,
    count_traffic,
    refresh,
)
from skerry_regions.twin.kernel.state import (
    BY_CALLER,
    BY_COST,
    DECODES,
    FAR_CACHED,
    FAR_SECONDS,
    FAR_SLOT,
    NEAREST,
    NONE,
    ONLY_REGION,
    OWN,
    PLACED,
    PLACED_BY,
    PREFILLS,
    World,
)

RANK = 2
EXPECT_SECONDS = 10.0
"""How long blocks are expected on a node: `block_index.DirectoryLimits.expect_seconds`."""


@compiled
def speed_of_all(world: World, e: int) -> float:
    """Return the prompt tokens that nodes of an edge's region compute in a second together: those
    that prefill for everybody, or else all. See `routing.sides.prompt_speed`."""
    regions, region = world.regions, world.edges.region[e]
    total, offering = 0.0, 0.0
    for s in range(regions.first_slot[region], regions.first_slot[region + 1]):
        marks = world.rows.marks[region, s]
        if marks[LIVE] != 0 and marks[FLAGS] & CLOSED == 0:
            speed = math.floor(1024.0 / world.nodes.believed[s, PER_TOKEN]) / 1024.0
            total += speed
            offering += speed if marks[ROLE] != DECODE_ROLE else 0.0
    return offering if offering > 0.0 else total


@compiled
def ask_for(world: World, now: float) -> Ask:
    """Return the router's input for the request that is being placed."""
    requests, edges, settings = world.requests, world.edges, world.settings
    x, e = world.clock.numbers[PLACED], world.clock.numbers[PLACED_BY]
    region, traffic = edges.region[e], edges.traffic[e]
    rate, sharing = arrivals(edges, e, settings.rate_seconds, now), world.rows.counts[region, 2]
    return Ask(
        now,
        requests.prompt[x],
        settings.expected_output,
        rate / sharing,
        speed_of_all(world, e) / sharing,
        traffic[2] / traffic[3] if traffic[3] > 0 else 0.0,
        region,
        world.clock.numbers[ONLY_REGION],
        NOBODY,
        NOBODY,
        False,
        False,
        requests.session[x],
        settings.indexed,
    )


@compiled
def seconds_of_best(scratch: RankingScratch) -> float:
    """Return the price of the first placement."""
    total = 0.0
    for number in range(NUM_TERMS):
        total += scratch.terms[0, number]
    return total


@compiled
def recompute_seconds(world: World, v: int, new: float, cached: float) -> float:
    """Return seconds of computing a prompt on a node that does nothing else."""
    law = world.nodes.believed[v]
    return work_seconds(law, new, attended_pairs(new, cached), 0.0, 0.0)


@compiled
def has_paid(
    world: World, e: int, x: int, far: float, held: float, near: float, cached: float, v: int
) -> bool:
    """See `routing.rental.Rental.has_paid`: seconds of the best placement and of the best here."""
    requests, edges = world.requests, world.edges
    if cached >= held:
        return False
    prompt, size = requests.prompt[x], world.weights.block_size
    price = recompute_seconds(world, v, prompt - cached, cached)
    price -= recompute_seconds(world, v, prompt - held, held)
    rent = far - (near - price)
    blocks = requests.num_blocks[x]
    if rent <= 0 or blocks == 0:
        return False
    last = min(wide(np.ceil(held / size)), blocks) - 1
    name = world.names[requests.first[x] + last]
    place = wide(name % np.uint64(edges.paid.shape[1]))
    if edges.paid_names[e, place] != name:  # the older of two that meet is forgotten
        edges.paid_names[e, place], edges.paid[e, place] = name, 0.0
    edges.paid[e, place] += rent
    if edges.paid[e, place] < price:
        return False
    edges.paid_names[e, place] = np.uint64(0)
    return True


@called
def judge(world: World, count: int, now: float) -> int:
    """Take in a ranking; return `RANK` where the same is to be ranked in this region alone, because
    the best place is far, and whether there is a place otherwise."""
    clock, scratch = world.clock, world.scratch
    numbers, best = clock.numbers, scratch.chosen[0]
    x, e = numbers[PLACED], numbers[PLACED_BY]
    if numbers[FAR_SLOT] == NONE:
        is_far = count > 0 and best[PREFILL_SLOT] >= world.settings.num_nodes
        if not is_far or best[CACHED] < world.weights.block_size:
            return min(count, 1)
        numbers[FAR_SLOT], numbers[ONLY_REGION] = best[PREFILL_SLOT], world.edges.region[e]
        clock.placed[FAR_SECONDS], clock.placed[FAR_CACHED] = seconds_of_best(scratch), best[CACHED]
        return RANK
    slot, seconds = numbers[FAR_SLOT], clock.placed[FAR_SECONDS]
    held = clock.placed[FAR_CACHED]
    numbers[FAR_SLOT] = NONE
    if count > 0 and has_paid(
        world, e, x, seconds, held, seconds_of_best(scratch), float(best[CACHED]),
        wide(best[PREFILL_SLOT]),
    ):  # fmt: skip
        return 1
    best[PREFILL_SLOT] = best[DECODE_SLOT] = slot
    best[CACHED], best[SOURCE] = wide(held), NOBODY
    return 1


@compiled
def is_open(world: World, region: int, s: int) -> bool:
    """Return whether a slot takes streams, as edges of a region know."""
    marks = world.rows.marks[region, s]
    return marks[LIVE] != 0 and marks[FLAGS] & CLOSED == 0 and marks[ROLE] != PREFILL_ROLE


@compiled
def by_rule(world: World, e: int, only_region: int) -> bool:
    """Choose as `region.plain_placers` does: by an edge's own streams, or in turn."""
    edges, regions, num_nodes = world.edges, world.regions, world.settings.num_nodes
    region = edges.region[e]
    best, first, last = NONE, regions.first_slot[region], regions.first_slot[region + 1]
    if world.settings.placement == NEAREST:
        for s in range(first, last):
            if is_open(world, region, s) and (
                best == NONE or world.rows.active[e, s] < world.rows.active[e, best]
            ):
                best = s
        if best == NONE and only_region == NOBODY:
            for other in range(world.settings.num_regions):
                s = num_nodes + other
                if is_open(world, region, s) and (
                    best == NONE
                    or regions.rtts[region, other] < regions.rtts[region, best - num_nodes]
                ):
                    best = s
    else:
        others = world.settings.num_regions if only_region == NOBODY else 0
        for _ in range(last - first + others):
            edges.turns[e] += 1
            turn = edges.turns[e] % (last - first + others)
            s = first + turn if turn < last - first else num_nodes + turn - (last - first)
            if is_open(world, region, s):
                best = s
                break
    if best == NONE:
        return False
    chosen = world.scratch.chosen[0]
    chosen[PREFILL_SLOT] = chosen[DECODE_SLOT] = best
    chosen[CACHED], chosen[SOURCE] = 0, NOBODY
    return True


@called
def begin_placing(world: World, now: float) -> int:
    """Bring up to date what an edge knows; choose by a rule, or return `RANK` where the router
    does. Otherwise returns whether there is a place."""
    clock = world.clock
    while clock.expectations[0] < clock.expectations[1]:
        oldest = clock.expectations[0] % clock.expected.shape[0]
        if clock.expected[oldest, 0] > now:
            break
        end_expectation(world, now)
    e = clock.numbers[PLACED_BY]
    refresh(world, e, now)
    if world.settings.placement == BY_COST:
        return RANK
    if world.settings.placement == BY_CALLER:
        chosen, asked = world.scratch.chosen[0], clock.asked
        chosen[PREFILL_SLOT], chosen[DECODE_SLOT] = asked[0], asked[1]
        chosen[SOURCE], chosen[LAST], chosen[CACHED] = asked[2], asked[3], asked[4]
        return 1 if asked[0] >= 0 else 0
    return 1 if by_rule(world, e, clock.numbers[ONLY_REGION]) else 0


@compiled
def num_shared(world: World, x: int) -> int:
    """Return how many of a prompt's blocks other requests have as well: its first ones."""
    first, count = world.requests.first[x], world.requests.num_blocks[x]
    while count > 0 and world.names[first + count - 1] & OWN:
        count -= 1
    return count


@compiled
def expect_blocks(world: World, s: int, x: int, now: float) -> None:
    """Expect a prompt's blocks on a node until it reports them, or for long enough."""
    clock = world.clock
    room = clock.expected.shape[0]
    if clock.expectations[1] - clock.expectations[0] >= room:
        end_expectation(world, np.inf)
    each = clock.expected[clock.expectations[1] % room]
    each[0], each[1], each[2] = now + EXPECT_SECONDS, s, x
    clock.expectations[1] += 1
    first = world.requests.first[x]
    names = world.names[first : first + num_shared(world, x)]
    expect(world.index, names, 0, s, now + EXPECT_SECONDS, SPARSE)


@compiled
def end_expectation(world: World, now: float) -> None:
    """Forget what the oldest expectation expects still."""
    clock = world.clock
    each = clock.expected[clock.expectations[0] % clock.expected.shape[0]]
    clock.expectations[0] += 1
    x = wide(each[2])
    first = world.requests.first[x]
    names = world.names[first : first + num_shared(world, x)]
    expire(world.index, names, wide(each[1]), now)


@compiled
def note_choice(world: World, e: int, x: int, now: float) -> None:
    """Book the chosen placement, and expect the prompt's blocks on its nodes."""
    requests, chosen = world.requests, world.scratch.chosen[0]
    p, d = wide(chosen[PREFILL_SLOT]), wide(chosen[DECODE_SLOT])
    cached = float(chosen[CACHED])
    count_traffic(world, e, requests.prompt[x], cached, now)
    new = requests.prompt[x] - cached
    book(world, e, p, x, PREFILLS | (DECODES if p == d else 0), new, cached, now)
    if p >= world.settings.num_nodes:
        return
    world.rows.active[e, d] += 1
    expect_blocks(world, p, x, now)
    if p != d:
        book(world, e, d, x, DECODES, new, cached, now)
        expect_blocks(world, d, x, now)
