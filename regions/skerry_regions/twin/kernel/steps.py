"""A node's steps: how one begins, and what its end brings to whom."""

# pyright: reportArgumentType=false
# An item of a column is a number; NumPy's types cannot say so of a record array.

from __future__ import annotations

import math

import numpy as np

from skerry_regions.routing.fast.compiled import called, compiled
from skerry_regions.routing.fast.laws import CHUNK, KV_BYTES
from skerry_regions.twin.kernel.caches import hold_chain, leading
from skerry_regions.twin.kernel.engine import (
    choose_chunks,
    cut_short,
    dequeue,
    duration,
    join,
    let_in,
    looked_at,
    pop_stream,
    remaining,
    uniform,
)
from skerry_regions.twin.kernel.heap import push
from skerry_regions.twin.kernel.state import (
    DECODING,
    DONE,
    HANDED_OVER,
    ITL_BUCKETS,
    ITL_LEAST,
    ITL_RATIO,
    MOVING,
    NUM_LOST_MESSAGES,
    S_CONTEXT,
    S_NEW,
    S_PAIRS,
    S_SECONDS,
    S_STEPS,
    S_STREAMS,
    STEP,
    Clock,
    Nodes,
    Regions,
    World,
)

LOG_RATIO = math.log(ITL_RATIO)
RETRANSMIT_SECONDS = 0.2  # TCP's least timeout in Linux; RFC 6298 says 1 s


@compiled
def way_seconds(clock: Clock, regions: Regions, source: int, target: int) -> float:
    """Return how long a message takes one way: half of a round trip, and what a loss costs."""
    rtt = regions.rtts[source, target]
    seconds = rtt / 2
    if regions.loss[source, target] > 0 and uniform(clock.random) <= regions.loss[source, target]:
        seconds += max(RETRANSMIT_SECONDS, rtt)
        clock.numbers[NUM_LOST_MESSAGES] += 1
    return seconds


@compiled
def send_bytes(
    nodes: Nodes, regions: Regions, source: int, target: int, size: float, begin: float, now: float
) -> float:
    """Return when bytes are there that could leave at `begin`: one transfer at a time per
    sender."""
    ways = nodes.region[source], nodes.region[target]
    begin = max(nodes.egress[source], begin)
    nodes.egress[source] = max(begin + size / regions.bandwidths[ways], now)
    regions.crossed[ways] += size
    return nodes.egress[source] + regions.rtts[ways] / 2


@called
def wake(world: World, v: int, now: float) -> None:
    """Have a node begin a step, or end a burst of steps early, for what has come."""
    requests, nodes, clock = world.requests, world.nodes, world.clock
    if nodes.up[v] == 0:
        return
    if nodes.step_id[v] & 1:
        cut_short(nodes, clock, v, now)
        return
    let_in(requests, nodes, v)
    ready = choose_chunks(
        requests, world.names, nodes, world.caches, v, now, world.weights.block_size
    )
    if nodes.num_chunks[v] == 0 and nodes.num_streams[v] == 0:
        if ready < np.inf:
            push(clock, ready, STEP, v, nodes.step_id[v])
        return
    nodes.step_id[v] += 1
    nodes.began[v] = now
    nodes.factor[v] = 1.0
    if nodes.noise[v] > 0:  # Box and Muller 1958; of mean 1
        radius = math.sqrt(-2 * math.log(uniform(clock.random)))
        normal = radius * math.cos(2 * math.pi * uniform(clock.random))
        nodes.factor[v] = math.exp(nodes.noise[v] * normal - nodes.noise[v] ** 2 / 2)
    nodes.count[v] = 1 if nodes.num_chunks[v] > 0 else nodes.keys[v, 0] - nodes.steps[v]
    nodes.ends[v] = now + duration(nodes, v, float(nodes.count[v]))
    push(clock, nodes.ends[v], STEP, v, nodes.step_id[v])


@compiled
def finish(world: World, x: int, now: float) -> None:
    """End a request: its last token is out."""
    requests, nodes = world.requests, world.nodes
    requests.phase[x] = DONE
    requests.end[x] = now + requests.way[x] - requests.arrival[x]
    world.rows.active[requests.edge[x], requests.decode[x]] -= 1
    for s in (requests.prefill[x], requests.decode[x]):
        if nodes.booked[s, 0] < nodes.booked[s, 1]:  # its bookings count no more
            nodes.version[s] += 1


