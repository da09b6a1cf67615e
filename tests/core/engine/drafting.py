"""Drafts whose rightness tests decide, whatever the prompt looks like and whatever they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from skerry_core.batch import Int32
from skerry_core.engine import engine as engine_module
from skerry_core.engine.engine import Engine
from skerry_core.engine.sequence import Sequence as Stream
from skerry_core.engine.speculation import Speculator
from skerry_core.engine.step_price import StepPrice


class FreeTokens(StepPrice):
    """A token more in a step costs nothing."""

    @property
    def per_token(self) -> float:
        return 0.0

    def of(self, num_tokens: int) -> float:
        return 1.0


def draft_true_tokens(
    patch: pytest.MonkeyPatch, answers: Mapping[str, Sequence[int]], vocab_size: int, seed: int = 0
) -> None:
    """Make new engines draft the true answers by request id, from place to place with a mistake."""

    class Oracle(Speculator):
        def __init__(self, max_draft_tokens: int, price: StepPrice) -> None:
            super().__init__(max_draft_tokens, FreeTokens())
            self._rng = np.random.default_rng(seed)

        def propose(self, sequence: Stream, limit: int) -> tuple[Int32, int]:
            answer = answers.get(sequence.id, ())
            drafts = np.array(answer[sequence.output_tokens :][:limit], np.int32)
            drafts = drafts[: self._rng.integers(0, limit + 1)]
            mistakes = self._rng.random(len(drafts)) < 0.2
            drafts[mistakes] = (drafts[mistakes] + 1) % vocab_size
            return drafts, 8

    patch.setattr(engine_module, "Speculator", Oracle)
    patch.setattr(Stream, "_note_run", lambda self, seen: True)  # each stream is looked at


def speculator_of(engine: Engine) -> Speculator:
    speculator = engine._speculator
    assert speculator is not None
    return speculator
