"""Requests that may have been answered before: found in the response cache, or sent again with a
key."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from skerry_edge.answer_headers import AnswerHeaders
from skerry_edge.gate.caller import Caller
from skerry_edge.gate.job import Job
from skerry_edge.ledger.idempotency import IdempotencyKey
from skerry_edge.ledger.replay import (
    GREEDY_TEMPERATURE,
    Lookup,
    RecordedStream,
    ReplayedStream,
    look_up,
)
from skerry_edge.ledger.response_cache import CachePolicy, StoredAnswer
from skerry_edge.ledger.stores import Stores
from skerry_edge.ledger.usage_tables import Outcome
from skerry_regions.models.catalog import SamplingDefaults
from skerry_regions.wire.client import TokenStream
from skerry_regions.wire.protocol import Sampling

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(dict[str, int | float])


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatPolicy:
    """What a request's headers want of answers that were given before."""

    cache: CachePolicy | None  # None: the response cache has no part in it
    idempotency: IdempotencyKey | None


class Repeat:
    """A request for text and its answer, found or to be kept."""

    def __init__(
        self,
        jobs: Sequence[Job],
        row: str,
        lookup: Lookup | None,
        found: StoredAnswer | None,
    ) -> None:
        self.jobs = jobs  # with the seeds that they are to be run with
        self.row = row  # id of the request's row in the journal
        self.is_hit = found is not None  # nothing is computed
        self._lookup = lookup
        self._to_replay = [] if found is None else list(found.streams)
        self._recorded: list[RecordedStream] = []

    def replayed(self) -> ReplayedStream:
        """Return the next choice of the answer that was found."""
        return ReplayedStream(self._to_replay.pop(0))

    def recorded(self, stream: TokenStream) -> TokenStream:
        """Return the stream of a choice that is computed, to be kept if the answer is."""
        if self._lookup is None:
            return stream
        self._recorded.append(RecordedStream(stream))
        return self._recorded[-1]

    def close(self, outcome: Outcome) -> None:
        """Keep the answer if it is whole. Returns at once."""
        if outcome == "completed" and self._lookup is not None and not self.is_hit:
            streams = [recorded.record for recorded in self._recorded]
            self._lookup.keep(StoredAnswer(streams=streams))


async def open_repeat(
    stores: Stores,
    secret: bytes,
    jobs: Sequence[Job],
    policy: RepeatPolicy,
    headers: AnswerHeaders,
) -> Repeat:
    """Look for an answer, and use the request's key. Raises `IdempotencyMismatch`.

    `secret` is the edge's, of which seeds are derived; `headers` get the cache's status.
    """
    caller = jobs[0].caller
    row, defaults = await claim(stores, caller, policy, _encode(_defaults_of(jobs[0])))
    if policy.idempotency is not None:
        first = _decoder.decode(defaults)
        jobs = [_with_sampling(job, first) for job in jobs]
        seed = policy.idempotency.seed(secret, caller.tenant)
        jobs = [job if job.is_seeded else _with_seed(job, seed) for job in jobs]
    num_streams = sum(job.num_choices for job in jobs)
    is_retry = policy.idempotency is not None
    lookup, found = await look_up(
        stores.cache,
        policy.cache,
        policy.idempotency,
        caller,
        headers,
        asked=[(job.submit.prompt_ids, _sampling(job, is_retry=is_retry)) for job in jobs],
        form=[_form(job) for job in jobs],
        is_repeatable=_are_repeatable(jobs),
        is_whole=lambda answer: len(answer.streams) == num_streams,
    )
    return Repeat(jobs, row, lookup, found)


async def claim(
    stores: Stores, caller: Caller, policy: RepeatPolicy | None, defaults: bytes = b""
) -> tuple[str, bytes]:
    """Use the request's idempotency key, if it has one. Raises `IdempotencyMismatch`.

    Returns the id of the request's row in the journal, and the defaults that it is computed with,
    which are the same for every retry.
    """
    keys = stores.idempotency
    if policy is None or policy.idempotency is None or keys is None:
        return caller.request_id, defaults
    claimed = await keys.claim(caller.tenant, policy.idempotency, caller.request_id, defaults)
    return claimed.first_id, claimed.defaults


def _defaults_of(job: Job) -> dict[str, float]:
    """Return what of a job's sampling a model may have defaults of; a request's jobs share it."""
    sampling = job.submit.sampling
    return {name: getattr(sampling, name) for name in SamplingDefaults.__struct_fields__}


def _are_repeatable(jobs: Sequence[Job]) -> bool:
    """Return whether the answer would come out the same again."""
    return all(job.is_seeded or _is_greedy(job) for job in jobs)


def _is_greedy(job: Job) -> bool:
    return job.submit.sampling.temperature < GREEDY_TEMPERATURE


def _form(job: Job) -> object:
    """Return what the form of an answer depends on, and the model that makes it."""
    submit = job.submit
    scored = submit.prompt_logprobs
    told = None if scored is None else (scored, submit.prompt_ids)
    shape = (job.num_choices, job.stops, submit.grammar, submit.sampling.logprobs, told)
    limits = () if submit.reasoning is None else (submit.reasoning,)
    return (job.model.id, job.text.build, shape, *limits)


def _sampling(job: Job, *, is_retry: bool) -> Sampling:
    """Return what of the sampling names an answer: not a seed that was drawn."""
    sampling = job.submit.sampling
    if _is_greedy(job):
        return replace(sampling, temperature=0.0, seed=0)
    return sampling if job.is_seeded or is_retry else replace(sampling, seed=0)


def _with_seed(job: Job, seed: int) -> Job:
    return _with_sampling(job, {"seed": seed})


def _with_sampling(job: Job, fields: dict[str, float]) -> Job:
    sampling = replace(job.submit.sampling, **fields)
    return dataclasses.replace(job, submit=replace(job.submit, sampling=sampling))
