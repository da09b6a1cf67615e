"""Round trips between places, learnt from single measurements."""

from __future__ import annotations

import math

MIN_SAMPLES = 20  # before a measurement counts for more than distance
NEWEST = 0.02  # weight of a new sample, once there are many
SHORTEST = 1e-6  # seconds: a clock that tells nothing


class MeasuredRtt:
    """Geometric means by (source, region): of all samples at first, then one that follows the
    newest. Round trips are never much shorter than usual, and now and then several times as long:
    an arithmetic mean would follow those."""

    def __init__(self) -> None:
        self._means: dict[tuple[str, str], tuple[int, float]] = {}  # samples, mean logarithm

    def add(self, source: str, region: str, seconds: float) -> None:
        """Count one round trip from `source` to `region`."""
        count, mean = self._means.get((source, region), (0, 0.0))
        weight = max(1.0 / (count + 1), NEWEST)
        mean += weight * (math.log(max(seconds, SHORTEST)) - mean)
        self._means[source, region] = count + 1, mean

    def of(self, source: str) -> dict[str, float]:
        """Seconds to each region that enough is known of."""
        return {
            region: math.exp(mean)
            for (start, region), (count, mean) in self._means.items()
            if start == source and count >= MIN_SAMPLES
        }
