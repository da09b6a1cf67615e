"""What an edge counts, for Prometheus.

Where vLLM has a metric of the same meaning its name is used unchanged (`vllm:…`), so that existing
dashboards and load tools read it; everything else is `skerry_…`. `docs/telemetry.md` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import product
from pathlib import Path

from skerry.errors import ModelNotFound, Overloaded
from skerry_regions.node.stream_metrics import MODEL, StreamMetrics
from skerry_regions.process.host_metrics import ReadEnds, host_metrics
from skerry_regions.prometheus import (
    CONTENT_TYPE,
    ITL_BOUNDS,
    SHORT_BOUNDS,
    Counter,
    Histogram,
    LabelValues,
    Level,
    Metric,
    ReadGauge,
    exposition,
)

SHARED_OUTCOMES = ("hit", "miss", "damaged", "error", "skipped")

__all__ = ["CONTENT_TYPE", "EdgeMetrics"]


class EdgeMetrics(StreamMetrics):
    """The metrics of one edge.

    `running` is the number of generating requests at this moment.
    """

    def __init__(
        self,
        *,
        models: Collection[str] = (),
        node_rtts: Callable[[], Mapping[str, float]] = dict,
        region_rtts: Callable[[], Mapping[str, float]] = dict,
        region_queue: Callable[[], Mapping[str, float]] = dict,
        model_nodes: Callable[[], Mapping[tuple[str, str], int]] = dict,
        engines: Callable[[], Iterable[Metric]] = tuple,
        home: Path | None = None,
        ends: ReadEnds = dict,
    ) -> None:
        """Models that the edge serves; seconds to each node and back, and to each region; seconds
        that work waits in the edge's own region; nodes by model and state; the metrics of engines
        in this very process; the folder whose disk is watched; and when the edge's certificate
        ends."""
        super().__init__("the request's header")
        self._engines = engines
        self._host = host_metrics(home, ends)
        self.http_requests = Counter(
            "skerry_http_requests_total", "Answered requests.", ("route", "method", "status")
        )
        self.generations_failed = Counter(
            "skerry_generation_errors_total",
            "Generations that ended in an error, by code.",
            ("model_name", "code"),
            known=lambda: [("", ModelNotFound.code), *product(models, (Overloaded.code,))],
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
            known=lambda: product(models, ("exact", "best-effort")),
        )
        self.batch_attempts = Counter(
            "skerry_batch_attempts_total",
            "Attempts at queued requests: succeeded, failed, dead or deferred.",
            ("model_name", "outcome"),
        )
        self.answers = Counter(
            "skerry_shared_answers_total",
            "Look-ups at a response cache that several edges share.",
            ("outcome",),
            known=lambda: [(outcome,) for outcome in SHARED_OUTCOMES],
        )
        self.running = Level("skerry_requests_in_progress", "Generating requests at this moment.")
        self.sockets = Level("skerry_websockets", "WebSockets that are open.")
        self.socket_ends = Counter(
            "skerry_websocket_closes_total",
            "WebSockets that were closed, by the code that either side gave.",
            ("code",),
        )
        self.node_rtt = ReadGauge(
            "skerry_node_rtt_seconds",
            "To a node and back, as last pinged.",
            ("node",),
            _by_label(node_rtts),
        )
        self.region_rtt = ReadGauge(
            "skerry_region_rtt_seconds",
            "To the nearest member of a region and back, as last pinged.",
            ("region",),
            _by_label(region_rtts),
        )
        self.region_queue_time = ReadGauge(
            "skerry_region_queue_seconds",
            "Prefill work that waits at the median node of this edge's region.",
            ("region",),
            _by_label(region_queue),
        )
        self.model_nodes = ReadGauge(
            "skerry_model_nodes",
            "Nodes of a model that the edge serves or saw: up, or away while a lease runs.",
            ("model_name", "state"),
            lambda: {key: float(number) for key, number in model_nodes().items()},
        )

    def families(self) -> list[Metric]:
        """Return all of them, for an exposition."""
        return [*super().families(), *self._host]

    def render(self) -> bytes:
        """Return the whole registry as Prometheus text."""
        return exposition([*self.families(), *self._engines()])


def _by_label(
    read: Callable[[], Mapping[str, float]],
) -> Callable[[], Mapping[LabelValues, float]]:
    return lambda: {(label,): value for label, value in read().items()}
