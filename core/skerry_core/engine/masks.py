"""Grammars at work in an engine: which tokens each sequence may have next, and which it takes.

A mask is stale once its sequence has a new token. Masks are computed between steps, the longest
stale first, for a bounded time; a sequence whose mask is not there waits for a later step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from skerry_core.engine.sequence import Sequence
from skerry_core.grammar_error import GrammarError

MASK_SECONDS = 0.02  # of a step, for masks and for choosing under them; who finds none left waits


class Masks:
    """Of the sequences of one engine that have a grammar; for the others nothing is called."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.stale: dict[Sequence, None] = {}  # their masks are to be computed, in this order

    def catch_up(self, sequence: Sequence) -> None:
        """Give a resumed request's matcher what it lacks of the transcript. Raises GrammarError."""
        matcher = sequence.matcher
        if matcher is None:
            return
        for token_id in sequence.request.output_ids[matcher.num_tokens :]:
            matcher.advance(token_id)
        self.stale[sequence] = None

    def fill(self) -> Iterator[tuple[Sequence, GrammarError]]:
        """Compute masks until the step's time is used up: for them, and for the choices that they
        make possible. Gives the sequences that cannot go on."""
        deadline = self._clock() + MASK_SECONDS
        while self.stale:
            sequence = next(iter(self.stale))
            del self.stale[sequence]
            matcher = sequence.matcher
            if matcher is None:
                continue
            try:
                matcher.fill()
            except GrammarError as error:
                yield sequence, error
            if matcher.looks_ahead:
                deadline -= sequence.choice_seconds  # likely as long as its last one
            if self._clock() >= deadline:
                return

    def take(self, sequence: Sequence, token_id: int) -> int:
        """Return the token that a sequence goes on with, which need not be the one that was
        sampled. Raises GrammarError."""
        matcher = sequence.matcher
        if matcher is None:
            return token_id
        if sequence.exports_kv:  # one token of an output that is longer
            matcher.advance(token_id)
        else:
            started = self._clock()
            token_id = matcher.choose(token_id, _tokens_left(sequence))
            sequence.choice_seconds = self._clock() - started
        self.stale[sequence] = None
        return token_id

    def forget(self, sequence: Sequence) -> None:
        """Drop a sequence that ended."""
        self.stale.pop(sequence, None)


def _tokens_left(sequence: Sequence) -> int:
    """Count the tokens that may follow the next one."""
    return sequence.sampling.max_tokens - sequence.output_tokens - 1
