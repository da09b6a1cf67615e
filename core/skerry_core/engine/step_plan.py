"""A step before it runs, while it does, and what it leaves: which tokens of which sequences."""

from __future__ import annotations

from collections.abc import Callable

from skerry_core.blocks import BlockPool
from skerry_core.config import BLOCK_SIZE
from skerry_core.engine.sequence import Sequence
from skerry_core.kv.pinning import pin_prompt
from skerry_core.names import BlockNames


class PlannedRow:
    """Part of a step: the next `num_tokens` tokens of a sequence, from position `start` on."""

    __slots__ = (
        "is_admission",
        "is_decode",
        "makes_token",
        "match",
        "num_accepted",
        "num_drafts",
        "num_preemptions",
        "num_samples",
        "num_targets",
        "num_tokens",
        "sequence",
        "start",
    )

    def __init__(self, sequence: Sequence, num_tokens: int, *, is_admission: bool) -> None:
        self.sequence = sequence
        self.start = sequence.num_computed
        self.num_tokens = num_tokens
        # Its last tokens are sampled: for the logprobs of prompt tokens, then for a new token.
        self.num_targets = sequence.num_targets(num_tokens)
        self.makes_token = num_tokens == sequence.remaining
        self.num_samples = self.num_targets + self.makes_token
        self.is_decode = sequence.is_decoding and not is_admission
        self.is_admission = is_admission  # its first row in this slot and these blocks
        self.num_preemptions = sequence.preemptions  # before it; each costs its slot and blocks
        self.num_drafts = 0  # of `num_tokens`: drafted, at the end
        self.num_accepted = 0  # of those, once it has run: what the sequence goes on with
        self.match = 0  # see `prompt_lookup.find_match`

    def add_drafts(self, count: int, match: int) -> None:
        """Run tokens too that were drafted after a match of that length; each is sampled."""
        self.num_tokens += count
        self.num_samples += count
        self.num_drafts = count
        self.match = match

    def charge(self, seconds: float) -> None:
        """Count the row, which has run, and its share of the step's seconds on its sequence."""
        sequence = self.sequence
        if self.is_decode:
            sequence.decode_seconds += seconds
        else:
            sequence.prefill_seconds += seconds
        # What was handed over starts with one token of its output: admitted, and yet a decode.
        if self.is_decode or (self.num_tokens == 1 and self.start >= sequence.prompt_tokens):
            sequence.decode_steps += 1
            sequence.decode_tokens += 1 + self.num_accepted
        else:
            sequence.prefill_steps += 1
            sequence.prefill_tokens += self.num_tokens

    def seal(self, pool: BlockPool, names: BlockNames) -> None:
        """Name the blocks that the row, which has run, filled; pin the prompt once it is
        computed."""
        sequence, end = self.sequence, self.end
        if end > sequence.num_computed:  # of drafts that were right
            sequence.num_computed = end
        first, last = self.start // BLOCK_SIZE, end // BLOCK_SIZE
        if last > first:
            sequence.extend_digests(last, names)
            for i in range(first, last):
                pool.seal(sequence.blocks[i], sequence.digests[i])
        if not sequence.request.pins or sequence.pinned is not None:
            return
        if end >= sequence.prompt_tokens and (start := sequence.start_time) is not None:
            sequence.pinned = pin_prompt(
                pool, sequence.request, sequence.digests, sequence.cached_tokens, start
            )

    @property
    def starts_inside_block(self) -> bool:
        """Return whether it goes on from an open block that came along and is to be written
        first."""
        return self.is_admission and self.start % BLOCK_SIZE > 0

    @property
    def is_placed(self) -> bool:
        """Return whether its sequence still has the blocks that it was computed in."""
        return self.sequence.preemptions == self.num_preemptions

    @property
    def feeds_next(self) -> bool:
        """Return whether the row makes a token that can run before it is known."""
        sequence = self.sequence
        if not self.makes_token or sequence.matcher is not None:
            return False
        # What ends reasoning is not what the device samples.
        return sequence.budget is None or sequence.budget.forced is None

    @property
    def may_need_logits(self) -> bool:
        """Return whether logits may be looked at once it has run, of whoever takes another token
        than the one that is sampled."""
        sequence = self.sequence
        has_logprobs = sequence.sampling.logprobs is not None
        if sequence.matcher is not None:
            return self.makes_token and (has_logprobs or sequence.matcher.withheld is not None)
        return has_logprobs and sequence.budget is not None and sequence.budget.forced is not None

    @property
    def end(self) -> int:
        """Return the position after the last computed token that stays."""
        return self.start + self.num_tokens - self.num_drafts + self.num_accepted


