"""The choices of a request: each a region's stream of token ids, turned into pieces of text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from skerry.errors import InternalError, RequestError, SkerryError, Unavailable
from skerry.wire import CompletionTokensDetails, FinishReason, TokenLogprob, TokenUsage
from skerry_edge.families.deltas import CallDelta, Delta, ReasoningDelta, TextDelta, merged
from skerry_edge.families.reader import Reader
from skerry_edge.generation.observer import StreamObserver
from skerry_edge.text.transcript import Transcript
from skerry_regions.wire import protocol
from skerry_regions.wire.client import Explained, TokenStream
from skerry_regions.wire.protocol import Done


@dataclass(slots=True)
class Piece:
    """What one step added to one choice. The last one of a choice has a finish reason."""

    deltas: list[Delta]  # in the model's order
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    matched_stop: str | None = None  # the stop string that ended it, in the last piece
    offsets: list[int] = field(default_factory=list)  # of each logprob's token in the output's text
    prompt_logprobs: list[protocol.TokenLogprob] = field(default_factory=list)  # in pieces of these

    @property
    def text(self) -> str:
        """Return what it added to the answer."""
        return "".join([each.text for each in self.deltas if isinstance(each, TextDelta)])

    @property
    def reasoning(self) -> str:
        """Return what it added to the thought before the answer."""
        return "".join([each.text for each in self.deltas if isinstance(each, ReasoningDelta)])

    @property
    def calls(self) -> list[CallDelta]:
        """Return what it added to calls of tools."""
        return [each for each in self.deltas if isinstance(each, CallDelta)]


class Generation:
    """The pieces of one choice. Whoever has it must `close` it."""

    def __init__(
        self,
        stream: TokenStream,
        transcript: Transcript,
        observers: Sequence[StreamObserver],
        reader: Reader | None = None,
        explain: Callable[[str], None] | None = None,
    ) -> None:
        """`explain` is called with the reasons for the nodes that were chosen, and again whenever
        these change."""
        self._stream = stream
        self._transcript = transcript
        self._observers = observers
        self._reader = reader
        self._explain = explain
        self.counts_reasoning = reader is not None and reader.counts_reasoning
        self.num_reasoning_tokens = 0  # those of the thought, with its marks
        self._explained = ""
        self._is_closed = False
        self._ended_by: SkerryError | None = None  # on the platform's part
        self._report_reasons()

    def end(self, error: SkerryError) -> None:
        """Stop computing, and let the answer end with this error."""
        self._ended_by = error
        self._stream.abort()

    def close(self) -> None:
        """Abort what runs. Idempotent, and a plain call: an `await` while cancelled is cancelled
        again."""
        self._stream.abort()
        if not self._is_closed:
            self._is_closed = True
            for observer in self._observers:
                observer.closed()

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Yield pieces in order; empty ones are left out, except the last, which says why it
        ended."""
        transcript = self._transcript
        try:
            async for event in self._stream:
                if self._explain is not None:
                    self._report_reasons()
                if isinstance(event, Done):
                    yield self._last_piece(event.finish_reason, event.usage)
                    return
                if event.prompt is not None:
                    for observer in self._observers:
                        observer.prompt(event.prompt)
                if event.prompt_logprobs:
                    yield Piece([], prompt_logprobs=event.prompt_logprobs)
                if transcript.stopped or not event.token_ids:
                    continue  # computed before the node heard of the abort: not part of the answer
                if event.led and self._reader is not None:
                    self._reader.lead()
                before = transcript.num_tokens
                piece = self._piece(event.token_ids, event.logprobs)
                for observer in self._observers:
                    observer.tokens(transcript.num_tokens - before)
                if transcript.stopped:
                    self._stream.abort()  # and wait for Done, which knows the cached tokens
                if piece.deltas or piece.logprobs:
                    yield piece
            yield self._last_piece("cancelled")  # a region may end an aborted stream without Done
        except SkerryError as exc:
            self._fail(exc.code, is_ours=not isinstance(exc, RequestError))
            raise
        except Exception:  # a bug of ours, which is not charged
            self._fail(InternalError.code, is_ours=True)
            raise
        finally:
            self.close()

    def _piece(self, ids: Sequence[int], logprobs: Sequence[protocol.TokenLogprob] | None) -> Piece:
        """Return what tokens add."""
        transcript, reader = self._transcript, self._reader
        if reader is None or not reader.counts_reasoning:
            text, entries = transcript.push(ids, logprobs)
            return Piece(self._read(text), entries, offsets=transcript.offsets)
        whole = Piece([])
        for index, token_id in enumerate(ids):
            was_thought, before = reader.is_reasoning, transcript.num_tokens
            transcript.is_answer = not (was_thought or reader.in_header)
            entry = None if logprobs is None else logprobs[index : index + 1]
            text, entries = transcript.push((token_id,), entry)
            whole.deltas += self._read(text)
            whole.logprobs += entries
            whole.offsets += transcript.offsets
            if was_thought or reader.is_reasoning:
                self.num_reasoning_tokens += transcript.num_tokens - before
        whole.deltas = merged(whole.deltas)
        return whole

    def _read(self, text: str) -> list[Delta]:
        if self._reader is not None:
            return self._reader.push(text)
        return [TextDelta(text)] if text else []

    def _fail(self, code: str, *, is_ours: bool) -> None:
        for observer in self._observers:
            observer.failed(code, is_ours=is_ours)

    def _report_reasons(self) -> None:
        """Report why it runs where it does, to who wants to know."""
        if self._explain is None or not isinstance(self._stream, Explained):
            return
        if self._stream.explanation != self._explained:
            self._explained = self._stream.explanation
            self._explain(self._explained)

    def _last_piece(self, reason: str, usage: protocol.PhaseUsage | None = None) -> Piece:
        transcript = self._transcript
        text, logprobs = transcript.finish()
        if transcript.stopped:
            reason = "stop"
        if reason == "cancelled":
            raise self._ended_by or Unavailable(
                "The model's node stopped before the answer was complete."
            )
        for observer in self._observers:
            observer.done(reason, usage)
        finish_reason: FinishReason = "stop" if reason == "stop" else "length"
        deltas = self._read(text)
        if (reader := self._reader) is not None:
            deltas = merged([*deltas, *reader.finish(is_ended=finish_reason == "stop")])
            if reader.is_cut or (reader.has_open_call and not transcript.stopped):
                finish_reason = "length"
            elif reader.num_calls and not reader.has_open_call and finish_reason == "stop":
                finish_reason = "tool_calls"
        return Piece(deltas, logprobs, finish_reason, transcript.matched_stop, transcript.offsets)


