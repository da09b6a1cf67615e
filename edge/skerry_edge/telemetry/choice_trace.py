"""What a trace learns of one choice of a request: where its stream ran, and how that went."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from skerry.errors import SkerryError
from skerry_edge.telemetry.attempt_spans import add_attempts
from skerry_edge.telemetry.tracing import Attributes, Trace
from skerry_regions.region.attempts import AttemptRecord, Traced
from skerry_regions.trace_context import TraceContext
from skerry_regions.wire.client import TokenStream


class ChoiceTrace:
    """One span of a trace, from the region being asked to the last token; nothing without one."""

    def __init__(self, trace: Trace | None, model: str, prompt: int, choice: int) -> None:
        self._trace = trace
        self._start = 0.0 if trace is None else trace.now()
        self._attributes: Attributes = {"model": model, "prompt": prompt, "choice": choice}
        self._stream: TokenStream | None = None
        self._is_computed = False  # else its answer was kept
        self._ended = False
        # What its nodes are told.
        self.context: TraceContext | None = None if trace is None else trace.context.child()

    @property
    def attempts(self) -> Sequence[AttemptRecord]:
        """Where it ran; nothing when that is not told."""
        return self._stream.attempts if isinstance(self._stream, Traced) else ()

    async def placed(self, placing: Awaitable[TokenStream]) -> TokenStream:
        """The stream that the region gives, noted. Raises what the region raises."""
        self._is_computed = True
        try:
            self._stream = await placing
        except SkerryError as error:
            self.end(error.code)
            raise
        return self._stream

    def end(self, outcome: str, num_tokens: int = 0) -> None:
        """Note the span and its attempts. Idempotent."""
        if self._ended or self._trace is None or self.context is None:
            return
        self._ended = True
        attributes = {**self._attributes, "outcome": outcome, "tokens": num_tokens}
        if not self._is_computed:
            attributes["replayed"] = True
        id = self.context.span_id
        self._trace.add("generate", self._start, self._trace.now(), attributes, id=id)
        add_attempts(self._trace, id, self.attempts)
