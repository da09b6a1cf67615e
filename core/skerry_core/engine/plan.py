"""A step before it runs: which tokens of which sequences, within the step's budget."""

from __future__ import annotations

from skerry_core.engine.sequence import Sequence


class Row:
    """Part of a step: the next `num_tokens` tokens of a sequence, from position `start` on."""

    __slots__ = (
        "is_admission",
        "is_decode",
        "makes_token",
        "match",
        "num_accepted",
        "num_drafts",
        "num_samples",
        "num_targets",
        "num_tokens",
        "placement",
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
        self.placement = sequence.preemptions  # each gives it another slot and other blocks
        self.num_drafts = 0  # of `num_tokens`: drafted, at the end
        self.num_accepted = 0  # of those, once it has run: what the sequence goes on with
        self.match = 0  # see `prompt_lookup.find_match`

    def add_drafts(self, count: int, match: int) -> None:
        """Run tokens too that were drafted after a match of that length; each is sampled."""
        self.num_tokens += count
        self.num_samples += count
        self.num_drafts = count
        self.match = match

    @property
    def is_placed(self) -> bool:
        """Whether its sequence still has the blocks that it was computed in."""
        return self.sequence.preemptions == self.placement

    @property
    def is_foreseeable(self) -> bool:
        """Whether the sequence's next row can be planned before this one's token is known."""
        request = self.sequence.request
        needs_token = request.matcher is not None or request.sampling.has_penalties
        return not (needs_token or request.exports_kv or self.num_targets or self.num_drafts)

    @property
    def end(self) -> int:
        """Position after the last computed token that stays."""
        return self.start + self.num_tokens - self.num_drafts + self.num_accepted


class Plan:
    """A step in the making: rows, and what is left of the step's tokens and samples."""

    def __init__(self, max_tokens: int, max_samples: int) -> None:
        self.tokens_left = max_tokens
        self.samples_left = max_samples
        self.rows: dict[Sequence, Row] = {}
        self.booked: dict[str, int] = {}  # prefill tokens planned per tenant

    def chunk(self, sequence: Sequence, shares: int = 1) -> int:
        """Tokens of `sequence` that can run when `shares` sequences divide what is left."""
        ready = sequence.remaining - sequence.awaits_mask  # its last token would make a new one
        n = min(ready, max(1, self.tokens_left // shares), self.tokens_left)
        samples = min(max(1, self.samples_left // shares), self.samples_left)
        if not sequence.may_match_prefix:  # any of its tokens may be a sample
            return min(n, samples)
        return n if samples or n < sequence.remaining else n - 1

    def put(self, sequence: Sequence, num_tokens: int, *, is_admission: bool = False) -> None:
        row = Row(sequence, num_tokens, is_admission=is_admission)
        self.rows[sequence] = row
        self.tokens_left -= num_tokens
        self.samples_left -= row.num_samples
        if not row.is_decode:
            tenant = sequence.request.tenant
            self.booked[tenant] = self.booked.get(tenant, 0) + num_tokens

    def add_drafts(self, row: Row, count: int, match: int) -> None:
        """See `Row.add_drafts`."""
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
