"""Sharing clients among regions by weight, and draining a region by percent.

Clients are divided by their network into `SLOTS` equal slots, and a slot always gets the same
region: its address families agree, and what a region has cached of a client is found again. So
shares are exact in slots, and as even among clients as their networks are.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence

from skerry_regions.geo.networks import Address
from skerry_regions.geo.ranking import (
    Candidates,
    ClientOrigin,
    Filter,
    RegionCandidate,
    seconds_to,
)

SLOTS = 100
FAMILY_BIT = 1 << 63  # set for IPv6
MULTIPLIER = 0x9E3779B97F4A7C15  # 2^64 by the golden ratio (Fibonacci hashing)
MASK = (1 << 64) - 1


def network_bits(address: Address) -> int:
    """Return the /24 or /56 around an address as one number of 64 bits."""
    if address.version == 4:
        return int(address) >> 8
    return int(address) >> 72 | FAMILY_BIT


def slot_of(address: Address) -> int:
    """Return the slot of an address, which is that of its whole network."""
    return ((network_bits(address) * MULTIPLIER & MASK) >> 32) % SLOTS


def balanced(spread: float, slot: int) -> Filter:
    """Return a filter that puts one of the nearest regions first, by weight, for clients of a slot.

    Regions within `spread` seconds of the nearest are equally near. Expects them nearest first.
    """

    def filtered(candidates: Candidates, client: ClientOrigin) -> Candidates:
        count = num_nearest(candidates, client, spread)
        near = sorted(candidates[:count], key=lambda each: each.region.name)
        if count < 2 or not any(each.weight for each in near):
            return candidates
        chosen = _picked(near, slot)
        others = [each for each in near if each is not chosen]
        others.sort(key=lambda each: _draw(each, slot))
        return [chosen, *others, *candidates[count:]]

    return filtered


def num_nearest(candidates: Candidates, client: ClientOrigin, spread: float) -> int:
    """Return how many regions at the head of a list, nearest first, are equally near."""
    times = [seconds_to(each.region, client) for each in candidates]
    return sum(each <= times[0] + spread for each in times)


def is_draining(region: str, drain: int, slot: int) -> bool:
    """Return whether clients of a slot are among the `drain` percent that a region gives away. Of a
    larger percentage they still are."""
    return _positions(region)[slot] < drain * SLOTS // 100


def _picked(near: Sequence[RegionCandidate], slot: int) -> RegionCandidate:
    """Divide the slots among regions in proportion to their weights."""
    left = (_positions("")[slot] + 0.5) / SLOTS * sum(each.weight for each in near)
    for each in near:
        left -= each.weight
        if left < 0.0:
            return each
    return near[-1]


def _draw(candidate: RegionCandidate, slot: int) -> float:
    """Draw from an exponential race: the order is random, heavier regions tend to come first."""
    if not candidate.weight:
        return math.inf
    value = int.from_bytes(_hashed(candidate.region.name, slot)[:8], "big")
    return -math.log((value + 1) / (MASK + 1)) / candidate.weight


@functools.lru_cache(maxsize=1024)
def _positions(name: str) -> tuple[int, ...]:
    """Return where each slot stands in an order of all slots, which is another for each name."""
    order = sorted(range(SLOTS), key=lambda slot: _hashed(name, slot))
    return tuple(order.index(slot) for slot in range(SLOTS))


def _hashed(name: str, slot: int) -> bytes:
    return hashlib.blake2b(f"{name}/{slot}".encode(), digest_size=16).digest()
