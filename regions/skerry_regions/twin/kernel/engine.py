"""One node's engine: a queue of prompts computed in chunks, a batch of streams, a cache of blocks.

Each step computes up to a chunk of prompt tokens, first come first served, and one token of every
stream, and takes the seconds that the node's law (`routing.fast.laws`, `speeds.NodeSpeed`) says.
While there is no prompt, all steps up to the next stream's end are one event. Blocks become
reusable when their prompt is computed. The room of running sequences and the cache are not one
pool: memory pressure of decoding is not simulated, but a batch has `max_streams` at most.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# An item of a column is a number; NumPy's types cannot say so of a record array.

from __future__ import annotations

import math

import numpy as np

from skerry_regions.routing.fast.compiled import UInt64s, compiled, draw, wide
from skerry_regions.routing.fast.laws import (
    BASE,
    CHUNK,
    PER_CONTEXT,
    PER_PAIR,
    PER_STREAM,
    PER_TOKEN,
    attended_pairs,
    room_seconds,
)
from skerry_regions.twin.kernel.caches import hold, leading
from skerry_regions.twin.kernel.heap import push
from skerry_regions.twin.kernel.state import (
    NONE,
    STEP,
    BlockCaches,
    Clock,
    Nodes,
    Requests,
)

UNIT = 1 << 53


@compiled
def uniform(random: UInt64s) -> float:
    """Return a random number above 0, at most 1."""
    return (draw(random, UNIT) + 1) / UNIT


@compiled
def remaining(requests: Requests, x: int) -> float:
    """Return prompt tokens still to compute: as assumed until its prefill begins."""
    if requests.cached[x] < 0:
        return requests.assumed[x]
    return requests.prompt[x] - requests.cached[x] - requests.computed[x]


@compiled
def count_waiting(requests: Requests, nodes: Nodes, v: int, x: int, sign: float) -> None:
    """Add what a prompt still needs to a node's queue, or take it off."""
    tokens = remaining(requests, x)
    nodes.waiting[v, 0] += sign * tokens
    nodes.waiting[v, 1] += sign * attended_pairs(tokens, requests.prompt[x] - tokens)


@compiled
def enqueue(requests: Requests, nodes: Nodes, v: int, x: int) -> None:
    """Append a prompt to a node's queue."""
    last = nodes.tail[v]
    requests.previous[x], requests.next[x] = last, NONE
    if last == NONE:
        nodes.head[v] = x
    else:
        requests.next[last] = x
    nodes.tail[v] = x
    nodes.num_waiting[v] += 1
    count_waiting(requests, nodes, v, x, 1.0)


@compiled
def dequeue(requests: Requests, nodes: Nodes, v: int, x: int) -> None:
    """Take a prompt out of a node's queue."""
    count_waiting(requests, nodes, v, x, -1.0)
    before, after = requests.previous[x], requests.next[x]
    if before == NONE:
        nodes.head[v] = after
    else:
        requests.next[before] = after
    if after == NONE:
        nodes.tail[v] = before
    else:
        requests.previous[after] = before
    nodes.num_waiting[v] -= 1
    if nodes.num_waiting[v] == 0:
        nodes.waiting[v, 0] = nodes.waiting[v, 1] = 0.0


@compiled
def join(requests: Requests, nodes: Nodes, v: int, x: int) -> None:
    """Have a stream enter the batch with the next step that has room."""
    requests.context[x] = requests.prompt[x] + 1
    requests.next[x] = NONE
    if nodes.join_head[v] == NONE:
        nodes.join_head[v] = x
    else:
        requests.next[nodes.join_tail[v]] = x
    nodes.join_tail[v] = x
    nodes.num_joining[v] += 1
    nodes.joining_context[v] += requests.context[x]


@compiled
def let_in(requests: Requests, nodes: Nodes, v: int) -> None:
    """Put streams that wait into the batch, as long as it has room."""
    most = nodes.max_streams[v]
    while nodes.num_joining[v] > 0 and nodes.num_streams[v] < most:
        x = nodes.join_head[v]
        nodes.join_head[v] = requests.next[x]
        nodes.num_joining[v] -= 1
        nodes.joining_context[v] -= requests.context[x]
        key, place = nodes.steps[v] + requests.left[x] - 1, nodes.num_streams[v]
        nodes.num_streams[v] = place + 1
        while place > 0:
            above = (place - 1) >> 1
            if nodes.keys[v, above] <= key:
                break
            nodes.keys[v, place] = nodes.keys[v, above]
            nodes.streams[v, place] = nodes.streams[v, above]
            place = above
        nodes.keys[v, place], nodes.streams[v, place] = key, x
        nodes.context[v] += requests.context[x]
    if nodes.num_joining[v] == 0:
        nodes.joining_context[v] = 0.0


