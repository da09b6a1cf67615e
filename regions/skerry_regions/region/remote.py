"""A region of several nodes, seen from the edge: place, stream, and go on elsewhere when one fails.

The transcript lives here. A stream is a chain of attempts at the same request; each carries what
was emitted so far (`output_ids`) and a higher epoch, so that a node believed dead cannot add a
token. Randomness is keyed by position, so on nodes of one numeric build the client gets exactly the
tokens of an undisturbed run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from skerry.errors import (
    CapacityError,
    InternalError,
    ModelNotFound,
    RequestTimeout,
    SkerryError,
    Unavailable,
)
from skerry_regions import zones as residency
from skerry_regions.region.attempts import MAX_RECORDS, AttemptRecord, Traced
from skerry_regions.region.routes import Attempt, Past, Placer, Route
from skerry_regions.wire.client import error_of, vectors_of
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.protocol import (
    NO_USAGE,
    Done,
    Embed,
    Embedded,
    Failed,
    PhaseUsage,
    Submit,
    TokenLogprob,
    Tokens,
)

logger = logging.getLogger(__name__)

EMBED_SECONDS = 0.02  # about what an embedding takes


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How far a stream is carried on."""

    attempts: int = 256  # in a row without a token, all nodes together
    patience: float = 30.0  # seconds without a token, from the first failure on
    start_patience: float = 5.0  # seconds in which nodes that cannot be reached may come back
    pause: float = 0.05  # seconds before looking again when no node takes it; doubled each time …
    longest_pause: float = 1.0  # … up to this
    lease_seconds: float = 30.0  # that a decode node waits for KV before it computes itself

    def pauses(self) -> Iterator[float]:
        """Seconds to wait, one time after the other."""
        pause = self.pause
        while True:
            yield pause
            pause = min(2 * pause, self.longest_pause)


class RemoteRegion:
    """`RegionClient` over connections to nodes.

    `links` is looked at afresh for every attempt, so nodes may come and go.
    """

    def __init__(
        self,
        links: Callable[[], Sequence[NodeLink]],
        placer: Placer,
        policy: RetryPolicy | None = None,
    ) -> None:
        self._links = links
        self.placer = placer
        self.policy = policy or RetryPolicy()

    async def generate(self, submit: Submit) -> RemoteStream:
        """See `RegionClient.generate`."""
        links = self._links_for(submit)
        serves = any(submit.model in link.models for link in links)
        if not serves and any(link.is_up for link in links):
            raise ModelNotFound(f"no node{_where(submit)} serves {submit.model}", param="model")
        stream = RemoteStream(self.placer, self.policy, submit)
        await stream.start()
        return stream

    async def embed(self, embed: Embed) -> bytes:
        """See `RegionClient.embed`. Tried once on each node, where it should be done first.

        What one node began another can do again: a text's vector has the same bits everywhere.
        """
        error: SkerryError = Unavailable(
            f"no node{_where(embed)} embeds by {embed.model} now", retry_after=1.0
        )
        links = [link for link in self._links_for(embed) if embed.model in link.models]
        links.sort(key=lambda link: (not link.is_up, _seconds_until_embedded(link)))
        for link in links:
            try:
                return await _embed_on(link, embed)
            except SkerryError as refusal:
                error = refusal
                if not _elsewhere_may_help(refusal):
                    break
        raise error

    def _links_for(self, request: Submit | Embed) -> list[NodeLink]:
        """To the nodes of the zone that the request is bound to."""
        return [link for link in self._links() if residency.allows(request.residency, link.zone)]

    def models(self) -> frozenset[str]:
        return frozenset(model for link in self._links() if link.is_up for model in link.models)

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links()))


def _seconds_until_embedded(link: NodeLink) -> float:
    """The way there and back, and what of ours is there before."""
    return (link.rtt or 0.0) + EMBED_SECONDS * link.num_streams


async def _embed_on(link: NodeLink, embed: Embed) -> bytes:
    answer: asyncio.Future[Embedded | Failed] = asyncio.get_running_loop().create_future()

    def push(event: Embedded | Failed) -> None:
        if not answer.done():  # else its reader has gone
            answer.set_result(event)

    stream = link.embed(embed, push)
    try:
        return vectors_of(await answer)
    except asyncio.CancelledError:
        link.forget(stream)
        raise


