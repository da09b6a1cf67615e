"""What a request leaves behind: its row in the usage journal, and its answer in the cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from skerry_edge.idempotency import REPLAYED_HEADER
from skerry_edge.replay import Lookup, ReplayedStream, lookup_for, retry_key
from skerry_edge.response_cache import STATUS_HEADER
from skerry_edge.usage_journal import Amount, Outcome, UsageEntry

if TYPE_CHECKING:
    from skerry_edge.edge import Edge
    from skerry_edge.generation import Call, Generation, Job
    from skerry_regions.catalog import ModelSpec
    from skerry_regions.client import TokenStream


class Books:
    """The stores' part in one request for text, from before it is placed until it is over."""

    def __init__(self, edge: Edge, jobs: Sequence[Job], call: Call, lookup: Lookup | None) -> None:
        self.jobs = jobs  # with the seeds that they are to be run with
        self._edge = edge
        self._call = call
        self._lookup = lookup
        self._entry: UsageEntry | None = None

    @property
    def is_hit(self) -> bool:
        """Whether the answer was found, so that nothing is computed."""
        return self._lookup is not None and self._lookup.found_under is not None

    def replay(self) -> ReplayedStream | None:
        """The next choice of an answer that was found."""
        return None if self._lookup is None else self._lookup.replay()

    def record(self, stream: TokenStream) -> TokenStream:
        """A choice that is computed; its answer is kept if it is to be."""
        if self._lookup is None or self.is_hit:
            return stream
        return self._lookup.record(stream)

    def admit(self, generations: Sequence[Generation]) -> None:
        """All choices have their places."""
        prompt_tokens = 0 if self.is_hit else sum(len(job.prompt_ids) for job in self.jobs)
        self._entry = admit(self._edge, self.jobs[0].model, self._call, prompt_tokens)
        if self._entry is not None and not self.is_hit:
            self._entry.progress = lambda: sum(each.num_tokens for each in generations)

    def close(self, by_prompt: Sequence[Sequence[Generation]]) -> None:
        """The request is over, whichever way. Returns at once."""
        generations = [each for choices in by_prompt for each in choices]
        is_complete = all(each.finish_reason is not None for each in generations)
        if is_complete and self._lookup is not None and not self.is_hit:
            self._lookup.keep()
        if self._entry is not None:
            if self.is_hit:
                self._entry.settle("cached", Amount())
            else:
                self._entry.settle(_outcome(generations), self._amount(by_prompt))

    def _amount(self, by_prompt: Sequence[Sequence[Generation]]) -> Amount:
        usages = [each.usage for choices in by_prompt for each in choices if each.usage is not None]
        return Amount(
            prompt_tokens=sum(len(job.prompt_ids) for job in self.jobs),
            cached_tokens=sum(max(each.cached_tokens for each in choices) for choices in by_prompt),
            output_tokens=sum(each.num_tokens for choices in by_prompt for each in choices),
            queue_seconds=sum(usage.queue_seconds for usage in usages),
            prefill_seconds=sum(usage.prefill_seconds for usage in usages),
            decode_seconds=sum(usage.decode_seconds for usage in usages),
        )


async def open_books(edge: Edge, jobs: Sequence[Job], call: Call) -> Books:
    """Keep what the request's headers promise. Raises `IdempotencyMismatch`."""
    if call.idempotency is not None:
        await claim(edge, call)
        seed = call.idempotency.seed(edge.secret, call.tenant)
        jobs = [job if job.seeded else _with_seed(job, seed) for job in jobs]
    lookup = lookup_for(edge.stores.cache, jobs, call)
    if lookup is not None:
        await lookup.look(sum(job.num_choices for job in jobs))
    found_under = None if lookup is None else lookup.found_under
    if call.cache is not None:
        call.headers[STATUS_HEADER] = "MISS" if found_under is None else "HIT"
    if call.idempotency is not None and found_under == retry_key(jobs, call.idempotency.key):
        call.headers[REPLAYED_HEADER] = "true"
    return Books(edge, jobs, call, lookup)


async def claim(edge: Edge, call: Call) -> None:
    """Use the request's idempotency key, if it has one. Raises `IdempotencyMismatch`."""
    if call.idempotency is not None and edge.stores.idempotency is not None:
        await edge.stores.idempotency.claim(call.tenant, call.idempotency)


def admit(edge: Edge, model: ModelSpec, call: Call, prompt_tokens: int) -> UsageEntry | None:
    """A row in the journal, if there is one; the same for each retry with an idempotency key."""
    if edge.stores.journal is None:
        return None
    id = call.request_id
    if call.idempotency is not None:
        id = call.idempotency.usage_id(edge.secret, call.tenant)
    return edge.stores.journal.admit(
        id,
        tenant=call.tenant,
        token=call.token,
        model=model.id,
        prompt_tokens=prompt_tokens,
        price=model.price,
    )


def _with_seed(job: Job, seed: int) -> Job:
    return dataclasses.replace(job, sampling=msgspec.structs.replace(job.sampling, seed=seed))


def _outcome(generations: Sequence[Generation]) -> Outcome:
    if any(each.has_failed for each in generations):
        return "failed"
    if all(each.finish_reason is not None for each in generations):
        return "completed"
    return "cancelled"
