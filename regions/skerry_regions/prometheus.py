"""Counters, gauges and histograms, written out in Prometheus text format 0.0.4.

Not thread-safe: one event loop owns a registry. Label values come from closed sets (route
templates, codes, served models, nodes that are there), never from what a client sent, so the number
of series is bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LabelValues = tuple[str, ...]


class Metric:
    """A named family of series, one per combination of label values."""

    kind = "untyped"

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = tuple(labels)

    def lines(self) -> Iterator[str]:
        """Return the exposition of this family, without its HELP and TYPE lines."""
        raise NotImplementedError

    def _series(self, values: LabelValues, extra: str = "") -> str:
        pairs = [f'{k}="{_escape(v)}"' for k, v in zip(self.labels, values, strict=True)]
        if extra:
            pairs.append(extra)
        return "{" + ",".join(pairs) + "}" if pairs else ""


class Counter(Metric):
    """A number that only grows. Its name ends in `_total`."""

    kind = "counter"

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str] = (),
        known: Callable[[], Iterable[LabelValues]] = tuple,
    ) -> None:
        """`known` are the label values that are known before anything is counted: their series are
        there from the start, since Prometheus sees no increase in one that appears at 2."""
        super().__init__(name, help_text, labels)
        self._values: dict[LabelValues, float] = {} if labels else {(): 0.0}
        self._known = known

    def add(self, amount: float, *values: str) -> None:
        self._values[values] = self._values.get(values, 0.0) + amount

    def value(self, *values: str) -> float:
        return self._values.get(values, 0.0)

    def lines(self) -> Iterator[str]:
        for values, number in (dict.fromkeys(self._known(), 0.0) | self._values).items():
            yield f"{self.name}{self._series(values)} {number:.17g}"


class Level(Metric):
    """One number without labels that goes up and down."""

    kind = "gauge"

    def __init__(self, name: str, help_text: str) -> None:
        super().__init__(name, help_text, ())
        self._value = 0

    @property
    def value(self) -> int:
        """Return the number now."""
        return self._value

    def change(self, by: int) -> None:
        """Add to it, or take from it."""
        self._value += by

    def lines(self) -> Iterator[str]:
        """See `Metric`."""
        yield f"{self.name} {self._value}"


class Reading(Metric):
    """Numbers that somebody else keeps, read when they are requested."""

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str],
        read: Callable[[], Mapping[LabelValues, float]],
    ) -> None:
        super().__init__(name, help_text, labels)
        self._read = read

    def lines(self) -> Iterator[str]:
        for values, number in self._read().items():
            yield f"{self.name}{self._series(values)} {number:.17g}"


class ReadGauge(Reading):
    """Numbers that go up and down."""

    kind = "gauge"


class ReadCounter(Reading):
    """Numbers that only grow. The name ends in `_total`."""

    kind = "counter"


class Gauge(ReadGauge):
    """One number without labels, read when it is requested."""

    def __init__(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        super().__init__(name, help_text, (), lambda: {(): read()})


class Histogram(Metric):
    """Counts per bucket; `bounds` are the inclusive upper bounds, ascending, without +Inf."""

    kind = "histogram"

    def __init__(
        self, name: str, help_text: str, bounds: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        super().__init__(name, help_text, labels)
        self.bounds = tuple(bounds)
        self._buckets: dict[LabelValues, list[int]] = {}
        self._sums: dict[LabelValues, float] = {}
        if not labels:  # else the first time would look like no scrape before it
            self._buckets[()], self._sums[()] = [0] * (len(self.bounds) + 1), 0.0

    def observe(self, value: float, *values: str) -> None:
        buckets = self._buckets.get(values)
        if buckets is None:
            buckets = self._buckets[values] = [0] * (len(self.bounds) + 1)
            self._sums[values] = 0.0
        buckets[bisect_left(self.bounds, value)] += 1
        self._sums[values] += value

    def count(self, *values: str) -> int:
        return sum(self._buckets.get(values, ()))

    def buckets(self) -> dict[LabelValues, tuple[int, ...]]:
        """Return counts so far, by label values: of each bound, and above all of them."""
        return {values: tuple(counts) for values, counts in self._buckets.items()}

    def lines(self) -> Iterator[str]:
        for values, buckets in self._buckets.items():
            total = 0
            for bound, count in zip((*self.bounds, None), buckets, strict=True):
                total += count
                edge = "+Inf" if bound is None else f"{bound:g}"
                le = f'le="{edge}"'
                yield f"{self.name}_bucket{self._series(values, le)} {total}"
            yield f"{self.name}_sum{self._series(values)} {self._sums[values]:.17g}"
            yield f"{self.name}_count{self._series(values)} {total}"


def exposition(metrics: Iterable[Metric]) -> bytes:
    """Write Prometheus text. A name comes once: of two families of one name the first."""
    told: set[str] = set()
    out: list[str] = []
    for metric in metrics:
        if metric.name not in told:
            told.add(metric.name)
            out.append(f"# HELP {metric.name} {_escape_help(metric.help_text)}")
            out.append(f"# TYPE {metric.name} {metric.kind}")
            out.extend(metric.lines())
    return "\n".join(out).encode() + b"\n"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


# vLLM's buckets, with finer ones below, so that quantiles computed from either agree.
TTFT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
    40, 80, 160, 640,
)  # fmt: skip
ITL_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5,
    7.5, 10, 20, 40, 80,
)  # fmt: skip
LATENCY_BOUNDS = (
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480,
)  # fmt: skip
SHORT_BOUNDS = (  # of what takes milliseconds: routing, tokenising, networks, hand-overs
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
)  # fmt: skip
TOKEN_BOUNDS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))[:17]  # 1, 2, 5, … 200,000