class RemoteStream(Traced):
    """A `TokenStream` that outlives its nodes.

    A slow reader does not pause the engine; what waits here is bounded by the request's own
    `max_tokens`.
    """

    def __init__(self, placer: Placer, policy: RetryPolicy, submit: Submit) -> None:
        self._placer = placer
        self._policy = policy
        self._submit = submit
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._attempt: Attempt | None = None
        self._output = list(submit.output_ids)
        self._prompt_logprobs = 0  # entries passed on …
        self._attempt_prompt_logprobs = 0  # … and told by this attempt, which starts anew
        self._failed_nodes: set[str] = set()
        self._numeric_builds: frozenset[str] = frozenset()  # of those that made tokens
        self._failing_since: float | None = None  # the first failure after the last token
        self._num_attempts = 0
        self._num_fruitless = 0  # attempts since the last token
        self._aborted = self._ended = False
        self._explanation: str | None = ""  # None: of the attempt's route, not put into words yet
        self._records: deque[AttemptRecord] = deque(maxlen=MAX_RECORDS)

    @property
    def explanation(self) -> str:
        """See `Explained`."""
        if self._explanation is None and self._attempt is not None:
            self._explanation = self._attempt.route.explanation
        return self._explanation or ""

    @property
    def attempts(self) -> Sequence[AttemptRecord]:
        """See `Traced`."""
        if self._attempt is not None:
            self._count_tokens(self._attempt.record)
        return list(self._records)

    @property
    def num_attempts(self) -> int:
        return self._num_attempts

    async def start(self) -> None:
        """Find a node that takes the request. Raises what `RegionClient.generate` raises.

        Before the first token a full region is the caller's to know, so nothing is waited for; a
        region out of reach is most often about to be restarted.
        """
        give_up = self._started + self._policy.start_patience
        try:
            error = await self._try_nodes()
            pauses = self._policy.pauses()
            while isinstance(error, Unavailable) and self._loop.time() < give_up:
                await asyncio.sleep(next(pauses))
                error = await self._try_nodes()
        except asyncio.CancelledError:
            self._drop_attempt()
            raise
        if error is not None:
            raise error

    def abort(self) -> None:
        """See `TokenStream.abort`."""
        if not self._aborted:
            self._aborted = True
            if self._attempt is not None:
                self._attempt.abort()

    def __aiter__(self) -> RemoteStream:
        return self

    async def __anext__(self) -> Tokens | Done:
        while not self._ended:
            if self._attempt is None:
                raise Unavailable("the stream has no node")
            match event := await self._attempt.next():
                case Tokens():
                    if (fresh := self._fresh(event)) is not None:
                        return fresh
                case Done():
                    self._ended = True
                    return replace(event, usage=self._usage(event.usage))
                case Failed():
                    if not await self._recover(event):
                        return self._cancelled()
                case _:
                    pass  # Accepted was read when the attempt was placed
        raise StopAsyncIteration

    def _fresh(self, tokens: Tokens) -> Tokens | None:
        """What of it is new, noted in the transcript; None when nothing is.

        On a split route the first token is told by both nodes.
        """
        known = len(self._output) - tokens.index
        if known < 0:
            raise InternalError(f"tokens at {tokens.index}, expected {len(self._output)}")
        self._failing_since = None
        self._num_fruitless = 0
        token_ids = tokens.token_ids[known:]
        logprobs = tokens.logprobs[known:] if tokens.logprobs is not None else None
        self._output += token_ids
        if token_ids and self._attempt is not None:
            self._numeric_builds |= self._attempt.route.numeric_builds
        prompt_logprobs = self._fresh_prompt_logprobs(tokens.prompt_logprobs or [])
        if not token_ids and not prompt_logprobs:
            return None
        return replace(
            tokens,
            index=tokens.index + known,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs or None,
        )

    def _fresh_prompt_logprobs(self, told: list[TokenLogprob]) -> list[TokenLogprob]:
        """Without those that an earlier attempt told before it failed."""
        fresh = told[max(0, self._prompt_logprobs - self._attempt_prompt_logprobs) :]
        self._attempt_prompt_logprobs += len(told)
        self._prompt_logprobs += len(fresh)
        return fresh

    def _usage(self, usage: PhaseUsage) -> PhaseUsage:
        """Tokens are counted once, whoever computed them; a repair's prefix hits are not the
        client's."""
        prefill = self._attempt.prefill_usage if self._attempt is not None else None
        first = prefill or usage  # what the decode node found "cached" was handed over to it
        return replace(
            usage,
            prompt_tokens=len(self._submit.prompt_ids),
            output_tokens=len(self._output),
            cached_tokens=first.cached_tokens if self._num_attempts == 1 else 0,
            queue_seconds=first.queue_seconds,
            prefill_seconds=first.prefill_seconds,
        )

    def _cancelled(self) -> Done:
        """The end of a stream that was aborted while no node had it."""
        self._ended = True
        usage = self._usage(NO_USAGE)
        return Done(stream=self._submit.stream, finish_reason="cancelled", usage=usage)

    # --- placing ---------------------------------------------------------------------------------

    async def _recover(self, failed: Failed) -> bool:
        """Go on elsewhere, as long as the policy and the deadline allow. Raises what ends it.

        False when it was aborted, and no node has it.
        """
        error = error_of(failed)
        if self._attempt is not None:
            self._count_tokens(self._attempt.record)
            self._attempt.record.fail(time.monotonic(), error)
            self._failed_nodes.add(self._attempt.blamed)
        self._drop_attempt()
        if self._aborted:
            return False
        if not _elsewhere_may_help(error):
            raise error
        now = self._loop.time()
        self._failing_since = self._failing_since or now
        give_up = self._failing_since + self._policy.patience
        logger.info(
            "request %s goes on after %d tokens: %s",
            self._submit.request_id, len(self._output), error.message,
        )  # fmt: skip
        pauses = self._policy.pauses()
        while (refusal := await self._try_nodes()) is not None and not self._aborted:
            exhausted = self._num_fruitless >= self._policy.attempts
            if exhausted or self._loop.time() >= give_up or not _elsewhere_may_help(refusal):
                raise refusal
            await asyncio.sleep(next(pauses))
        if self._aborted and self._attempt is not None:
            self._attempt.abort()
        return self._attempt is not None

    async def _try_nodes(self) -> SkerryError | None:
        """Offer the request to one node after the other; why none took it, or None.

        Raises RequestTimeout past the deadline.
        """
        submit = self._continuation()
        refusal: SkerryError = Unavailable(
            f"no node{_where(submit)} can serve {submit.model} now", retry_after=1.0
        )
        past = Past(failed=frozenset(self._failed_nodes), numeric_builds=self._numeric_builds)
        asked = time.monotonic()
        for route in self._placer.place(submit, past):
            if self._aborted or self._num_fruitless >= self._policy.attempts:
                break
            if submit.prompt_logprobs is not None:  # they pass the cache by: no KV helps
                route = dataclasses.replace(route, prefill=None, fetch=None)
            self._attempt_prompt_logprobs = 0
            record = self._new_record(route, asked)
            try:
                attempt = Attempt(route, submit, self._policy.lease_seconds, record)
            except CapacityError as error:
                asked = time.monotonic()
                record.fail(asked, error)
                refusal = error
                continue
            self._attempt = attempt
            self._num_attempts += 1
            self._num_fruitless += 1
            event = await attempt.next()
            if not isinstance(event, Failed):
                self._explanation = None
                return None
            self._drop_attempt()
            asked, refusal = time.monotonic(), error_of(event)
            record.fail(asked, refusal)
            if not _elsewhere_may_help(refusal):
                break
        return refusal

    def _new_record(self, route: Route, asked: float) -> AttemptRecord:
        chosen = route.candidates[0] if route.candidates else None
        record = AttemptRecord(
            nodes=route.nodes,
            candidates=route.candidates,
            is_exact=chosen is None or chosen.is_exact,
            same_build=chosen is None or chosen.same_build,
            num_before=len(self._output),
            asked=asked,
            began=time.monotonic(),
        )
        self._records.append(record)
        return record

    def _count_tokens(self, record: AttemptRecord) -> None:
        """How far it got, once it is asked: nothing is counted per token."""
        record.num_tokens = len(self._output) - record.num_before

    def _continuation(self) -> Submit:
        """The request as the next attempt must see it. Raises RequestTimeout past the deadline."""
        left = self._submit.seconds_left
        if left is not None:
            left -= self._loop.time() - self._started
            if left <= 0:
                raise RequestTimeout(f"the deadline passed after {len(self._output)} tokens")
        return replace(
            self._submit, output_ids=self._output, seconds_left=left,
            epoch=self._submit.epoch + self._num_attempts,
            prompt_logprobs=None if self._output else self._submit.prompt_logprobs,
        )  # fmt: skip

    def _drop_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.forget()
            self._attempt = None


def _where(request: Submit | Embed) -> str:
    return f" in the zone {request.residency!r}" if request.residency is not None else ""


def _elsewhere_may_help(error: SkerryError) -> bool:
    """A deadline is the same everywhere, and so is a wrong request."""
    if isinstance(error, RequestTimeout):
        return False
    return isinstance(error, CapacityError | InternalError)
