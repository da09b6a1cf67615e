"""Grammars at work in an engine: which tokens each sequence may have next, and which it takes.

A mask is stale once its sequence has a new token. Masks are computed between steps, the longest
stale first, for a bounded time; a sequence whose mask is not there waits for a later step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import Float32, UInt32
from skerry_core.engine.sequence import Sequence
from skerry_core.grammar_error import GrammarError

UNKNOWN_LEFT = 1 << 30  # tokens, of an output whose limit another node knows
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
                matcher.fill(_tokens_left(sequence))
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
        started = self._clock()
        token_id = matcher.choose(token_id, _tokens_left(sequence))
        sequence.choice_seconds = self._clock() - started
        self.stale[sequence] = None
        return token_id

    @staticmethod
    def withholds(sequence: Sequence, logits: Callable[[], Float32], sample: int) -> bool:
        """Return, and note, whether the likeliest next token, by a row of `logits` f32[S, V], is
        one that its mask lacks since the call that it begins does not fit."""
        matcher = sequence.matcher
        if matcher is None or matcher.mask is None or matcher.withheld is None:
            return False
        scores = logits()[sample]
        withheld = _bits(matcher.withheld, len(scores))
        allowed = withheld | _bits(matcher.mask, len(scores))
        is_withheld = bool(withheld[np.argmax(np.where(allowed, scores, -np.inf))])
        matcher.has_withheld_call |= is_withheld
        return is_withheld

    def forget(self, sequence: Sequence) -> None:
        """Drop a sequence that ended."""
        self.stale.pop(sequence, None)


def _tokens_left(sequence: Sequence) -> int:
    """Count the tokens that may follow the next one, here or on the node that goes on."""
    most = sequence.whole_max_tokens
    if most is None:
        most = UNKNOWN_LEFT if sequence.exports_kv else sequence.sampling.max_tokens
    return most - sequence.output_tokens - 1


def _bits(mask: UInt32, size: int) -> NDArray[np.bool_]:
    return np.unpackbits(mask.view(np.uint8), count=size, bitorder="little").astype(bool)
