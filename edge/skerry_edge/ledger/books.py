"""What a request leaves behind: its row in the usage journal, and its answer in the cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from skerry_edge.ledger.replay import (
    Lookup,
    RecordedStream,
    ReplayedStream,
    are_repeatable,
    asked_by,
    form_of,
    look_up,
)
from skerry_edge.ledger.response_cache import StoredAnswer
from skerry_edge.ledger.usage_journal import Amount, Outcome, UsageEntry

if TYPE_CHECKING:
    from skerry_edge.generation.choices import Call, Generation, Job
    from skerry_edge.generation.edge import Edge
    from skerry_regions.models.catalog import ModelSpec
    from skerry_regions.wire.client import TokenStream


class Books:
    """The stores' part in one request for text, from before it is placed until it is over."""

    def __init__(
        self,
        edge: Edge,
        call: Call,
        jobs: Sequence[Job],
        row: str,
        lookup: Lookup | None = None,
        found: StoredAnswer | None = None,
    ) -> None:
        """`row` is the id of the request's row in the journal."""
        self.jobs = jobs  # with the seeds that they are to be run with
        self.is_hit = found is not None  # the answer was found: nothing is computed
        self._edge = edge
        self._call = call
        self._row = row
        self._lookup = lookup
        self._to_replay = [] if found is None else list(found.streams)
        self._recorded: list[RecordedStream] = []
        self._entry: UsageEntry | None = None

    def replay(self) -> ReplayedStream | None:
        """The next choice of an answer that was found."""
        return ReplayedStream(self._to_replay.pop(0)) if self._to_replay else None

    def record(self, stream: TokenStream) -> TokenStream:
        """A choice that is computed, to be kept if the answer is."""
        if self._lookup is None:
            return stream
        self._recorded.append(RecordedStream(stream))
        return self._recorded[-1]

    def admit(self, generations: Sequence[Generation]) -> None:
        """All choices have their places."""
        prompt_tokens = 0 if self.is_hit else sum(len(job.prompt_ids) for job in self.jobs)
        model = self.jobs[0].model
        self._entry = _admit(self._edge, model, self._call, self._row, prompt_tokens)
        if self._entry is not None and not self.is_hit:
            self._entry.progress = lambda: sum(each.num_tokens for each in generations)

    def close(self, by_prompt: Sequence[Sequence[Generation]]) -> None:
        """The request is over, whichever way. Returns at once."""
        outcome = _outcome([each for choices in by_prompt for each in choices])
        if outcome == "completed" and self._lookup is not None and not self.is_hit:
            streams = [recorded.record for recorded in self._recorded]
            self._lookup.keep(StoredAnswer(streams=streams))
        if self._entry is not None:
            if self.is_hit:
                self._entry.settle("cached", Amount())
            else:
                self._entry.settle(outcome, self._amount(by_prompt))

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
    if call.cache is None and call.idempotency is None:
        return Books(edge, call, jobs, call.request_id)
    row = await _claim(edge, call)
    if call.idempotency is not None:
        seed = call.idempotency.seed(edge.secret, call.tenant)
        jobs = [job if job.seeded else _with_seed(job, seed) for job in jobs]
    num_streams = sum(job.num_choices for job in jobs)
    lookup, found = await look_up(
        edge.stores.cache,
        call,
        asked=asked_by(jobs),
        form=form_of(jobs),
        is_repeatable=are_repeatable(jobs) and not call.mixed_builds,
        is_whole=lambda answer: len(answer.streams) == num_streams,
    )
    return Books(edge, call, jobs, row, lookup, found)


class VectorBooks:
    """The same for a request that turns texts to vectors. `found` are those that were kept."""

    def __init__(
        self,
        edge: Edge,
        model: ModelSpec,
        call: Call,
        row: str,
        num_tokens: int,
        lookup: Lookup | None,
        found: list[bytes] | None,
    ) -> None:
        self.found = found
        self._edge = edge
        self._model = model
        self._call = call
        self._row = row
        self._lookup = lookup
        self._amount = Amount() if found else Amount(prompt_tokens=num_tokens)
        self._entry: UsageEntry | None = None

    def admit(self) -> None:
        """The request has its place, or needs none."""
        tokens = self._amount.prompt_tokens
        self._entry = _admit(self._edge, self._model, self._call, self._row, tokens)

    def finish(self, vectors: list[bytes]) -> None:
        """All of them were computed. Returns at once."""
        self.settle("completed")
        if self._lookup is not None:
            self._lookup.keep(StoredAnswer(vectors=vectors))

    def settle(self, outcome: Outcome) -> None:
        """The request is over. Nothing when it was settled before."""
        if self._entry is not None:
            self._entry.settle(outcome, self._amount)


async def open_vector_books(
    edge: Edge, model: ModelSpec, call: Call, texts: Sequence[object], form: object, num_tokens: int
) -> VectorBooks:
    """As `open_books`; `texts` and `form` are plain data that tell what is asked, and how."""
    row = await _claim(edge, call)
    build = [file.sha256 for file in model.files]
    lookup, found = await look_up(
        edge.stores.cache,
        call,
        asked=texts,
        form=(model.id, build, form, len(texts)),
        is_repeatable=True,
        is_whole=lambda answer: bool(answer.vectors),
    )
    vectors = None if found is None else found.vectors
    books = VectorBooks(edge, model, call, row, num_tokens, lookup, vectors)
    if vectors is not None:
        books.admit()
        books.settle("cached")
    return books


async def _claim(edge: Edge, call: Call) -> str:
    """Use the request's idempotency key, if it has one; the id of its row in the journal, which is
    the same for every retry. Raises `IdempotencyMismatch`."""
    keys = edge.stores.idempotency
    if call.idempotency is None or keys is None:
        return call.request_id
    return await keys.claim(call.tenant, call.idempotency, call.request_id)


def _admit(
    edge: Edge, model: ModelSpec, call: Call, row: str, prompt_tokens: int
) -> UsageEntry | None:
    """A row in the journal, if there is one."""
    if edge.stores.journal is None:
        return None
    return edge.stores.journal.admit(
        row,
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
