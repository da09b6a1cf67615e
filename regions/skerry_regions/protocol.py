"""Messages between an edge and a node. Token ids only; times are *seconds left*, never wall clocks.

One connection per edge-node pair carries many streams. A stream is one attempt at one request; its
`epoch` grows with each attempt, so that late tokens of an abandoned attempt can be told apart.

    edge                                   node
      │ ── Hello ──────────────────────────▶ │   versions and builds are compared first
      │ ◀────────────────────────── Hello ── │
      │ ── Submit(stream, …) ──────────────▶ │
      │ ◀──────────────── Tokens(stream) … ── │   zero or more
      │ ── Abort(stream) ──────────────────▶ │   at any time; harmless after the end
      │ ◀───── Done(stream) | Failed(stream) ─ │  exactly one, the last event of a stream
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

PROTOCOL_VERSION = 1

TokenId = int
Logprob = tuple[TokenId, float]  # natural logarithm


class Sampling(Struct, frozen=True, kw_only=True):
    """Wire twin of the engine's `SamplingParams`; the meaning of each field is stated there."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0
    choice: int = 0
    logit_bias: tuple[Logprob, ...] = ()
    logprobs: int | None = None
    max_tokens: int = 256
    min_tokens: int = 0
    stop_token_ids: tuple[TokenId, ...] = ()


class Submit(Struct, frozen=True, kw_only=True, tag="submit"):
    """Start a stream: generate after `prompt_ids + output_ids`.

    `output_ids` is the transcript of earlier attempts, never merged into the prompt: penalties,
    limits, stops, logprobs and usage need the boundary.
    """

    stream: Annotated[int, Meta(ge=1, lt=1 << 32)]
    request_id: Annotated[str, Meta(max_length=128)]
    epoch: int = 0
    model: str
    prompt_ids: list[TokenId]
    output_ids: list[TokenId] = []
    sampling: Sampling
    tenant: Annotated[str, Meta(max_length=128)] = ""
    cache_key: Annotated[bytes, Meta(max_length=64)] = b""
    priority: Literal["interactive", "batch"] = "interactive"
    seconds_left: float | None = None
    prompt_logprobs: int | None = None


class Abort(Struct, frozen=True, kw_only=True, tag="abort"):
    """Stop a stream and free its blocks. Unknown or ended streams are ignored."""

    stream: int


class Tokens(Struct, frozen=True, kw_only=True, tag="tokens"):
    """Tokens of one step. `index` is the output position of the first (transcript included)."""

    stream: int
    index: int
    token_ids: list[TokenId]
    logprobs: list[tuple[float, list[Logprob]]] | None = None  # (of the token, most likely first)
    prompt_logprobs: list[tuple[float, list[Logprob]]] | None = None


class PhaseUsage(Struct, frozen=True, kw_only=True):
    """What the stream cost, per phase."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float


class Done(Struct, frozen=True, kw_only=True, tag="done"):
    """The stream ended well."""

    stream: int
    finish_reason: Literal["stop", "length", "cancelled"]
    usage: PhaseUsage


class Failed(Struct, frozen=True, kw_only=True, tag="failed"):
    """The stream ended badly. `code` is a code of `skerry.errors`."""

    stream: int
    code: str
    message: str
    retry_after: float | None = None


Command = Submit | Abort
Event = Tokens | Done | Failed
