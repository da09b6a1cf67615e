"""Answers on their way to and from the response cache: named, recorded and replayed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from skerry_edge.answer_headers import AnswerHeaders
from skerry_edge.gate.caller import Caller
from skerry_edge.ledger.idempotency import REPLAYED_HEADER, IdempotencyKey
from skerry_edge.ledger.idempotency import TTL_SECONDS as IDEMPOTENT_SECONDS
from skerry_edge.ledger.response_cache import (
    STATUS_HEADER,
    AnswerCache,
    CachePolicy,
    Event,
    StoredAnswer,
    key_of,
)
from skerry_regions.wire.client import Explained, TokenStream

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
        """See `TokenStream.abort`."""
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
        """Do nothing: nothing runs, and the events end as they once did."""

    def __aiter__(self) -> ReplayedStream:
        return self

    async def __anext__(self) -> Event:
        await asyncio.sleep(0)  # other streams come between, as if it were computed
        for event in self._events:
            return event
        raise StopAsyncIteration


class Lookup:
    """One request's part in the cache: the keys of its answer, and for how long it is kept."""

    def __init__(self, cache: AnswerCache, tenant: str, ttl_by_key: Mapping[bytes, int]) -> None:
        self._cache = cache
        self._tenant = tenant
        self._ttl_by_key = ttl_by_key

    async def find(
        self, is_whole: Callable[[StoredAnswer], bool]
    ) -> tuple[StoredAnswer, bytes] | None:
        """Return the answer and the key that has it; None when there is none."""
        for key in self._ttl_by_key:
            answer = await self._cache.find(self._tenant, key)
            if answer is not None and is_whole(answer):
                return answer, key
        return None

    def keep(self, answer: StoredAnswer) -> None:
        """Keep an answer that is whole. Returns at once."""
        self._cache.keep(self._tenant, self._ttl_by_key, answer)


async def look_up(
    cache: AnswerCache | None,
    policy: CachePolicy | None,
    idempotency: IdempotencyKey | None,
    caller: Caller,
    headers: AnswerHeaders,
    *,
    asked: object,
    form: object,
    is_repeatable: bool,
    is_whole: Callable[[StoredAnswer], bool],
) -> tuple[Lookup | None, StoredAnswer | None]:
    """Return what of the cache a request has to do with, and its answer if it is there.

    `asked` and `form` are plain data and wire structs that say all that changes the answer. A key
    of the caller's own takes the place of what is sent; the form remains, so that no answer is
    given in a form that it does not have. Requests bound to a zone have keys of their own.
    """

    def named(*parts: object) -> bytes:
        return key_of(caller.residency, *parts)

    ttl_by_key: dict[bytes, int] = {}
    retry = None
    if idempotency is not None:
        retry = named("retry", idempotency.key, asked, form)
        ttl_by_key[retry] = IDEMPOTENT_SECONDS
    if policy is not None:
        of_gateway = [policy.gateway] if policy.gateway else []
        if policy.key is not None:
            ttl_by_key[named("own", policy.key, form, *of_gateway)] = policy.ttl_seconds
        elif (is_repeatable or policy.takes_any) and not caller.mixed_builds:
            ttl_by_key[named("asked", asked, form, *of_gateway)] = policy.ttl_seconds
    lookup = None if cache is None or not ttl_by_key else Lookup(cache, caller.tenant, ttl_by_key)
    found = None if lookup is None else await lookup.find(is_whole)
    if policy is not None:
        headers[STATUS_HEADER] = "MISS" if found is None else "HIT"
    if found is not None and found[1] == retry:
        headers[REPLAYED_HEADER] = "true"
    return lookup, None if found is None else found[0]
