"""What a node counts, for Prometheus: its engines' figures, and the phases of finished streams.

Names and meanings are those of `skerry_edge.telemetry.metrics`, seen from the node: a stream begins
when it reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

from skerry_core.engine.figures import Statistics
from skerry_regions.node.stream_metrics import MODEL, StreamMetrics
from skerry_regions.phases import Phase
from skerry_regions.prometheus import (
    ITL_BOUNDS,
    SHORT_BOUNDS,
    Counter,
    Histogram,
    LabelValues,
    Metric,
    ReadCounter,
    ReadGauge,
)

GAUGES: tuple[tuple[str, str, Callable[[Statistics], float]], ...] = (
    ("vllm:num_requests_running", "Sequences that hold KV blocks.", lambda s: s.running),
    ("vllm:num_requests_waiting", "Sequences queued.", lambda s: s.waiting),
    (
        "vllm:kv_cache_usage_perc",
        "Share of KV blocks in use, 0 to 1.",
        lambda s: s.blocks_used / s.blocks,
    ),
    ("skerry_kv_blocks", "KV blocks there are.", lambda s: s.blocks),
    ("skerry_kv_blocks_cached", "Idle KV blocks that hold a prefix.", lambda s: s.blocks_cached),
    ("skerry_kv_blocks_filed", "KV blocks in the file tier.", lambda s: s.blocks_filed),
)
COUNTERS: tuple[tuple[str, str, Callable[[Statistics], float]], ...] = (
    ("vllm:generation_tokens_total", "Tokens made.", lambda s: s.output_tokens),
    ("vllm:num_preemptions_total", "Sequences preempted.", lambda s: s.preemptions),
    (
        "vllm:prefix_cache_queries_total",
        "Tokens looked for in the prefix cache.",
        lambda s: s.cache_query_tokens,
    ),
    (
        "vllm:prefix_cache_hits_total",
        "Tokens found in the prefix cache.",
        lambda s: s.cache_hit_tokens,
    ),
    ("skerry_engine_steps_total", "Engine steps.", lambda s: s.steps),
    ("skerry_engine_busy_seconds_total", "Seconds spent in steps.", lambda s: s.busy_seconds),
    (
        "skerry_engine_computed_tokens_total",
        "Tokens that ran through the model.",
        lambda s: s.computed_tokens,
    ),
    (
        "skerry_engine_prompt_tokens_total",
        "Prompt tokens that ran through the model.",
        lambda s: s.prompt_tokens,
    ),
    (
        "skerry_engine_attended_pairs_total",
        "Pairs of a prompt token and one that it attends to.",
        lambda s: s.attended_pairs,
    ),
    (
        "skerry_engine_stream_steps_total",
        "Decoding sequences, summed over steps.",
        lambda s: s.stream_steps,
    ),
    (
        "skerry_engine_context_steps_total",
        "Tokens that decoding sequences attended to, summed over steps.",
        lambda s: s.context_steps,
    ),
    (
        "vllm:spec_decode_num_draft_tokens_total",
        "Tokens drafted by speculation, and run.",
        lambda s: s.drafted_tokens,
    ),
    (
        "vllm:spec_decode_num_accepted_tokens_total",
        "Drafted tokens that were right.",
        lambda s: s.accepted_tokens,
    ),
    (
        "skerry_kv_blocks_restored_total",
        "KV blocks read back from the file tier.",
        lambda s: s.restored_blocks,
    ),
)


class NodeMetrics(StreamMetrics):
    """The metrics of one node. `statistics` returns its engines' figures of now, by model."""

    def __init__(self, statistics: Callable[[], Mapping[str, Statistics]]) -> None:
        super().__init__("the stream's arrival")
        self._statistics = statistics
        self.streams = Counter(
            "vllm:request_success_total", "Finished streams.", ("model_name", "finished_reason")
        )
        self.failures = Counter(
            "skerry_stream_errors_total", "Streams that failed, by code.", ("model_name", "code")
        )
        self.closing_unknown = Counter(
            "skerry_closing_unknown_total",
            "Streams under a grammar without a known way to a whole output: max_tokens may cut it.",
            MODEL,
        )
        self.time_per_token = Histogram(
            "vllm:request_time_per_output_token_seconds",
            "Of one stream, decode seconds per token.",
            ITL_BOUNDS,
            MODEL,
        )
        self.receive_time = Histogram(
            "skerry_handover_wait_seconds",
            "Of a decode node, waiting for the KV of a stream.",
            SHORT_BOUNDS,
            MODEL,
        )
        self.handovers = Counter(
            "skerry_handovers_total",
            "KV hand-overs of this node by direction (send, receive) and outcome (whole, lost).",
            ("model_name", "direction", "outcome"),
            known=lambda: product(statistics(), ("send", "receive"), ("whole", "lost")),
        )
        self.handover_bytes = Counter(
            "skerry_handover_bytes_total", "KV handed over.", ("model_name", "direction")
        )
        self.readings: list[Metric] = [
            *(ReadGauge(name, text, MODEL, self._reader(read)) for name, text, read in GAUGES),
            *(ReadCounter(name, text, MODEL, self._reader(read)) for name, text, read in COUNTERS),
        ]

    def families(self) -> list[Metric]:
        return [*super().families(), *self.readings]

    def handed_over(self, model: str, phase: Phase, direction: str) -> None:
        """Count a hand-over that went over, whole or not."""
        self.handovers.add(1, model, direction, "lost" if phase.lost else "whole")
        self.handover_bytes.add(phase.bytes, model, direction)

    def _reader(
        self, read: Callable[[Statistics], float]
    ) -> Callable[[], Mapping[LabelValues, float]]:
        return lambda: {(model,): read(figures) for model, figures in self._statistics().items()}