@compiled
def pop_stream(nodes: Nodes, v: int) -> int:
    """Take the stream that ends first out of the batch."""
    keys, streams = nodes.keys[v], nodes.streams[v]
    found = streams[0]
    last = nodes.num_streams[v] - 1
    nodes.num_streams[v] = last
    key, place = keys[last], 0
    while True:
        below = 2 * place + 1
        if below >= last:
            break
        if below + 1 < last and keys[below + 1] < keys[below]:
            below += 1
        if keys[below] >= key:
            break
        keys[place], streams[place] = keys[below], streams[below]
        place = below
    keys[place], streams[place] = key, streams[last]
    return wide(found)


@compiled
def looked_at(nodes: Nodes, v: int, count: float) -> float:
    """Return context tokens that so many decode steps look at."""
    return nodes.context[v] * count + nodes.num_streams[v] * count * (count - 1) / 2


@compiled
def duration(nodes: Nodes, v: int, count: float) -> float:
    """Return seconds of so many equal steps, the first with this step's prompt tokens."""
    law = nodes.truth[v]
    return nodes.factor[v] * (
        count * (law[BASE] + law[PER_STREAM] * nodes.num_streams[v])
        + law[PER_CONTEXT] * looked_at(nodes, v, count)
        + law[PER_TOKEN] * nodes.step_tokens[v]
        + law[PER_PAIR] * nodes.step_pairs[v]
    )


@compiled
def cut_short(nodes: Nodes, clock: Clock, v: int, now: float) -> None:
    """End a burst with the step of it that is running now: work came."""
    if nodes.num_chunks[v] > 0 or nodes.count[v] <= 1:
        return
    elapsed, low, high = now - nodes.began[v], 0, nodes.count[v]
    while low < high:
        middle = (low + high) >> 1
        if duration(nodes, v, float(middle)) >= elapsed:
            high = middle
        else:
            low = middle + 1
    if low < nodes.count[v]:
        nodes.count[v] = max(low, 1)
        nodes.ends[v] = nodes.began[v] + duration(nodes, v, float(nodes.count[v]))
        nodes.step_id[v] += 2
        push(clock, nodes.ends[v], STEP, v, nodes.step_id[v])


@compiled
def choose_chunks(
    requests: Requests,
    names: UInt64s,
    nodes: Nodes,
    caches: BlockCaches,
    v: int,
    now: float,
    block_size: float,
) -> float:
    """Choose the prompt tokens of the next step; return when a fetched prompt that waits is
    there, or infinity."""
    law, left, seconds = nodes.truth[v], nodes.truth[v, CHUNK], np.inf
    if nodes.num_streams[v] > 0:
        seconds = room_seconds(law, float(nodes.num_streams[v]), nodes.context[v])
    nodes.step_tokens[v] = nodes.step_pairs[v] = 0.0
    number, x, ready = 0, nodes.head[v], np.inf
    while x != NONE and number < nodes.chunks.shape[1] and left > 0 and seconds > 0:
        if requests.ready[x] > now:
            ready = min(ready, requests.ready[x])
            x = requests.next[x]
            continue
        if requests.cached[x] < 0:
            count_waiting(requests, nodes, v, x, -1.0)
            first, blocks = requests.first[x], requests.num_blocks[x]
            held = leading(caches, v, names, first, blocks)
            for n in range(first + held - 1, first - 1, -1):
                hold(caches, nodes, v, names[n])
            requests.cached[x] = min(held * block_size, requests.prompt[x] - 1)
            count_waiting(requests, nodes, v, x, 1.0)
        done = requests.cached[x] + requests.computed[x]
        price = law[PER_TOKEN] + law[PER_PAIR] * done
        count = min(requests.prompt[x] - done, left)
        if count * price > seconds:
            count = math.ceil(seconds / price)
        nodes.chunks[v, number], nodes.chunk_tokens[v, number] = x, count
        number += 1
        nodes.step_tokens[v] += count
        nodes.step_pairs[v] += attended_pairs(count, done)
        left -= count
        seconds -= count * price
        x = requests.next[x]
    nodes.num_chunks[v] = number
    return ready
