"""When the phases of one stream began on its node: a few calls per stream, none per token."""

from __future__ import annotations

import time
from collections.abc import Callable

from skerry_core.request import EngineUsage
from skerry_regions.phases import Phase, Timeline


class StreamTimes:
    """Notes of one stream, from its arrival on; `timeline` makes the phases of them.

    `clock` is monotonic, in seconds.
    """

    __slots__ = (
        "_arrived",
        "_clock",
        "_compiled",
        "_ended",
        "_first_tokens",
        "_received",
        "_submitted",
        "_usage",
    )

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._arrived = clock()
        self._compiled = self._submitted = self._first_tokens = self._ended = 0.0
        self._received: Phase | None = None
        self._usage: EngineUsage | None = None

    def compiled(self) -> None:
        """The stream's grammar is ready."""
        self._compiled = self._now()

    def received(self, blocks: int, num_bytes: int, *, lost: bool) -> None:
        """The KV that the stream waited for is here, or will not come."""
        self._received = Phase(
            name="receive",
            start=self._compiled,
            seconds=self._now() - self._compiled,
            blocks=blocks,
            bytes=num_bytes,
            lost=lost,
        )

    def submitted(self) -> None:
        """The engine has the request."""
        self._submitted = self._now()

    def first_tokens(self) -> None:
        """The engine made the first token."""
        self._first_tokens = self._now()

    @property
    def has_first_tokens(self) -> bool:
        return self._first_tokens > 0.0

    def ended(self, usage: EngineUsage) -> None:
        """The engine made the last token."""
        self._ended = self._now()
        self._usage = usage

    def timeline(self, sent: tuple[int, int] | None = None) -> Timeline:
        """Return the phases, with the hand-over that ends now: (blocks, bytes) that were `sent`."""
        phases: list[Phase] = []
        if self._compiled:
            phases.append(Phase(name="grammar", start=0.0, seconds=self._compiled))
        if self._received is not None:
            phases.append(self._received)
        if self._usage is not None:
            phases += self._in_engine(self._usage)
        if sent is not None:
            blocks, num_bytes = sent
            start = self._submitted
            phases.append(
                Phase(
                    name="send",
                    start=start,
                    seconds=self._now() - start,
                    blocks=blocks,
                    bytes=num_bytes,
                )
            )
        phases.sort(key=lambda phase: phase.start)
        return Timeline(seconds=self._now(), phases=tuple(phases))

    def _in_engine(self, usage: EngineUsage) -> list[Phase]:
        """Queue, prefill and decode. The engine knows only how long it had the request, by a clock
        of its own; its end is the point that both clocks know."""
        first_place = self._ended - (usage.seconds - usage.queue_seconds)
        first_tokens = self._first_tokens or self._ended
        scheduled = min(max(first_place, self._submitted), first_tokens)
        phases = [
            Phase(name="queue", start=self._submitted, seconds=scheduled - self._submitted),
        ]
        decoding_since = scheduled
        if usage.prefill_steps:
            decoding_since = first_tokens
            phases.append(
                Phase(
                    name="prefill",
                    start=scheduled,
                    seconds=first_tokens - scheduled,
                    tokens=usage.prefill_tokens,
                    cached_tokens=usage.cached_tokens,
                    steps=usage.prefill_steps,
                    preemptions=usage.preemptions,
                )
            )
        if usage.decode_steps:
            phases.append(
                Phase(
                    name="decode",
                    start=decoding_since,
                    seconds=self._ended - decoding_since,
                    tokens=usage.decode_tokens,
                    steps=usage.decode_steps,
                )
            )
        return phases

    def _now(self) -> float:
        return self._clock() - self._arrived