@compiled
def begin_decode(world: World, x: int, now: float) -> bool:
    """Count the first token out on the node that decodes; return whether more are to come."""
    requests = world.requests
    requests.phase[x] = DECODING
    if math.isnan(requests.first_token[x]):
        requests.first_token[x] = now + requests.way[x] - requests.arrival[x]
    if requests.left[x] <= 1:
        finish(world, x, now)
        return False
    per_step = world.nodes.tokens_per_step[requests.decode[x]]
    if per_step > 1 and requests.attempt[x] == 0:
        requests.left[x] = 1 + math.ceil((requests.left[x] - 1) / per_step)
    join(requests, world.nodes, requests.decode[x], x)
    return True


@compiled
def hand_over(world: World, x: int, now: float) -> None:
    """Send a prompt's KV from the node that computed it to the one that decodes.

    Sealed blocks leave while later chunks compute; the last chunk cannot.
    """
    requests, nodes, regions = world.requests, world.nodes, world.regions
    source, target = requests.prefill[x], requests.decode[x]
    held = leading(world.caches, target, world.names, requests.first[x], requests.num_blocks[x])
    per_token = nodes.truth[source, KV_BYTES]
    missing = max(requests.prompt[x] - held * world.weights.block_size, 0.0)
    last = min(nodes.truth[source, CHUNK], missing) * per_token
    early = send_bytes(
        nodes, regions, source, target, missing * per_token - last, requests.began[x], now
    )
    rtt = regions.rtts[nodes.region[source], nodes.region[target]]
    there = send_bytes(nodes, regions, source, target, last, max(now, early - rtt / 2), now)
    requests.phase[x] = MOVING
    push(world.clock, there, HANDED_OVER, x, requests.attempt[x])


@compiled
def account(world: World, v: int) -> None:
    """Note what a step did and took, before its batch changes."""
    nodes, regions = world.nodes, world.regions
    count = nodes.count[v]
    seconds = nodes.ends[v] - nodes.began[v]
    streams = nodes.num_streams[v]
    nodes.busy[v] += seconds
    sums = nodes.samples[v]
    sums[S_STEPS] += count
    sums[S_SECONDS] += seconds
    sums[S_NEW] += nodes.step_tokens[v]
    sums[S_PAIRS] += nodes.step_pairs[v]
    sums[S_STREAMS] += streams * count
    sums[S_CONTEXT] += looked_at(nodes, v, float(count))
    if streams > 0:
        bucket = int(math.log(max(seconds / count / ITL_LEAST, 1.0)) / LOG_RATIO)
        regions.itl[nodes.region[v], min(bucket, ITL_BUCKETS - 1)] += streams * count


@called
def end_step(world: World, v: int, now: float) -> None:
    """End a node's step: streams end, prompts are done."""
    requests, nodes = world.requests, world.nodes
    nodes.step_id[v] += 1
    account(world, v)
    nodes.steps[v] += nodes.count[v]
    nodes.context[v] += nodes.num_streams[v] * nodes.count[v]
    while nodes.num_streams[v] > 0 and nodes.keys[v, 0] <= nodes.steps[v]:
        x = pop_stream(nodes, v)
        nodes.context[v] -= requests.context[x] + requests.left[x] - 1
        finish(world, x, now)
    for j in range(nodes.num_chunks[v]):
        x, count = nodes.chunks[v, j], nodes.chunk_tokens[v, j]
        done = requests.cached[x] + requests.computed[x]
        nodes.waiting[v, 0] -= count
        nodes.waiting[v, 1] -= count * (done + (count + 1) / 2)
        requests.computed[x] += count
        if remaining(requests, x) > 0:
            continue
        dequeue(requests, nodes, v, x)
        if math.isnan(requests.hit[x]):
            requests.hit[x] = requests.cached[x]
        hold_chain(world.caches, nodes, v, world.names, requests.first[x], requests.num_blocks[x])
        if requests.decode[x] == v:
            begin_decode(world, x, now)
        else:
            hand_over(world, x, now)
    nodes.num_chunks[v] = 0
    nodes.step_tokens[v] = nodes.step_pairs[v] = 0.0


@called
def take_over(world: World, x: int, now: float) -> None:
    """Start decoding where a prompt's KV has come."""
    requests, nodes = world.requests, world.nodes
    target = requests.decode[x]
    hold_chain(world.caches, nodes, target, world.names, requests.first[x], requests.num_blocks[x])
    begin_decode(world, x, now)
