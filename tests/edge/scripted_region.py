"""A region whose streams say what a test has written down."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.edge.byte_text import EOS

from skerry.errors import ModelNotFound
from skerry_regions.region.attempt_record import AttemptedStream, AttemptRecord
from skerry_regions.wire.protocol import Done, Embed, PhaseUsage, Submit, Tokens

MODEL = "@cf/test/bytes"


class Hold:
    """A step that never comes: the stream stays silent until it is aborted."""


@dataclass(frozen=True)
class Moved:
    """The stream goes on elsewhere."""

    explanation: str


Reason = Literal["stop", "length", "cancelled"]
Step = Sequence[int] | Tokens | Done | Hold | Moved | Exception


def answer(text: str | bytes, *, reason: Reason = "stop", per_step: int = 1) -> list[Step]:
    """Steps that say `text`, then end: with an end-of-turn token when the reason is "stop"."""
    ids = [
        *(text.encode() if isinstance(text, str) else text),
        *([EOS] if reason == "stop" else []),
    ]
    steps: list[Step] = [ids[i : i + per_step] for i in range(0, len(ids), per_step)]
    return [*steps, done(reason, len(ids))]


def done(reason: Reason, output_tokens: int, cached_tokens: int = 0) -> Done:
    usage = PhaseUsage(
        prompt_tokens=1, cached_tokens=cached_tokens, output_tokens=output_tokens,
        queue_seconds=0.0, prefill_seconds=0.0, decode_seconds=0.0,
    )  # fmt: skip
    return Done(stream=1, finish_reason=reason, usage=usage)


class ScriptedStream(AttemptedStream):
    def __init__(self, submit: Submit, steps: Sequence[Step], explanation: str = "") -> None:
        self.submit = submit
        self.explanation = explanation
        self.told: Sequence[AttemptRecord] = ()  # of its attempts
        self.aborted = threading.Event()
        self._steps = iter(steps)
        self._index = 0
        self._ended = False
        self._aborting = asyncio.Event()

    @property
    def attempts(self) -> Sequence[AttemptRecord]:
        return self.told

    def abort(self) -> None:
        self.aborted.set()
        self._aborting.set()

    def __aiter__(self) -> ScriptedStream:
        return self

    async def __anext__(self) -> Tokens | Done:
        await asyncio.sleep(0)
        if self._ended:
            raise StopAsyncIteration
        if self._aborting.is_set():
            return self._end(done("cancelled", self._index))
        step = next(self._steps)
        match step:
            case Hold():
                await self._aborting.wait()
                return self._end(done("cancelled", self._index))
            case Moved():
                self.explanation = step.explanation
                return await anext(self)
            case Done():
                return self._end(step)
            case Exception():
                raise step
            case Tokens():
                return step
            case ids:
                return self._tokens(list(ids))

    def _end(self, event: Done) -> Done:
        self._ended = True
        return event

    def _tokens(self, ids: list[int]) -> Tokens:
        """With logprobs when asked: -0.5 for the token, and each lower rank 1.0 below."""
        index, self._index = self._index, self._index + len(ids)
        width = self.submit.sampling.logprobs
        logprobs = None
        if width is not None:
            logprobs = [
                (-0.5, [((each + rank) % 256, -0.5 - rank) for rank in range(width)])
                for each in ids
            ]
        return Tokens(stream=1, index=index, token_ids=ids, logprobs=logprobs)


class ScriptedRegion:
    """`RegionClient` that plays `script(submit)`; an exception from it is a refused submission."""

    def __init__(self) -> None:
        self.script: Callable[[Submit], Sequence[Step]] = lambda submit: answer("Hello")
        self.streams: list[ScriptedStream] = []
        self.served = frozenset({MODEL})
        self.explanation = ""  # of every stream
        self.attempts: list[AttemptRecord] = []  # of every stream
        self.closed = False

    @property
    def submits(self) -> list[Submit]:
        return [stream.submit for stream in self.streams]

    async def generate(self, submit: Submit) -> ScriptedStream:
        stream = ScriptedStream(submit, self.script(submit), self.explanation)
        stream.told = self.attempts
        self.streams.append(stream)
        return stream

    async def embed(self, embed: Embed) -> bytes:
        raise ModelNotFound(f"no node embeds by {embed.model}")

    def models(self) -> frozenset[str]:
        return self.served

    async def close(self) -> None:
        self.closed = True
