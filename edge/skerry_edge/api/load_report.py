"""What an edge reports of itself in the registry: latencies of the last minute, and who waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from skerry_edge.gate.waiting_room import WaitingRoom
from skerry_edge.telemetry.metrics import EdgeMetrics
from skerry_regions.prometheus import Histogram, LabelValues
from skerry_regions.registry import Member

WINDOW_SECONDS = 60.0
LOOK_SECONDS = 5.0  # between two readings that are kept
QUANTILE = 0.95

Counts = dict[LabelValues, tuple[int, ...]]


class RecentLatency:
    """The p95 of a histogram's last minute, by its first label. `clock` gives seconds."""

    def __init__(self, histogram: Histogram, clock: Callable[[], float]) -> None:
        self._histogram = histogram
        self._clock = clock
        self._readings: deque[tuple[float, Counts]] = deque([(clock(), {})])

    def p95(self) -> dict[str, float]:
        """Return seconds, as fine as the buckets are; without labels that saw nothing."""
        now, counts = self._clock(), self._histogram.buckets()
        while len(self._readings) > 1 and now - self._readings[1][0] >= WINDOW_SECONDS:
            self._readings.popleft()
        before = self._readings[0][1]
        if now - self._readings[-1][0] >= LOOK_SECONDS:
            self._readings.append((now, counts))
        found = {}
        for values, buckets in counts.items():
            earlier = before.get(values, (0,) * len(buckets))
            recent = [count - old for count, old in zip(buckets, earlier, strict=True)]
            if sum(recent):
                found[values[0]] = _quantile(self._histogram.bounds, recent)
        return found


def _quantile(bounds: Sequence[float], counts: Sequence[int]) -> float:
    """Interpolate within its bucket; beyond the last bound return that bound."""
    rank, below = QUANTILE * sum(counts), 0
    for i, count in enumerate(counts[: len(bounds)]):
        if count and below + count >= rank:
            least = bounds[i - 1] if i else 0.0
            return least + (bounds[i] - least) * (rank - below) / count
        below += count
    return bounds[-1]


class EdgePulse:
    """What changes of an edge's record from one renewal to the next."""

    def __init__(
        self, metrics: EdgeMetrics, waiting: WaitingRoom | None, clock: Callable[[], float]
    ) -> None:
        self._ttft = RecentLatency(metrics.time_to_first_token, clock)
        self._itl = RecentLatency(metrics.inter_token_latency, clock)
        self._waiting = waiting

    def of(self, member: Member) -> Member:
        held = {} if self._waiting is None else self._waiting.held
        return replace(member, held=held, ttft=self._ttft.p95(), itl=self._itl.p95())
