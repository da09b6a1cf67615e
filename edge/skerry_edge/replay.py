"""Answers on their way to and from the response cache: recorded, named, and told again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from skerry_edge.idempotency import TTL_SECONDS as IDEMPOTENT_SECONDS
from skerry_edge.response_cache import Event, ResponseCache, StoredAnswer, key_of
from skerry_regions.client import Explained, TokenStream
from skerry_regions.protocol import Sampling

if TYPE_CHECKING:
    from skerry_edge.generation import Call, Job

GREEDY_TEMPERATURE = 1e-5  # below it the seed means nothing: see the engine's `SamplingParams`


class RecordedStream:
    """A `TokenStream` that remembers what passed."""

    def __init__(self, stream: TokenStream) -> None:
        self._stream = stream
        self._events = aiter(stream)
        self.record: list[Event] = []

    @property
    def explanation(self) -> str:
        """See `Explained`."""
        return self._stream.explanation if isinstance(self._stream, Explained) else ""

    def abort(self) -> None:
        self._stream.abort()

    def __aiter__(self) -> RecordedStream:
        return self

    async def __anext__(self) -> Event:
        event = await anext(self._events)
        self.record.append(event)
        return event


class ReplayedStream:
    """A `TokenStream` whose events are all known."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = iter(events)

    def abort(self) -> None:
        """Nothing runs; the events end as they once did."""

    def __aiter__(self) -> ReplayedStream:
        return self

    async def __anext__(self) -> Event:
        await asyncio.sleep(0)  # other streams come between, as if it were computed
        for event in self._events:
            return event
        raise StopAsyncIteration


class Lookup:
    """One request's dealings with the cache: under which keys, for how long, and what was found."""

    def __init__(self, cache: ResponseCache, tenant: str, ttl_by_key: Mapping[bytes, int]) -> None:
        self._cache = cache
        self._tenant = tenant
        self._ttl_by_key = ttl_by_key
        self._found: list[list[Event]] = []
        self._recorded: list[RecordedStream] = []
        self.found_under: bytes | None = None

    async def look(self, num_streams: int) -> None:
        """See whether the answer is there."""
        for key in self._ttl_by_key:
            answer = await self._cache.find(self._tenant, key)
            if answer is not None and len(answer.streams) == num_streams:
                self._found, self.found_under = answer.streams, key
                return

    def replay(self) -> ReplayedStream | None:
        """The next choice of an answer that was found, in the order of `record`."""
        return ReplayedStream(self._found.pop(0)) if self._found else None

    def record(self, stream: TokenStream) -> TokenStream:
        """A stream whose answer is to be kept."""
        recorded = RecordedStream(stream)
        self._recorded.append(recorded)
        return recorded

    def keep(self) -> None:
        """Keep what was recorded, all of which has ended well. Returns at once."""
        streams = [recorded.record for recorded in self._recorded]
        self._cache.keep(self._tenant, self._ttl_by_key, StoredAnswer(streams=streams))


def lookup_for(cache: ResponseCache | None, jobs: Sequence[Job], call: Call) -> Lookup | None:
    """How the cache takes part in a request; None when it does not."""
    ttl_by_key: dict[bytes, int] = {}
    if call.idempotency is not None:
        ttl_by_key[retry_key(jobs, call.idempotency.key)] = IDEMPOTENT_SECONDS
    if call.cache is not None and (call.cache.key is not None or is_repeatable(jobs)):
        ttl_by_key[answer_key(jobs, call.cache.key)] = call.cache.ttl_seconds
    if cache is None or not ttl_by_key:
        return None
    return Lookup(cache, call.tenant, ttl_by_key)


def answer_key(jobs: Sequence[Job], own_key: str | None = None) -> bytes:
    """The name of what these jobs make. Everything that changes the answer is part of it.

    A caller's own key takes the place of prompt and sampling; what the answer's form depends on
    remains, so that no answer is told in a form that it does not have.
    """
    forms = [_form(job) for job in jobs]
    if own_key is not None:
        return key_of("own", own_key, forms)
    return key_of("asked", forms, [(job.prompt_ids, _sampling(job)) for job in jobs])


def retry_key(jobs: Sequence[Job], idempotency_key: str) -> bytes:
    """The name of the answer that a retry of these jobs gets."""
    return key_of("retry", idempotency_key, answer_key(jobs))


def is_repeatable(jobs: Sequence[Job]) -> bool:
    """Whether the answer would come out the same again."""
    return all(job.seeded or _is_greedy(job) for job in jobs)


def _is_greedy(job: Job) -> bool:
    return job.sampling.temperature < GREEDY_TEMPERATURE


def _form(job: Job) -> object:
    scored = None if job.prompt_logprobs is None else (job.prompt_logprobs, job.prompt_ids)
    shape = (job.num_choices, job.stops, job.grammar, job.sampling.logprobs, scored)
    return (job.model.id, job.text.build, shape)


def _sampling(job: Job) -> Sampling:
    if _is_greedy(job):
        return msgspec.structs.replace(job.sampling, temperature=0.0, seed=0)
    return job.sampling
