"""Whether two sets of measurements could be one: the Mann-Whitney U test."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

LEAST = 20  # measurements of each set, for the normal approximation to hold


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p-value, by the normal approximation with corrections for ties and continuity.

    Mann and Whitney (1947). Raises ValueError for fewer than `LEAST` measurements.
    """
    n, m = len(first), len(second)
    if min(n, m) < LEAST:
        raise ValueError(f"at least {LEAST} measurements each, got {n} and {m}")
    counts = Counter([*first, *second])
    ranks, below = {}, 0
    for value in sorted(counts):
        ranks[value] = below + (counts[value] + 1) / 2
        below += counts[value]
    u = sum(ranks[value] for value in first) - n * (n + 1) / 2
    total = n + m
    ties = sum(count**3 - count for count in counts.values()) / (total * (total - 1))
    deviation = math.sqrt(n * m / 12 * (total + 1 - ties))
    if not deviation:
        return 1.0  # all measurements are equal
    z = max(0.0, abs(u - n * m / 2) - 0.5) / deviation
    return math.erfc(z / math.sqrt(2))
