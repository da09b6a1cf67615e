"""What an engine is given, and what it hands out: `Request` in, `Output` out.

Token ids only: text, templates and stop *strings* live at the edge. Errors the caller can mend are
`RequestRejected`; everything else that goes wrong here is a bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from skerry_core.config import KVDtype
from skerry_core.device_pages import DevicePage
from skerry_core.sampling import SamplingParams

FinishReason = Literal["stop", "length", "cancelled"]
PriorityName = Literal["interactive", "batch"]

TokenLogprob = tuple[float, list[tuple[int, float]]]
"""Log-probability of one token, natural log of the model's raw distribution, then those of the most
likely tokens, (token id, logprob), most likely first."""


class Priority(IntEnum):
    """Scheduling class. Batch work never delays an interactive first token by more than a step."""

    INTERACTIVE = 0
    BATCH = 1


PRIORITIES: Final[dict[PriorityName, Priority]] = {
    "interactive": Priority.INTERACTIVE,
    "batch": Priority.BATCH,
}


class RequestRejected(Exception):
    """The request can never be served by this engine; the message says why."""


class RequestTooLong(RequestRejected):
    """Prompt and `max_tokens` exceed the model's context or the engine's KV memory."""


class EngineOverloaded(Exception):
    """No room now; `retry_after` (seconds) is the engine's estimate of when to come back."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Request(Protocol):
    """What an engine is given: the message that brought it is taken as it is."""

    @property
    def prompt_ids(self) -> Sequence[int]: ...

    @property
    def output_ids(self) -> Sequence[int]:
        """Return tokens that an earlier attempt has emitted; generation goes on after them."""
        ...

    @property
    def sampling(self) -> SamplingParams: ...

    @property
    def tenant(self) -> str:
        """Return between whom the engine is fair."""
        ...

    @property
    def cache_key(self) -> bytes:
        """Return the tenant's derived key (<= 64 bytes) of the block digests."""
        ...

    @property
    def priority(self) -> PriorityName: ...

    @property
    def reject_if_busy(self) -> bool:
        """Return whether it is refused rather than kept waiting for other requests to end."""
        ...

    @property
    def pins(self) -> Sequence[tuple[int, float]]:
        """Return how long beginnings of the prompt stay cached, as far as the tenant may pin: their
        tokens, ascending, and seconds from the first place on."""
        ...

    @property
    def prompt_logprobs(self) -> int | None:
        """Return k: logprobs of the prompt's tokens are returned; bypasses prefix reuse."""
        ...


@dataclass(frozen=True, slots=True)
class KVBlock:
    """A block of KV on its way from one engine to another, in canonical form."""

    digest: bytes  # its name; that of an open block also names the tokens it has so far
    num_tokens: int  # 64, or fewer: the open block at the end of a prompt
    data: NDArray[np.generic] | DevicePage  # `KVFormat.shape` of the engine that made it
    dtype: KVDtype
    checksum: int | None = None  # see `page_checksums`; of what was in a device's memory


@dataclass(frozen=True, slots=True)
class PinUsage:
    """What a request's pins did."""

    written: tuple[int, ...]
    """For each pin the tokens that were computed and are pinned by it; a token counts for the first
    pin that holds it."""
    lapsed: int  # tokens of the tenant's older pins, whose time ended for these


class EngineUsage(Protocol):
    """What a finished request cost; its sequence has the figures. Seconds of phases are engine
    seconds: the request's share of its steps."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int:
        """Return those of the prompt, at most prompt_tokens - 1."""
        ...

    @property
    def output_tokens(self) -> int: ...

    @property
    def pinned(self) -> PinUsage | None:
        """Return what its pins did, if it had any and its prompt was computed."""
        ...

    @property
    def queue_seconds(self) -> float: ...

    @property
    def prefill_seconds(self) -> float: ...

    @property
    def decode_seconds(self) -> float: ...

    @property
    def seconds(self) -> float:
        """Return seconds of its life in the engine, on the clock."""
        ...

    @property
    def prefill_tokens(self) -> int:
        """Return tokens computed, of prompt or transcript; again after a preemption."""
        ...

    @property
    def prefill_steps(self) -> int:
        """Return chunks that those came in."""
        ...

    @property
    def decode_tokens(self) -> int:
        """Return tokens made in steps of their own, or of several at once by speculation."""
        ...

    @property
    def decode_steps(self) -> int: ...

    @property
    def preemptions(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one step made of one request. The last one has `finish_reason` and `usage`.

    With a `failure` the request was given up ("cancelled"): its grammar cannot be followed further.
    """

    request_id: str
    token_ids: list[int]  # a stop token is included and then `finish_reason` is "stop"
    logprobs: list[TokenLogprob] = field(default_factory=list)  # one per token when requested
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Per chunk, in order; the first token has none."""
    kv: Sequence[KVBlock] = ()  # of the prompt, in order, when the request exports it
    begun: EngineUsage | None = None  # with the first token: what its prompt found cached
    finish_reason: FinishReason | None = None
    usage: EngineUsage | None = None
    failure: str | None = None
    withheld: bool = False  # a call that no longer fits would have begun at one of the tokens
    led: bool = False  # one of them was taken in place of what was sampled, to end in time
