"""Response rate limiting, as `skerry_dns.server.response_rate` does it.

The table is shared by all workers without a lock: of two answers counted at the same moment
one may be forgotten.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skerry_dns.fast.compiled import Floats, Int64s, UInt64s, compiled, wide
from skerry_dns.server.response_limits import ResponseLimits
from skerry_dns.server.response_rate import SLIP, SLOTS, WINDOW

SEND, CUT, DROP = 0, 1, 2


class Rate(NamedTuple):
    """Token buckets."""

    per_second: Floats  # one number
    balance: Floats
    updated: Floats  # Unix seconds
    limited: Int64s  # answers in a row that were not sent whole


def make_rate(per_second: float) -> Rate:
    """Make a rate, its buckets full."""
    return Rate(
        np.array([per_second], np.float64),
        np.full(SLOTS, per_second, np.float64),
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


class FastLimits(NamedTuple):
    """As `skerry_dns.server.response_limits` has them. Networks are /24 or /56, see `network_bits`
    of `skerry_regions.geo.shares`."""

    responses: Rate  # of one kind
    subnets: Rate  # of all that carry a client subnet
    exempt4: UInt64s  # first and last address of each network, in order, as their first 64 bits …
    exempt6: UInt64s  # … by family of the sender


def make_limits(limits: ResponseLimits) -> FastLimits:
    """Return those of a server, with full buckets."""
    exempt = {
        version: np.array(
            [end << 32 if version == 4 else end >> 64 for each in ranges for end in each], np.uint64
        )
        for version, ranges in limits.exempt.items()
    }
    return FastLimits(
        make_rate(limits.responses.per_second),
        make_rate(limits.subnets.per_second),
        exempt[4],
        exempt[6],
    )


@compiled
def judge_answer(
    limits: FastLimits,
    network: np.uint64,
    sender: np.uint64,
    is_ipv4: bool,
    subnet: np.uint64,
    kind: np.uint64,
    now: float,
) -> int:
    """Count one answer to a sender (its first 64 bits) in a `network`; `subnet` is that of its
    client, 0 for none."""
    if _is_within(limits.exempt4 if is_ipv4 else limits.exempt6, sender):
        return SEND
    if subnet == 0:
        return judge(limits.responses, network, kind, now)
    mixed = kind ^ (subnet * np.uint64(0xFF51AFD7ED558CCD))
    verdict = judge(limits.responses, network, mixed, now)
    return max(verdict, judge(limits.subnets, network, np.uint64(0), now))


@compiled
def _is_within(ranges: UInt64s, address: np.uint64) -> bool:
    low, top = 0, ranges.size // 2
    while low < top:
        middle = (low + top) // 2
        if ranges[2 * middle + 1] < address:
            low = middle + 1
        else:
            top = middle
    return low < ranges.size // 2 and ranges[2 * low] <= address
