"""Response rate limiting, as `skerry_dns.server.response_rate` does it.

The table is shared by all workers and nobody locks it: of two answers counted at the same moment
one may be forgotten.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skerry_dns.fast.compiled import Floats, Int64s, compiled, wide
from skerry_dns.server.response_rate import SLIP, SLOTS, WINDOW

SEND, CUT, DROP = 0, 1, 2


class Rate(NamedTuple):
    """Token buckets."""

    per_second: Floats  # one number
    balance: Floats
    updated: Floats  # Unix seconds
    limited: Int64s  # answers in a row that were not sent whole


def make_rate(per_second: float) -> Rate:
    """Full buckets."""
    return Rate(
        np.array([per_second]),
        np.full(SLOTS, per_second),
        np.zeros(SLOTS),
        np.zeros(SLOTS, np.int64),
    )


@compiled
def judge(rate: Rate, network: np.uint64, kind: np.uint64, now: float) -> int:
    """Count one answer of a `kind` to a `network` (bits of its /24 or /56)."""
    mixed = (network * np.uint64(0x9E3779B97F4A7C15) ^ kind) * np.uint64(0xD6E8FEB86659FD93)
    slot = wide(mixed >> np.uint64(32)) & (rate.balance.size - 1)  # a power of two
    per_second = rate.per_second[0]
    earned = (now - rate.updated[slot]) * per_second
    balance = min(rate.balance[slot] + earned, per_second) - 1.0
    rate.balance[slot] = max(balance, -WINDOW * per_second)
    rate.updated[slot] = now
    if balance >= 0.0:
        rate.limited[slot] = 0
        return SEND
    rate.limited[slot] += 1
    return CUT if rate.limited[slot] % SLIP == 0 else DROP
