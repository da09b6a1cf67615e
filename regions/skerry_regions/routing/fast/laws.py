"""The laws of `skerry_regions.speeds`, compiled: seconds of steps and prompts of one node.

`row` are a node's numbers; the functions of the same names there say what they mean.
"""

from __future__ import annotations

import math

from skerry_regions.routing.fast.compiled import Floats, compiled
from skerry_regions.speeds import LEAST_CHUNK

# Columns of a row.
(
    BASE, PER_TOKEN, PER_PAIR, PER_STREAM, PER_CONTEXT, CHUNK, GAP,
    BUSY_UNTIL, STREAMS, CONTEXT, FREE,
    SEEN_TOKENS, SEEN_STREAMS, SEEN_CONTEXT,
    KV_BYTES, CACHE, FILE_BANDWIDTH, LAG,
    NUM_COLUMNS,
) = range(19)  # fmt: skip

PROMPT, OUTPUT = 4096.0, 256.0  # tokens of a request that is not long


@compiled
def attended_pairs(new_tokens: float, cached_tokens: float) -> float:
    """See `speeds.attended_pairs`."""
    return new_tokens * (cached_tokens + (new_tokens + 1) / 2)


@compiled
def step_seconds(row: Floats, streams: float, context: float) -> float:
    """See `NodeSpeed.step_seconds`."""
    return row[BASE] + row[PER_STREAM] * streams + row[PER_CONTEXT] * context


@compiled
def room_seconds(row: Floats, streams: float, context: float) -> float:
    """See `NodeSpeed.room_seconds`."""
    pace = step_seconds(row, streams, context)
    return max(row[GAP] - pace, pace)


@compiled
def work_seconds(row: Floats, tokens: float, pairs: float, streams: float, context: float) -> float:
    """See `NodeSpeed.work_seconds`."""
    prompts = row[PER_TOKEN] * tokens + row[PER_PAIR] * pairs
    steps = math.ceil(tokens / row[CHUNK])
    if streams > 0:
        by_time = prompts / room_seconds(row, streams, context)
        steps = max(steps, math.ceil(min(by_time, tokens / LEAST_CHUNK)))
    return steps * step_seconds(row, streams, context) + prompts


@compiled
def likely_price(
    row: Floats, tokens: float, pairs: float, output: float, stream_weight: float
) -> float:
    """Return about what a request costs on a node: the prompt's seconds, its own decoding, and what
    streams there lose by either. `stream_weight`: of a second of decoding."""
    prompt, streams = row[PER_TOKEN] * tokens + row[PER_PAIR] * pairs, row[STREAMS]
    pace = step_seconds(row, streams + 1, row[CONTEXT]) + streams * row[PER_STREAM]
    return prompt + stream_weight * (streams * prompt + output * pace)


@compiled
def would_end(row: Floats, stream_weight: float) -> float:
    """Return when a prompt would be done that is not long, if it came now, with the rest of its
    price: what orders nodes by their work. Idle ones come first, by their price alone. Time does
    not change the order."""
    pairs = attended_pairs(PROMPT, 0.0)
    price = likely_price(row, PROMPT, pairs, OUTPUT, stream_weight)
    return price if row[BUSY_UNTIL] == -math.inf else row[BUSY_UNTIL] + price


@compiled
def running_step(row: Floats) -> float:
    """See `costs.running_step`."""
    if row[SEEN_STREAMS] == 0.0:
        chunk = min(row[SEEN_TOKENS], row[CHUNK])
        return row[BASE] + row[PER_TOKEN] * chunk if chunk > 0.0 else 0.0
    pace = step_seconds(row, row[SEEN_STREAMS], row[SEEN_CONTEXT])
    room = room_seconds(row, row[SEEN_STREAMS], row[SEEN_CONTEXT])
    return pace + min(row[PER_TOKEN] * row[SEEN_TOKENS], room)
