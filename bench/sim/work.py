"""What a simulated node does: prompts, streams, and the step in which both advance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Prefill:
    """A prompt on its way through a prefill node."""

    blocks: tuple[bytes, ...]
    prompt_tokens: int
    assumed_new: int  # uncached tokens as known when it was queued; exact once it starts
    done: Callable[[], None]
    ready_at: float = 0.0  # when fetched blocks are there
    started: bool = False
    cached: int = 0  # tokens found in the cache at the start
    computed: int = 0  # tokens computed so far

    @property
    def remaining(self) -> int:
        if not self.started:
            return self.assumed_new
        return self.prompt_tokens - self.cached - self.computed


@dataclass(slots=True)
class Stream:
    """A sequence that decodes."""

    context: int  # tokens when it joined
    tokens: int  # to decode
    done: Callable[[], None]


@dataclass(slots=True)
class Step:
    """What is running: `count` equal steps (one if there is prefill in it)."""

    start: float
    end: float
    count: int
    chunk: list[tuple[Prefill, int]]  # prompts and how many of their tokens
    tokens: int  # of the chunk
    pairs: float
    factor: float  # noise
