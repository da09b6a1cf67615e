"""Where a model is cut into stages, so that the slowest of them is as fast as can be.

A pipeline makes a step's worth of tokens in the time of its slowest stage. A stage takes, for a
step of a few rows, the bytes that it reads times its rank's seconds a byte:

    seconds = fixed[rank] + speed[rank] * (weights and KV of its layers, and the head on the last)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

from skerry_core.config import BLOCK_SIZE, ConfigError, KVFormat, ModelConfig

EQUAL = 0.1  # share by which speeds may differ and be one: the next start is to cut alike
ROWS, CONTEXT = 4, 16 * BLOCK_SIZE  # of a step whose bytes are counted; tokens of each row


def cut(
    layer_bytes: Sequence[float],
    head_bytes: float,
    speeds: Sequence[float],
    fixed: Sequence[float],
) -> tuple[int, ...]:
    """Return the layers at which all stages but the first begin; each has one at least.

    `speeds` are seconds a byte and `fixed` seconds a step of each rank, in order. Exact, by dynamic
    programming over ranks and layers. Raises ConfigError for more ranks than layers.
    """
    layers, ranks = len(layer_bytes), len(speeds)
    if ranks > layers:
        raise ConfigError(f"a model of {layers} layers has no {ranks} stages")
    before = [0.0, *accumulate(layer_bytes)]

    def seconds(rank: int, first: int, last: int) -> float:
        head = head_bytes if last == layers else 0.0
        return fixed[rank] + speeds[rank] * (before[last] - before[first] + head)

    slowest = [seconds(0, 0, last) if last else math.inf for last in range(layers + 1)]
    starts: list[list[int]] = []
    for rank in range(1, ranks):
        found, chosen = [math.inf] * (layers + 1), [0] * (layers + 1)
        for last in range(rank + 1, layers + 1):
            for first in range(rank, last):
                worst = max(slowest[first], seconds(rank, first, last))
                if worst < found[last]:
                    found[last], chosen[last] = worst, first
        slowest = found
        starts.append(chosen)
    cuts = [layers]
    for chosen in reversed(starts):
        cuts.append(chosen[cuts[-1]])
    return tuple(reversed(cuts[1:]))


def alike(speeds: Sequence[float]) -> list[float]:
    """Return speeds, those made one that are not EQUAL apart: what is measured differs a little
    from start to start."""
    order = sorted(range(len(speeds)), key=speeds.__getitem__)
    same = list(speeds)
    for slower, faster in pairwise(reversed(order)):
        if same[slower] <= (1 + EQUAL) * speeds[faster]:
            same[faster] = same[slower]
    return same


def kv_bytes(config: ModelConfig, layer: int) -> float:
    """Return the bytes of KV that a step reads in a layer."""
    one = KVFormat(num_layers=1, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim)
    seen = min(CONTEXT, config.layers[layer].window or CONTEXT)
    return ROWS * seen * one.block_bytes / BLOCK_SIZE


def share_read(config: ModelConfig, name: str) -> float:
    """Return the share of a tensor that a step's rows read: of experts those that they choose."""
    if config.experts is None or "_exps." not in name:
        return 1.0
    return min(1.0, ROWS * config.experts.used / config.experts.count)
