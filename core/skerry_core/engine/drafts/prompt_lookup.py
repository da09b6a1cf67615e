"""Where a sequence's last tokens occurred before (prompt lookup, Saxena, 2023)."""

from __future__ import annotations

import numpy as np

from skerry_core.batch import Int32

MIN_MATCH, MAX_MATCH = 3, 8  # tokens that must, and that may at most, have occurred before


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
