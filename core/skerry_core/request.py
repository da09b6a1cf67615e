"""The request's shapes inside the engine: `Request` in, `Output` out; the scheduler has its own.

Token ids only: text, templates and stop *strings* live at the edge. Errors the caller can mend are
`RequestRejected`; everything else that goes wrong here is a bug.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from skerry_core.config import KVDtype
from skerry_core.device_pages import DevicePage, DevicePages

if TYPE_CHECKING:
    from skerry_core.grammar.matcher import Matcher

FinishReason = Literal["stop", "length", "cancelled"]


class Priority(IntEnum):
    """Scheduling class. Batch work never delays an interactive first token by more than a step."""

    INTERACTIVE = 0
    BATCH = 1


class RequestRejected(Exception):
    """The request can never be served by this engine; the message says why."""


class RequestTooLong(RequestRejected):
    """Prompt and `max_tokens` exceed the model's context or the engine's KV memory."""


class EngineOverloaded(Exception):
    """No room now; `retry_after` (seconds) is the engine's estimate of when to come back."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen, and when to stop.

    Randomness is counter-based (Philox4x32-10, Salmon et al., SC'11): key = `seed`, counter =
    (absolute position, `choice`), so a token does not depend on batch, retry or machine.
    """

    temperature: float = 0.0  # below 1e-5 is greedy
    top_p: float = 1.0  # (0, 1]
    top_k: int = 0  # 0 is off
    min_p: float = 0.0  # [0, 1]; relative to the most likely token
    repetition_penalty: float = 1.0  # over prompt and output (Keskar et al., 2019); 1 is off
    frequency_penalty: float = 0.0  # over output only, per occurrence
    presence_penalty: float = 0.0  # over output only, once
    seed: int = 0  # 64 bits, unsigned
    choice: int = 0  # index of this choice when n > 1
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    logprobs: int | None = None  # None: none; k: the chosen token's and the k most likely tokens'
    max_tokens: int = 256  # output tokens, those of an earlier attempt included
    min_tokens: int = 0  # stop tokens are masked before this many output tokens
    stop_token_ids: tuple[int, ...] = ()

    @property
    def has_penalties(self) -> bool:
        """Whether a token's choice depends on which tokens came before."""
        penalties = (self.frequency_penalty, self.presence_penalty)
        return self.repetition_penalty != 1.0 or any(penalties)


@dataclass(frozen=True, slots=True)
class KVBlock:
    """A block of KV on its way from one engine to another, in canonical form."""

    digest: bytes  # its name; that of an open block also names the tokens it has so far
    num_tokens: int  # 64, or fewer: the open block at the end of a prompt
    data: NDArray[np.generic] | DevicePage  # `KVFormat.shape` of the engine that made it
    dtype: KVDtype
    checksum: int | None = None  # see `page_checksums`; of what was in a device's memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence to generate. `output_ids` carries the transcript of an earlier attempt.

    `kv` brings blocks that another engine computed: they become prefix cache. `exports_kv` asks
    for the prompt's blocks, as they are computed, in the outputs. `matcher` is the request's own
    from now on; it has taken none, or the first of `output_ids`.

    `export_pages` is asked at each export for pages in which blocks may stay on the device; on the
    engine's thread.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    output_ids: tuple[int, ...] = ()  # already emitted; generation goes on after them
    tenant: str = ""  # fairness is between tenants
    cache_key: bytes = b""  # the tenant's derived key (<= 64 bytes) of the block digests
    private_blocks: bool = False  # even blocks of the operator's prompts are named under that key
    priority: Priority = Priority.INTERACTIVE
    reject_if_busy: bool = False  # rather than wait for other requests to end
    pin_seconds: float = 0.0  # that the prompt's blocks stay cached, while there is room
    prompt_logprobs: int | None = None  # k: logprobs of the prompt's tokens; bypasses prefix reuse
    kv: tuple[KVBlock, ...] = ()
    exports_kv: bool = False
    export_pages: Callable[[], DevicePages | None] | None = None
    matcher: Matcher | None = None  # the grammar that the output must follow


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one token, natural log of the model's raw distribution."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), most likely first


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a finished request cost. Seconds are engine seconds: its share of its steps."""

    prompt_tokens: int
    cached_tokens: int  # of the prompt, at most prompt_tokens - 1
    output_tokens: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    seconds: float  # of its life in the engine, on the clock
    prefill_tokens: int  # computed, of prompt or transcript; again after a preemption
    prefill_steps: int  # chunks that those came in
    decode_tokens: int  # made in steps of their own, or of several at once by speculation
    decode_steps: int
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one step made of one request. The last one has `finish_reason` and `usage`.

    With a `failure` the request was given up ("cancelled"): its grammar cannot be followed further.
    """

    request_id: str
    token_ids: tuple[int, ...]  # a stop token is included and then `finish_reason` is "stop"
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token when asked for
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # per chunk, in order; the first token has none
    kv: tuple[KVBlock, ...] = ()  # of the prompt, in order, when the request exports it
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    failure: str | None = None
