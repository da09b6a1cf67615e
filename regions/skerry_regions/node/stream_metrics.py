"""What edges and nodes count of a stream under the same names, each from where it stands."""

from __future__ import annotations

from skerry_regions.prometheus import (
    LATENCY_BOUNDS,
    SHORT_BOUNDS,
    TOKEN_BOUNDS,
    TTFT_BOUNDS,
    Counter,
    Histogram,
    Metric,
)

MODEL = ("model_name",)
LATE_BOUNDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class StreamMetrics:
    """`begin` says, for people, where a stream's time begins."""

    def __init__(self, begin: str) -> None:
        self.prompt_tokens = Counter(
            "vllm:prompt_tokens_total", "Prompt tokens, cached ones included.", MODEL
        )
        self.cached_tokens = Counter(
            "vllm:prompt_tokens_cached_total", "Prompt tokens found in a prefix cache.", MODEL
        )
        self.prompt_lengths = Histogram(
            "vllm:request_prompt_tokens", "Tokens of one prompt.", TOKEN_BOUNDS, MODEL
        )
        self.output_lengths = Histogram(
            "vllm:request_generation_tokens", "Tokens of one output.", TOKEN_BOUNDS, MODEL
        )
        self.time_to_first_token = Histogram(
            "vllm:time_to_first_token_seconds",
            f"From {begin} to its first token.",
            TTFT_BOUNDS,
            MODEL,
        )
        self.latency = Histogram(
            "vllm:e2e_request_latency_seconds",
            f"From {begin} to its last token.",
            LATENCY_BOUNDS,
            MODEL,
        )
        self.queue_time = Histogram(
            "vllm:request_queue_time_seconds",
            "Waiting for a place in an engine.",
            LATENCY_BOUNDS,
            MODEL,
        )
        self.prefill_time = Histogram(
            "vllm:request_prefill_time_seconds",
            "From the place in the engine to the first token.",
            LATENCY_BOUNDS,
            MODEL,
        )
        self.decode_time = Histogram(
            "vllm:request_decode_time_seconds",
            "From the first token to the last.",
            LATENCY_BOUNDS,
            MODEL,
        )
        self.handover_time = Histogram(
            "skerry_handover_seconds",
            "From a prompt's last chunk to the decode node having all its KV.",
            SHORT_BOUNDS,
            MODEL,
        )
        self.loop_late = Histogram(
            "skerry_event_loop_late_seconds",
            "Times that the event loop was late by a quarter of a second or more, by how much.",
            LATE_BOUNDS,
        )

    def families(self) -> list[Metric]:
        """Return all of them, for an exposition."""
        return [metric for metric in vars(self).values() if isinstance(metric, Metric)]
