"""Where a sequence's last tokens occurred before (prompt lookup, Saxena, 2023)."""

from __future__ import annotations

import numpy as np

from skerry_core.batch import Int32

MIN_MATCH, MAX_MATCH = 3, 8  # tokens that must, and that may at most, have occurred before

# Of the filter of runs of `MIN_MATCH` tokens: bytes at least, and per token.
_LEAST_SEEN, _SEEN_PER_TOKEN = 1 << 16, 8
_FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)  # odd, of a multiplicative hash
_HASH_SHIFT = 7


def find_match(tokens: Int32) -> tuple[int, int]:
    """Return the place after an earlier occurrence of the last tokens i32[n], and how many they
    are.

    The longest match up to `MAX_MATCH` tokens, the latest of several; (0, 0) when it is shorter
    than `MIN_MATCH`. Microseconds for a few thousand tokens, without an index to keep.
    """
    last = len(tokens) - 1
    places = np.flatnonzero(tokens[:last] == tokens[last])
    length = 1
    while len(places) and length < MAX_MATCH:
        inside = places[np.searchsorted(places, length) :]
        longer = inside[tokens[inside - length] == tokens[last - length]]
        if not len(longer):
            break
        places, length = longer, length + 1
    if length < MIN_MATCH or not len(places):
        return 0, 0
    return int(places[-1]) + 1, length


def followers(tokens: Int32, place: int, count: int) -> Int32:
    """Return the `count` tokens from `place` on, over and over when they end: a loop is gone
    through."""
    return np.resize(tokens[place:], count)


def seen_runs(tokens: Int32, capacity: int) -> bytearray:
    """Return marks of all runs of `MIN_MATCH` tokens of i32[n]; their number is a power of two."""
    size = max(_LEAST_SEEN, 1 << (_SEEN_PER_TOKEN * capacity - 1).bit_length())
    seen = np.zeros(size, np.uint8)
    wide = tokens.astype(np.uint64)
    count = max(0, len(wide) - MIN_MATCH + 1)
    runs = sum(wide[i : i + count] * np.uint64(factor) for i, factor in enumerate(_FACTORS))
    seen[(runs >> np.uint64(_HASH_SHIFT)) & np.uint64(size - 1)] = 1
    return bytearray(seen)


def note_run(seen: bytearray, last: Int32) -> bool:
    """Mark the last tokens i32[`MIN_MATCH`]; return whether that run was marked, most likely by
    itself."""
    first, second, third = last.tolist()
    run = first * _FACTORS[0] + second * _FACTORS[1] + third * _FACTORS[2]
    place = (run >> _HASH_SHIFT) & (len(seen) - 1)
    was_seen = bool(seen[place])
    seen[place] = 1
    return was_seen
