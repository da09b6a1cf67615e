"""Round trips between places, learnt from single measurements."""

from __future__ import annotations

import math
from collections import OrderedDict

MIN_SAMPLES = 20  # before a measurement counts for more than distance
NEWEST = 0.02  # weight of a new sample, once there are many
MOST = 1_000_000
SHORTEST = 1e-6  # seconds: a clock that shows nothing


class MeasuredRtt:
    """Geometric means by (source, region): of all samples at first, then one that follows the
    newest. Round trips are never much shorter than usual, and now and then several times as long:
    an arithmetic mean would follow those."""

    def __init__(self, most: int = MOST) -> None:
        """Beyond `most` pairs the one that was measured longest ago is forgotten."""
        self._most = most
        self._means: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        """Samples, and the mean logarithm."""

    def add(self, source: str, region: str, seconds: float) -> None:
        """Count one round trip from `source` to `region`."""
        count, mean = self._means.get((source, region), (0, 0.0))
        weight = max(1.0 / (count + 1), NEWEST)
        mean += weight * (math.log(max(seconds, SHORTEST)) - mean)
        self._means[source, region] = count + 1, mean
        self._means.move_to_end((source, region))
        if len(self._means) > self._most:
            self._means.popitem(last=False)

    def to(self, region: str) -> dict[str, float]:
        """Return seconds to a region, by source, where enough is known."""
        return {
            source: math.exp(mean)
            for (source, end), (count, mean) in self._means.items()
            if end == region and count >= MIN_SAMPLES
        }

    def of(self, source: str) -> dict[str, float]:
        """Return seconds to each region that enough is known of."""
        return {
            region: math.exp(mean)
            for (start, region), (count, mean) in self._means.items()
            if start == source and count >= MIN_SAMPLES
        }
