"""What a stream may wait for before its engine gets it: a grammar, its vocabulary, KV from another
node."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Protocol

from skerry.errors import InvalidInput, SkerryError
from skerry_core.grammar.matcher import Matcher
from skerry_core.reasoning_budget import ReasoningBudget
from skerry_core.request import KVBlock, RequestRejected
from skerry_regions.kv.connector import KVConnector
from skerry_regions.kv.receiver import Arrived
from skerry_regions.node.grammar.grammars import Grammars
from skerry_regions.node.stream import NodeStream
from skerry_regions.wire.protocol import Accepted, Event, Submit, Tokens
from skerry_regions.wire.reports import Fetched

AT_ONCE_TOKENS = 256  # of a transcript, which a budget reads in about a millisecond

Emit = Callable[[NodeStream, Accepted | Event], bool]
"""Passes an event of a stream on; False when the stream ended of it."""


class StartGeneration(Protocol):
    """Gives a request to the engine, with what was prepared."""

    def __call__(
        self,
        stream: NodeStream,
        request: Submit,
        matcher: Matcher | None = None,
        kv: Sequence[KVBlock] = (),
        *,
        budget: ReasoningBudget | None = None,
        private: bool = False,
    ) -> None: ...


class Preparation:
    """Of one stream: both begin at once. Call `close` in the end, however it ended."""

    def __init__(
        self,
        submit: Submit,
        grammars: Grammars | None,
        connector: KVConnector,
        on_fetched: Callable[[Fetched], None] | None,
        on_unknown: Callable[[], None],
    ) -> None:
        """`on_fetched` hears how fast KV came from a node that was to send it, `on_unknown` of a
        grammar without a known way to a whole output.

        Raises InvalidInput when neither a grammar nor a mark that is a text can be taken, or
        another stream waits for the transfer.
        """
        self._submit = submit
        self._grammars = grammars
        self._connector = connector
        self._on_unknown = on_unknown
        self._compiling: asyncio.Task[Matcher] | None = None
        self._loading: asyncio.Task[None] | None = None
        self._arriving: asyncio.Future[Arrived | None] | None = None
        loop = asyncio.get_running_loop()
        if submit.grammar is not None:
            if grammars is None:
                raise InvalidInput(f"{submit.model} takes no grammar here")
            compiling = grammars.matcher(
                submit.grammar, cache_key=submit.cache_key, output_ids=submit.output_ids
            )
            self._compiling = loop.create_task(compiling, name="grammar")
        if submit.reasoning is not None and submit.reasoning.needs_texts:
            if grammars is None:
                self.close()
                raise InvalidInput(f"{submit.model} takes no marks that are texts here")
            self._loading = loop.create_task(grammars.load_texts(submit.cache_key), name="texts")
        if (source := submit.hand_over_from) is not None:
            try:
                self._arriving = connector.expect(source, submit, mixed_builds=submit.mixed_builds)
            except SkerryError:
                self.close()
                raise
            if source.source and on_fetched is not None:
                measure = functools.partial(_measure, source.source, loop.time(), on_fetched)
                self._arriving.add_done_callback(measure)

    async def run(self, stream: NodeStream, emit: Emit, start: StartGeneration) -> None:
        """Start a stream when its grammar is compiled and its KV has come, or will not.

        Raises what `Grammars` and `start` raise. Nothing follows an event that `emit` could
        not pass on: the stream has ended.
        """
        matcher = None
        if self._loading is not None:
            await self._loading
        if self._compiling is not None:
            matcher = await self._compiling
            self._check(matcher)
            stream.is_accepted = True
            stream.times.compiled()
            if not emit(stream, Accepted(stream=stream.number)):
                return
        arrived = None
        if self._arriving is not None:
            arrived = await self._arriving
            if arrived is None:
                stream.times.received(0, 0, lost=True)
        if arrived is None:
            budget = await self._budget(self._submit)
            start(stream, self._submit, matcher, budget=budget)
            return
        stream.times.received(arrived.num_blocks, arrived.num_bytes, lost=False)
        if (first := arrived.first_token) is not None:
            tokens = Tokens(
                stream=stream.number,
                index=stream.next_index,
                token_ids=first.token_ids,
                logprobs=first.logprobs,
                withheld=first.withheld,
                led=first.led,
            )
            if not emit(stream, tokens):
                return
            stream.next_index += len(first.token_ids)
        arrival = self._connector.arrival(self._submit, arrived)
        budget = await self._budget(arrival.request)
        start(
            stream, arrival.request, matcher, arrival.blocks, budget=budget, private=arrival.private
        )

    async def _budget(self, request: Submit) -> ReasoningBudget | None:
        """Return what bounds a request's reasoning, after its transcript: a long one is read on a
        thread. Raises InvalidInput."""
        if request.reasoning is None:
            return None
        texts = () if self._grammars is None else self._grammars.token_texts
        take = functools.partial(ReasoningBudget, request.reasoning, request.output_ids, texts)
        is_short = len(request.output_ids) <= AT_ONCE_TOKENS
        try:
            return take() if is_short else await asyncio.to_thread(take)
        except RequestRejected as error:
            raise InvalidInput(str(error)) from None

    def _check(self, matcher: Matcher) -> None:
        """Raises InvalidInput for a strict grammar without a known way to a whole output."""
        if matcher.is_closable:
            return
        self._on_unknown()
        if self._submit.grammar is not None and self._submit.grammar.strict:
            raise InvalidInput(
                "Bad input: no shortest output of this schema is known, so max_tokens could cut "
                "it: strict refuses that; without strict it is taken"
            )

    def close(self) -> None:
        """Give up what is still waited for. Idempotent."""
        for each in (self._compiling, self._loading, self._arriving):
            if each is not None:
                each.cancel()
        self._compiling = self._loading = self._arriving = None  # errors refer to this by traceback


def _measure(
    source: str,
    asked_at: float,
    on_fetched: Callable[[Fetched], None],
    arriving: asyncio.Future[Arrived | None],
) -> None:
    """Report how long KV took to come from a node."""
    if not arriving.cancelled() and (arrived := arriving.result()) is not None:
        seconds = asyncio.get_running_loop().time() - asked_at
        on_fetched(Fetched(source=source, num_bytes=arrived.num_bytes, seconds=seconds))
