"""What a request for text used, as its choices report it: charged and settled when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from skerry.wire import PromptTokensDetails, TokenUsage
from skerry_edge.gate.admission import Place
from skerry_edge.gate.job import Job
from skerry_edge.ledger.cache_writes import CacheWrites, writes_of
from skerry_edge.ledger.usage_journal import UsageEntry, UsageJournal
from skerry_edge.ledger.usage_tables import Amount, Outcome
from skerry_regions.digests import prefix_chain
from skerry_regions.wire.client import TokenStream
from skerry_regions.wire.pins import Pinned, PromptUse
from skerry_regions.wire.protocol import PhaseUsage


class ChoiceUsage:
    """A `StreamObserver` that adds up what one choice used."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.has_failed = self.is_done = False
        self._prompt: PromptUse | PhaseUsage | None = None  # the latest word of it
        self.phases: PhaseUsage | None = None  # that its engines said

    @property
    def cached_tokens(self) -> int:
        """Return tokens of the prompt that were not computed."""
        return 0 if self._prompt is None else self._prompt.cached_tokens

    @property
    def pinned(self) -> Pinned | None:
        """Return what its pins did."""
        return None if self._prompt is None else self._prompt.pinned

    def placed(self, stream: TokenStream) -> None:
        """Do nothing: only tokens are charged."""

    def prompt(self, use: PromptUse) -> None:
        """Keep what was cached."""
        self._prompt = use

    def tokens(self, number: int) -> None:
        """Count a step."""
        self.num_tokens += number

    def done(self, reason: str, usage: PhaseUsage | None) -> None:
        """Keep what its engines said."""
        self.is_done, self.phases = True, usage
        self._prompt = usage or self._prompt

    def failed(self, code: str, *, is_ours: bool) -> None:
        """Note a failure of ours, for which nothing is charged."""
        self.has_failed |= is_ours

    def closed(self) -> None:
        """Do nothing: the request is settled as a whole."""


def _told(choice: ChoiceUsage) -> tuple[int, int]:
    pinned = choice.pinned
    return choice.cached_tokens, 0 if pinned is None else sum(pinned.written)


class Settlement:
    """One request's row in the usage journal, and its place."""

    def __init__(self, place: Place, jobs: Sequence[Job], *, is_hit: bool) -> None:
        """`is_hit`: the answer was kept, and nothing is computed."""
        self._place = place
        self.prompt_tokens = sum([len(job.submit.prompt_ids) for job in jobs])
        self._is_hit = is_hit
        self._pins = [job.submit.pins for job in jobs]
        self._price = jobs[0].model.price
        self._by_prompt = [[ChoiceUsage() for _ in range(job.num_choices)] for job in jobs]
        self._choices = [choice for choices in self._by_prompt for choice in choices]
        self._entry: UsageEntry | None = None

    def of(self, prompt: int, choice: int) -> ChoiceUsage:
        """Return the observer of one choice."""
        return self._by_prompt[prompt][choice]

    def admit(self, journal: UsageJournal | None, row: str, job: Job) -> None:
        """Open the request's row, once all of its choices are placed. Its chain is that of the
        first of its prompts."""
        submit = job.submit
        if journal is not None:
            self._entry = journal.admit(
                row,
                tenant=job.caller.tenant,
                token=job.caller.token,
                model=job.model.id,
                prompt_tokens=0 if self._is_hit else self.prompt_tokens,
                price=job.model.price,
                progress=(lambda: 0) if self._is_hit else self._num_tokens,
                chain=None
                if self._is_hit or not submit.cache_key
                else partial(prefix_chain, job.model.id, submit.cache_key, submit.prompt_ids),
            )

    def usage(self) -> TokenUsage:
        """Return the tokens so far: each prompt once, the output of every choice."""
        output = self._num_tokens()
        total = self.prompt_tokens + output
        cached, writes = self._cached_tokens(), self._writes()
        details = PromptTokensDetails(cached) if writes is None else writes.details(cached)
        return TokenUsage(self.prompt_tokens, output, total, details)

    def close(self) -> Outcome:
        """Give the place back, and settle the row; returns how the request ended, at once."""
        outcome = self._outcome()
        if self._is_hit or outcome == "failed":
            self._place.leave()
        else:
            used = self._amount()
            self._place.leave(
                used.prompt_tokens, used.output_tokens, used.cached_tokens,
                (used.written_tokens, used.written_dollars),
            )  # fmt: skip
        if self._entry is not None:
            if self._is_hit:
                self._entry.settle("cached", Amount())
            else:
                self._entry.settle(outcome, self._amount())
            self._entry = None  # which has a method of this
        return outcome

    def _num_tokens(self) -> int:
        return sum([choice.num_tokens for choice in self._choices])

    def _cached_tokens(self) -> int:
        return sum([max(each.cached_tokens for each in choices) for choices in self._by_prompt])

    def _writes(self) -> CacheWrites | None:
        """Return what stays cached of the prompts; None when nothing was to. Of a prompt's choices
        the one that found most cached counts: what it wrote was not there."""
        if not any(self._pins):
            return None
        return writes_of(
            (pins, max(choices, key=_told).pinned)
            for pins, choices in zip(self._pins, self._by_prompt, strict=True)
        )

    def _outcome(self) -> Outcome:
        if any(choice.has_failed for choice in self._choices):
            return "failed"
        is_whole = all(choice.is_done for choice in self._choices)
        return "completed" if is_whole else "cancelled"

    def _amount(self) -> Amount:
        phases = [each.phases for each in self._choices if each.phases is not None]
        writes = self._writes()
        return Amount(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self._cached_tokens(),
            output_tokens=self._num_tokens(),
            written_tokens=0 if writes is None else writes.short + writes.long,
            written_dollars=0.0 if writes is None else writes.dollars(self._price),
            queue_seconds=sum([each.queue_seconds for each in phases]),
            prefill_seconds=sum([each.prefill_seconds for each in phases]),
            decode_seconds=sum([each.decode_seconds for each in phases]),
        )
