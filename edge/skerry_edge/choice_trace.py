"""What a trace learns of one choice of a request: where its stream ran, and how that went."""

from __future__ import annotations

from collections.abc import Sequence

from skerry_edge.attempt_spans import add_attempts
from skerry_edge.tracing import Attributes, Trace
from skerry_regions.attempts import AttemptRecord, Traced
from skerry_regions.client import TokenStream


class ChoiceTrace:
    """One span of a trace, from the region being asked to the last token."""

    def __init__(self, trace: Trace, model: str, prompt: int, choice: int) -> None:
        self.context = trace.context.child()  # what its nodes are told
        self._trace = trace
        self._start = trace.now()
        self._attributes: Attributes = {"model": model, "prompt": prompt, "choice": choice}
        self._ended = False

    def end(self, outcome: str, num_tokens: int = 0, records: Sequence[AttemptRecord] = ()) -> None:
        """Note the span and its attempts. Idempotent."""
        if self._ended:
            return
        self._ended = True
        attributes = {**self._attributes, "outcome": outcome, "tokens": num_tokens}
        id = self.context.span_id
        self._trace.add("generate", self._start, self._trace.now(), attributes, id=id)
        add_attempts(self._trace, id, records)


def attempts_of(stream: TokenStream) -> Sequence[AttemptRecord]:
    """The attempts that a stream tells of; none when it has only one place to run."""
    return stream.attempts if isinstance(stream, Traced) else ()