class Choices:
    """The choices of one request, side by side; those of several prompts in the prompts' order.
    Whoever has them must `close` them."""

    def __init__(
        self,
        generations: Sequence[Generation],
        usage: Callable[[], TokenUsage],
        on_close: Callable[[], None],
    ) -> None:
        self._usage = usage
        self._generations = generations
        self._on_close = on_close
        self._is_closed = False

    def usage(self) -> TokenUsage:
        """Return the tokens so far: each prompt once, the output of every choice."""
        usage = self._usage()
        if any(each.counts_reasoning for each in self._generations):
            count = sum(each.num_reasoning_tokens for each in self._generations)
            usage.completion_tokens_details = CompletionTokensDetails(count)
        return usage

    def close(self) -> None:
        """Abort what still runs and settle the request. Idempotent and synchronous."""
        if not self._is_closed:
            self._is_closed = True
            for generation in self._generations:
                generation.close()
            self._on_close()

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece]]:
        """Yield (choice index, piece) as they come."""
        if len(self._generations) == 1:
            async with aclosing(self._generations[0].pieces()) as pieces:
                async for piece in pieces:
                    yield 0, piece
            return
        arrived: asyncio.Queue[tuple[int, Piece] | BaseException | None] = asyncio.Queue(
            maxsize=len(self._generations)
        )
        tasks = [
            asyncio.create_task(_pump(index, generation, arrived))
            for index, generation in enumerate(self._generations)
        ]
        try:
            running = len(tasks)
            while running:
                match await arrived.get():
                    case None:
                        running -= 1
                    case BaseException() as exc:
                        raise exc
                    case item:
                        yield item
        finally:
            for task in tasks:
                task.cancel()


async def _pump(
    index: int,
    generation: Generation,
    arrived: asyncio.Queue[tuple[int, Piece] | BaseException | None],
) -> None:
    try:
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                await arrived.put((index, piece))
        await arrived.put(None)
    except Exception as exc:
        await arrived.put(exc)
