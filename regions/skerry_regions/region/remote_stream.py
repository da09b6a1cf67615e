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
from collections.abc import Sequence

from msgspec.structs import replace

from skerry.errors import CapacityError, RequestTimeout, SkerryError, Unavailable
from skerry_regions.region.attempt import Attempt
from skerry_regions.region.attempt_record import MAX_RECORDS, AttemptedStream, AttemptRecord
from skerry_regions.region.emitted import Emitted
from skerry_regions.region.placer import EarlierAttempts, Placer, Route
from skerry_regions.region.recovery import RecoveryPolicy, in_zone, is_recoverable
from skerry_regions.wire.client import NO_USAGE, error_of
from skerry_regions.wire.protocol import Done, Failed, PhaseUsage, Submit, Tokens

logger = logging.getLogger(__name__)


class RemoteStream(AttemptedStream):
    """A `TokenStream` that outlives its nodes.

    A slow reader does not pause the engine; what waits here is bounded by the request's own
    `max_tokens`.
    """

    def __init__(self, placer: Placer, policy: RecoveryPolicy, submit: Submit) -> None:
        self._placer = placer
        self._policy = policy
        self._submit = submit
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._attempt: Attempt | None = None
        self._emitted = Emitted(submit.output_ids)
        self._failed_nodes: set[str] = set()
        self._numeric_builds: frozenset[str] = frozenset()  # of those that made tokens
        self._failing_since: float | None = None  # the first failure after the last token
        self.num_attempts = 0
        self._num_fruitless = 0  # attempts since the last token
        self._aborted = self._ended = self._withheld = False
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
                    if (fresh := self._passed_on(event)) is not None:
                        return fresh
                case Done():
                    self._ended = True
                    if self._withheld and event.finish_reason == "stop":
                        event = replace(event, finish_reason="length")  # an earlier node said so
                    return replace(event, usage=self._usage(event.usage))
                case Failed():
                    if not await self._recover(event):
                        return self._cancelled()
                case _:
                    pass  # Accepted after the first tokens
        raise StopAsyncIteration

    def _passed_on(self, tokens: Tokens) -> Tokens | None:
        """Return what of it is new, or None; the attempt is a good one."""
        if tokens.prompt is not None and self.num_attempts > 1:  # see `_usage`
            tokens = replace(tokens, prompt=None)
        fresh = self._emitted.fresh(tokens)
        self._withheld |= tokens.withheld
        self._failing_since = None
        self._num_fruitless = 0
        if fresh is not None and fresh.token_ids and self._attempt is not None:
            self._numeric_builds |= self._attempt.route.numeric_builds
        return fresh

    def _usage(self, usage: PhaseUsage) -> PhaseUsage:
        """Return what the client is charged. Tokens are counted once, whichever attempts made them;
        a repair's prefix hits are not the client's."""
        prefill = self._attempt.prefill_usage if self._attempt is not None else None
        first = prefill or usage  # what the decode node found "cached" was handed over to it
        return replace(
            usage,
            prompt_tokens=len(self._submit.prompt_ids),
            output_tokens=len(self._emitted.token_ids),
            cached_tokens=first.cached_tokens if self.num_attempts == 1 else 0,
            pinned=first.pinned if self.num_attempts == 1 else None,
            queue_seconds=first.queue_seconds,
            prefill_seconds=first.prefill_seconds,
        )

    def _cancelled(self) -> Done:
        """Return the end of a stream that was aborted while no node had it."""
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
        if not is_recoverable(error):
            raise error
        now = self._loop.time()
        self._failing_since = self._failing_since or now
        give_up = self._failing_since + self._policy.patience
        logger.info(
            "request %s goes on after %d tokens: %s",
            self._submit.request_id, len(self._emitted.token_ids), error.message,
        )  # fmt: skip
        pauses = self._policy.pauses()
        while (refusal := await self._try_nodes()) is not None and not self._aborted:
            exhausted = self._num_fruitless >= self._policy.attempts
            if exhausted or self._loop.time() >= give_up or not is_recoverable(refusal):
                raise refusal
            await asyncio.sleep(next(pauses))
        if self._aborted and self._attempt is not None:
            self._attempt.abort()
        return self._attempt is not None

    async def _try_nodes(self) -> SkerryError | None:
        """Offer the request to one node after the other; return why none took it, or None.

        Raises RequestTimeout past the deadline.
        """
        submit = self._continuation()
        refusal: SkerryError = Unavailable(
            f"no node{in_zone(submit)} can serve {submit.model} now", retry_after=1.0
        )
        earlier = EarlierAttempts(
            failed=frozenset(self._failed_nodes), numeric_builds=self._numeric_builds
        )
        asked = time.monotonic()
        for route in self._placer.place(submit, earlier):
            if self._aborted or self._num_fruitless >= self._policy.attempts:
                break
            if submit.prompt_logprobs is not None:  # they pass the cache by: no KV helps
                route = dataclasses.replace(route, prefill=None, fetch=None)
            self._emitted.start_attempt()
            record = self._new_record(route, asked)
            try:
                attempt = Attempt(route, submit, self._policy.lease_seconds, record)
            except CapacityError as error:
                asked = time.monotonic()
                record.fail(asked, error)
                refusal = error
                continue
            self._attempt = attempt
            self.num_attempts += 1
            self._num_fruitless += 1
            failed = await attempt.accepted()
            if failed is None:
                self._explanation = None
                return None
            self._drop_attempt()
            asked, refusal = time.monotonic(), error_of(failed)
            record.fail(asked, refusal)
            if not is_recoverable(refusal):
                break
        return refusal

    def _new_record(self, route: Route, asked: float) -> AttemptRecord:
        chosen = route.candidates[0] if route.candidates else None
        record = AttemptRecord(
            nodes=route.nodes,
            candidates=route.candidates,
            is_exact=chosen is None or chosen.is_exact,
            same_build=chosen is None or chosen.same_build,
            num_before=len(self._emitted.token_ids),
            asked=asked,
            began=time.monotonic(),
        )
        self._records.append(record)
        return record

    def _count_tokens(self, record: AttemptRecord) -> None:
        """Note how far it got: nothing is counted per token."""
        record.num_tokens = len(self._emitted.token_ids) - record.num_before

    def _continuation(self) -> Submit:
        """Return the next attempt's request. Raises RequestTimeout past the deadline."""
        left = self._submit.seconds_left
        if left is not None:
            left -= self._loop.time() - self._started
            if left <= 0:
                raise RequestTimeout(
                    f"the deadline passed after {len(self._emitted.token_ids)} tokens"
                )
        return replace(
            self._submit, output_ids=self._emitted.token_ids, seconds_left=left,
            epoch=self._submit.epoch + self.num_attempts,
            prompt_logprobs=None if self._emitted.token_ids else self._submit.prompt_logprobs,
        )  # fmt: skip

    def _drop_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.forget()
            self._attempt = None
