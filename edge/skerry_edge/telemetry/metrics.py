"""What an edge counts, for Prometheus.

Where vLLM has a metric of the same meaning its name is used unchanged (`vllm:…`), so that existing
dashboards and load tools read it; everything else is `skerry_…`. `docs/telemetry.md` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from skerry_edge.telemetry.tracing import TraceRecord
from skerry_regions.node.stream_metrics import MODEL, StreamMetrics
from skerry_regions.phases import PhaseName
from skerry_regions.prometheus import (
    CONTENT_TYPE,
    ITL_BOUNDS,
    SHORT_BOUNDS,
    Counter,
    Gauge,
    Histogram,
    LabelValues,
    Metric,
    ReadGauge,
    exposition,
)
from skerry_regions.region.attempts import AttemptRecord

__all__ = ["CONTENT_TYPE", "EdgeMetrics"]


class EdgeMetrics(StreamMetrics):
    """The metrics of one edge.

    `in_progress` is the number of generating requests at this moment. `node_rtts` tells the seconds
    to each node and back, `region_rtts` to each region, `region_queue` those that its own region's
    work waits, and `engines` the metrics of engines in this very process: all are set by whoever
    puts the parts together.
    """

    def __init__(self) -> None:
        super().__init__("the request's header")
        self.in_progress = 0
        self.node_rtts: Callable[[], Mapping[str, float]] = dict
        self.region_rtts: Callable[[], Mapping[str, float]] = dict
        self.region_queue: Callable[[], Mapping[str, float]] = dict
        self.engines: Callable[[], Iterable[Metric]] = tuple
        self.http_requests = Counter(
            "skerry_http_requests_total", "Answered requests.", ("route", "method", "status")
        )
        self.generations_failed = Counter(
            "skerry_generation_errors_total",
            "Generations that ended in an error, by code.",
            ("model_name", "code"),
        )
        self.generations = Counter(
            "vllm:request_success_total", "Finished generations.", ("model_name", "finished_reason")
        )
        self.output_tokens = Counter("vllm:generation_tokens_total", "Generated tokens.", MODEL)
        self.inter_token_latency = Histogram(
            "vllm:inter_token_latency_seconds",
            "Between two steps of one generation.",
            ITL_BOUNDS,
            MODEL,
        )
        self.tokenize_time = Histogram(
            "skerry_tokenize_seconds",
            "Laying a prompt out and making token ids of it.",
            SHORT_BOUNDS,
            MODEL,
        )
        self.route_time = Histogram(
            "skerry_route_seconds", "Choosing the nodes of an attempt.", SHORT_BOUNDS, MODEL
        )
        self.network_time = Histogram(
            "skerry_network_seconds",
            "Of an attempt, what the way to its node and back took.",
            SHORT_BOUNDS,
            MODEL,
        )
        self.attempts = Counter(
            "skerry_attempts_total",
            "Attempts of streams on nodes, by their finish reason or an error's code.",
            ("model_name", "outcome"),
        )
        self.resumes = Counter(
            "skerry_resumes_total",
            "Streams that went on elsewhere in mid-output: exact, or best-effort.",
            ("model_name", "kind"),
        )
        self.batch_attempts = Counter(
            "skerry_batch_attempts_total",
            "Attempts at queued requests: succeeded, failed, dead or deferred.",
            ("model_name", "outcome"),
        )
        self.running = Gauge(
            "skerry_requests_in_progress",
            "Generating requests at this moment.",
            lambda: self.in_progress,
        )
        self.node_rtt = ReadGauge(
            "skerry_node_rtt_seconds", "To a node and back, as last pinged.", ("node",), self._rtts
        )
        self.region_rtt = ReadGauge(
            "skerry_region_rtt_seconds",
            "To the nearest member of a region and back, as last pinged.",
            ("region",),
            lambda: {(region,): seconds for region, seconds in self.region_rtts().items()},
        )
        self.region_queue_time = ReadGauge(
            "skerry_region_queue_seconds",
            "Prefill work that waits at the median node of this edge's region.",
            ("region",),
            lambda: {(region,): seconds for region, seconds in self.region_queue().items()},
        )

        self._phases: dict[PhaseName, Histogram] = {
            "queue": self.queue_time,
            "prefill": self.prefill_time,
            "decode": self.decode_time,
        }

    def attempted(self, model: str, records: Sequence[AttemptRecord]) -> None:
        """Count what became of a stream's attempts, all together once it is over."""
        for record in records:
            self.attempts.add(1, model, record.outcome or "aborted")
            if record.num_before:
                self.resumes.add(1, model, "exact" if record.is_exact else "best-effort")
            self.route_time.observe(record.began - record.asked, model)
            if (network := record.network_seconds) is not None:
                self.network_time.observe(network, model)
            self._handed_over(model, record)
        for name, histogram in self._phases.items():
            if seconds := list(_seconds(records, name)):
                histogram.observe(sum(seconds), model)

    def traced(self, record: TraceRecord) -> None:
        """Count what only a finished request's trace knows."""
        for span in record.spans:
            if span.name == "tokenise" and span.seconds is not None:
                self.tokenize_time.observe(span.seconds, str(span.attributes["model"]))

    def _handed_over(self, model: str, record: AttemptRecord) -> None:
        for timeline in record.timelines.values():
            sent, prefill = timeline.phase("send"), timeline.phase("prefill")
            if sent is not None and prefill is not None and not sent.lost:
                self.handover_time.observe(max(0.0, sent.end - prefill.end), model)

    def _rtts(self) -> dict[LabelValues, float]:
        return {(node,): seconds for node, seconds in self.node_rtts().items()}

    def render(self) -> bytes:
        """The whole registry as Prometheus text."""
        return exposition([*self.families(), *self.engines()])


def _seconds(records: Sequence[AttemptRecord], name: PhaseName) -> Iterator[float]:
    for record in records:
        for timeline in record.timelines.values():
            if (phase := timeline.phase(name)) is not None:
                yield phase.seconds
