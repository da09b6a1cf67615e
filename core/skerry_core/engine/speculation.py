"""Speculative decoding without a draft model: what followed the same tokens once may do so again.

A stream's row may run, after its last token, a few drafted ones: those that came after an earlier
occurrence of its last tokens. Every position of such a row is sampled as in a step of its own, with
its own Philox counter, penalties and biases, and a batch-invariant runner gives it the same logits.
So what is sampled there *is* the token, and a draft that equals it was right: it has been run, and
the position after it counts as well. The first that differs ends the row. The output is the same as
without, bit for bit; where a runner cannot promise that, nothing is drafted.

Nothing is drafted under a grammar either: which tokens a position allows depends on the one before,
so a draft would need a mask for each of its positions before it has run, most of them for nothing.

Only a stream whose last tokens stood in it before is looked at (`Sequence.is_recurring`). A draft
costs time even when it is wrong. Each sequence counts how often its drafts were right, or would
have been where none was made (`Acceptance`), and the engine learns what a token more costs in a
step (`StepPrice`); a token is drafted only while that raises the tokens made per second, which is
rarely so in a step of many streams.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

from skerry_core.batch import Int32
from skerry_core.config import BLOCK_SIZE
from skerry_core.engine.drafts.acceptance import Acceptance
from skerry_core.engine.drafts.prompt_lookup import find_match, followers
from skerry_core.engine.sequence import Sequence
from skerry_core.engine.step_plan import PlannedRow, StepPlan
from skerry_core.engine.step_price import StepPrice

_GAIN = 1.1  # by which a drafted token must beat the tokens per second of a step without it


class Speculator:
    """Drafts for the streams of one engine."""

    def __init__(self, max_draft_tokens: int, price: StepPrice) -> None:
        """At most so many tokens are drafted for a row; `price` is learned by others."""
        self._max_draft_tokens = max_draft_tokens
        self._price = price
        self.acceptance: dict[Sequence, Acceptance] = {}  # of those that have repeated themselves
        self.num_drafted = 0
        self.num_accepted = 0

    def add_drafts(self, plan: StepPlan) -> None:
        """Extend the rows of streams that repeat themselves, within what is left of the step, where
        it pays."""
        streams = [row for row in plan.rows.values() if row.is_decode]
        made, seconds = float(len(streams)), self._price.of(len(streams))
        per_token = _GAIN * self._price.per_token
        for row in streams:
            sequence = row.sequence
            if not sequence.is_recurring:
                continue
            acceptance = self.acceptance.setdefault(sequence, Acceptance())
            acceptance.count_guess(sequence.tokens)
            room = min(self._room(sequence), plan.tokens_left, plan.samples_left)
            if room < 1 or seconds <= per_token * made:
                continue
            drafts, match = self.propose(sequence, room)
            if sequence.budget is not None:
                drafts = drafts[: sequence.budget.count_free(drafts.tolist())]
            chance = each = acceptance.of(match)
            count = 0
            while count < len(drafts) and chance * seconds > per_token * made:
                made, seconds, count = made + chance, seconds + self._price.per_token, count + 1
                chance *= each
            if count:
                sequence.draft(drafts[:count])
                plan.add_drafts(row, count, match)
            elif len(drafts):
                acceptance.guess(sequence.num_tokens, int(drafts[0]), match)

    def _room(self, sequence: Sequence) -> int:
        """Count the tokens that may be drafted for it: they fit its blocks and its output."""
        if sequence.matcher is not None or sequence.exports_kv:
            return 0
        if sequence.budget is not None and sequence.budget.forced is not None:
            return 0
        left = sequence.sampling.max_tokens - sequence.output_tokens - 1
        slots = len(sequence.blocks) * BLOCK_SIZE - sequence.num_tokens
        return min(self._max_draft_tokens, left, slots)

    def propose(self, sequence: Sequence, limit: int) -> tuple[Int32, int]:
        """Return at most `limit` tokens that may follow, none that ends the output, and the match's
        length."""
        tokens = sequence.tokens
        place, match = find_match(tokens)
        if not match:
            return tokens[:0], 0
        drafts = followers(tokens, place, limit)
        stops = sequence.sampling.stop_token_ids
        ends = (n for n, token_id in enumerate(drafts.tolist()) if token_id in stops)
        return drafts[: next(ends, limit)], match

    def observe(self, rows: ListOf[PlannedRow]) -> None:
        """Learn from a step that has run with drafts; its sequences live."""
        for row in rows:
            if row.num_drafts:
                self.acceptance[row.sequence].note(row.match, row.num_drafts, row.num_accepted)
                self.num_drafted += row.num_drafts
                self.num_accepted += row.num_accepted


def accept(rows: ListOf[PlannedRow], token_ids: ListOf[int]) -> None:
    """Note in each row how many of its drafts equal the tokens sampled in their places."""
    sample = 0
    for row in rows:
        first = sample + row.num_targets
        sample += row.num_samples
        if row.num_drafts:
            start = row.sequence.num_tokens
            drafts = row.sequence.span(start, start + row.num_drafts).tolist()
            for drafted, sampled in zip(drafts, token_ids[first:sample], strict=False):
                if drafted != sampled:
                    break
                row.num_accepted += 1
