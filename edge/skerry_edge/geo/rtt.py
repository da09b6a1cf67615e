"""Round trips between places, learnt from single measurements."""

from __future__ import annotations

MIN_SAMPLES = 20  # before a measurement counts for more than distance
NEWEST = 0.02  # weight of a new sample, once there are many


class MeasuredRtt:
    """Means by (source, region): of all samples at first, then one that follows the newest."""

    def __init__(self) -> None:
        self._means: dict[tuple[str, str], tuple[int, float]] = {}  # samples, seconds

    def add(self, source: str, region: str, seconds: float) -> None:
        """Count one round trip from `source` to `region`."""
        count, mean = self._means.get((source, region), (0, 0.0))
        weight = max(1.0 / (count + 1), NEWEST)
        self._means[source, region] = count + 1, mean + weight * (seconds - mean)

    def of(self, source: str) -> dict[str, float]:
        """Seconds to each region that enough is known of."""
        return {
            region: mean
            for (start, region), (count, mean) in self._means.items()
            if start == source and count >= MIN_SAMPLES
        }