class LaunchedStep:
    """A step that the runner was given."""

    def __init__(self, rows: list[PlannedRow], started: float) -> None:
        """`started` is in seconds of the engine's clock."""
        self.rows = rows
        self.started = started

    def holds_next_up(self, *, feeds: bool) -> bool:
        """Return whether no step may be launched before this one is collected: logits of it may be
        looked at, which are there as long; or, on a runner that feeds, most of its tokens have to
        be known before their sequences go on. Steps of the few others would take as long as one of
        all."""
        led = (row for row in self.rows if row.sequence.matcher or row.sequence.budget)
        if any(row.may_need_logits for row in led):
            return True
        feeding = [row.feeds_next for row in self.rows if row.makes_token]
        return feeds and 2 * sum(feeding) < len(feeding)

    def expect(self, lives: Callable[[Sequence], bool]) -> None:
        """Let the sequences that live go on as if the tokens were known that can be fed."""
        sample = 0
        for row in self.rows:
            sample += row.num_samples
            if row.feeds_next and lives(row.sequence):
                row.sequence.expect(sample - 1)


class StepPlan:
    """A step in the making: rows, and what is left of the step's budget of tokens, of samples and
    of decode rows."""

    def __init__(self, max_tokens: int, max_samples: int, max_streams: int) -> None:
        self.tokens_left = max_tokens
        self.samples_left = max_samples
        self.streams_left = max_streams
        self.rows: dict[Sequence, PlannedRow] = {}
        self.booked: dict[str, int] = {}  # prefill tokens planned per tenant
        self.has_recurring = False  # a stream that repeats itself: something may be drafted

    def chunk(self, sequence: Sequence, shares: int = 1) -> int:
        """Count the tokens of `sequence` that can run when `shares` sequences divide what is
        left."""
        ready = sequence.remaining - sequence.awaits_mask  # its last token would make a new one
        n = min(ready, max(1, self.tokens_left // shares), self.tokens_left)
        samples = min(max(1, self.samples_left // shares), self.samples_left)
        if not sequence.may_match_prefix:  # any of its tokens may be a sample
            return min(n, samples)
        return n if samples or n < sequence.remaining else n - 1

    def put(self, sequence: Sequence, num_tokens: int, *, is_admission: bool = False) -> None:
        """Add a row of the sequence's next tokens."""
        row = PlannedRow(sequence, num_tokens, is_admission=is_admission)
        self.rows[sequence] = row
        self.tokens_left -= num_tokens
        self.samples_left -= row.num_samples
        if row.is_decode:
            self.streams_left -= 1
            self.has_recurring |= sequence.is_recurring
        else:
            self.booked[sequence.tenant] = self.booked.get(sequence.tenant, 0) + num_tokens

    def add_drafts(self, row: PlannedRow, count: int, match: int) -> None:
        """See `PlannedRow.add_drafts`."""
        row.add_drafts(count, match)
        self.tokens_left -= count
        self.samples_left -= count

    def limit(self, num_tokens: int) -> None:
        """Plan at most so many tokens more."""
        self.tokens_left = min(self.tokens_left, num_tokens)

    def drop(self, sequence: Sequence) -> None:
        """Take a sequence out again, if it is in."""
        row = self.rows.pop(sequence, None)
        if row is not None:
            self.tokens_left += row.num_tokens
            self.samples_left += row.num_samples
            self.streams_left += row.is_decode
