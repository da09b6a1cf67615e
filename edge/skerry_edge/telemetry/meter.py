"""What the metrics learn of one choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skerry_edge.telemetry.metrics import EdgeMetrics
from skerry_regions.region.attempts import AttemptRecord
from skerry_regions.wire.protocol import PhaseUsage

Clock = Callable[[], float]  # seconds, monotonic
ABORT = "abort"  # how a choice ended that neither finished nor failed


class Meter:
    """What the metrics learn of one choice, whichever way it ends."""

    def __init__(self, metrics: EdgeMetrics, model: str, started: float, clock: Clock) -> None:
        self._metrics = metrics
        self._model = model
        self._started = started
        self._clock = clock
        self._last_step: float | None = None
        self.outcome = ABORT

    def step(self) -> None:
        now = self._clock()
        if self._last_step is None:
            self._metrics.time_to_first_token.observe(now - self._started, self._model)
        else:
            self._metrics.inter_token_latency.observe(now - self._last_step, self._model)
        self._last_step = now

    def cost(self, usage: PhaseUsage) -> None:
        self._metrics.cached_tokens.add(usage.cached_tokens, self._model)
        self._metrics.prompt_lengths.observe(usage.prompt_tokens, self._model)

    def attempted(self, records: Sequence[AttemptRecord]) -> None:
        self._metrics.attempted(self._model, records)

    def finished(self, reason: str) -> None:
        self.outcome = reason
        self._metrics.generations.add(1, self._model, reason)
        self._metrics.latency.observe(self._clock() - self._started, self._model)

    def failed(self, code: str) -> None:
        self.outcome = code
        self._metrics.generations_failed.add(1, self._model, code)

    def ended(self, num_tokens: int) -> None:
        self._metrics.output_tokens.add(num_tokens, self._model)
        self._metrics.output_lengths.observe(num_tokens, self._model)
        if self.outcome == ABORT:
            self._metrics.generations.add(1, self._model, ABORT)
