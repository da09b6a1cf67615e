"""Counters, gauges and histograms, written out in Prometheus text format 0.0.4.

Where vLLM has a metric of the same meaning its name is used unchanged (`vllm:…`), so that existing
dashboards and load tools read it; everything else is `skerry_…`. Not thread-safe: one event loop
owns a registry. Label values come from closed sets (route templates, methods, codes, served
models), never from what a client sent, so the number of series is bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

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
        """The exposition of this family, without its HELP and TYPE lines."""
        raise NotImplementedError

    def _series(self, values: LabelValues, extra: str = "") -> str:
        pairs = [f'{k}="{_escape(v)}"' for k, v in zip(self.labels, values, strict=True)]
        if extra:
            pairs.append(extra)
        return "{" + ",".join(pairs) + "}" if pairs else ""


class Counter(Metric):
    """A number that only grows. Its name ends in `_total`."""

    kind = "counter"

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, help_text, labels)
        self._values: dict[LabelValues, float] = {} if labels else {(): 0.0}

    def add(self, amount: float, *values: str) -> None:
        self._values[values] = self._values.get(values, 0.0) + amount

    def value(self, *values: str) -> float:
        return self._values.get(values, 0.0)

    def lines(self) -> Iterator[str]:
        for values, number in self._values.items():
            yield f"{self.name}{self._series(values)} {number:.17g}"


class Gauge(Metric):
    """A number that is read when it is asked for."""

    kind = "gauge"

    def __init__(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        super().__init__(name, help_text)
        self._read = read

    def lines(self) -> Iterator[str]:
        yield f"{self.name} {self._read():.17g}"


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

    def observe(self, value: float, *values: str) -> None:
        buckets = self._buckets.get(values)
        if buckets is None:
            buckets = self._buckets[values] = [0] * (len(self.bounds) + 1)
            self._sums[values] = 0.0
        buckets[bisect_left(self.bounds, value)] += 1
        self._sums[values] += value

    def count(self, *values: str) -> int:
        return sum(self._buckets.get(values, ()))

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


# vLLM's buckets, so that quantiles computed from either agree.
TTFT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
    40, 80,
)  # fmt: skip
ITL_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5,
)  # fmt: skip
LATENCY_BOUNDS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 60, 120, 240)


class EdgeMetrics:
    """What an edge counts. `in_progress` is the number of generating requests at this moment."""

    def __init__(self) -> None:
        self.in_progress = 0
        self.http_requests = Counter(
            "skerry_http_requests_total", "Answered requests.", ("route", "method", "status")
        )
        self.generations_failed = Counter(
            "skerry_generation_errors_total",
            "Generations that ended in an error, by code.",
            ("model", "code"),
        )
        self.generations = Counter(
            "vllm:request_success_total", "Finished generations.", ("model_name", "finished_reason")
        )
        self.prompt_tokens = Counter(
            "vllm:prompt_tokens_total", "Prompt tokens, cached ones included.", ("model_name",)
        )
        self.cached_tokens = Counter(
            "skerry_prompt_tokens_cached_total",
            "Prompt tokens found in a prefix cache.",
            ("model_name",),
        )
        self.output_tokens = Counter(
            "vllm:generation_tokens_total", "Generated tokens.", ("model_name",)
        )
        self.time_to_first_token = Histogram(
            "vllm:time_to_first_token_seconds",
            "From the request's header to its first token.",
            TTFT_BOUNDS,
            ("model_name",),
        )
        self.inter_token_latency = Histogram(
            "vllm:inter_token_latency_seconds",
            "Between two steps of one generation.",
            ITL_BOUNDS,
            ("model_name",),
        )
        self.latency = Histogram(
            "vllm:e2e_request_latency_seconds",
            "From the request's header to its last token.",
            LATENCY_BOUNDS,
            ("model_name",),
        )
        self.queue_time = Histogram(
            "vllm:request_queue_time_seconds",
            "Waiting for a place in the engine.",
            LATENCY_BOUNDS,
            ("model_name",),
        )
        self.prefill_time = Histogram(
            "vllm:request_prefill_time_seconds",
            "Engine seconds spent on the prompt.",
            LATENCY_BOUNDS,
            ("model_name",),
        )
        self.decode_time = Histogram(
            "vllm:request_decode_time_seconds",
            "Engine seconds spent on the output.",
            LATENCY_BOUNDS,
            ("model_name",),
        )
        self.running = Gauge(
            "skerry_requests_in_progress",
            "Generating requests at this moment.",
            lambda: self.in_progress,
        )

    def render(self) -> bytes:
        """The whole registry as Prometheus text."""
        out: list[str] = []
        for metric in vars(self).values():
            if isinstance(metric, Metric):
                out.append(f"# HELP {metric.name} {metric.help_text}")
                out.append(f"# TYPE {metric.name} {metric.kind}")
                out.extend(metric.lines())
        return "\n".join(out).encode() + b"\n"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
